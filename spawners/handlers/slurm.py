"""The hub's last snapshot of Slurm for its own services, so that one query to Slurm serves all of them.

``GET /hub/api/carme/slurm/jobs`` (those that matter to bookings), ``…/job-ids`` (all jobs that the controller knows)
and ``…/nodes``, each with ``?max_age=SECONDS``. An answer has its age in seconds since the query to Slurm. If the
snapshot is older than ``max_age``, Slurm is queried first. The answer is 503 while Slurm does not answer; then the
service queries Slurm itself.

The answer has job names and users of all jobs, so it needs a scope that only the roles of these services have.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from jupyterhub.apihandlers.base import APIHandler
from tornado import web

from carme_hub.domain.cluster.jobs import Snapshot
from carme_hub.errors import SlurmError
from carme_hub.slurm.cooperative import all_steps
from carme_hub.slurm.json_format import jobs_to_json, matters_to_bookings, nodes_to_json
from carme_hub.spawners.hub.shared import HubContext, started_hub

#: The required scope; ``configure`` gives it to the roles of quotas and reservations.
SCOPE = "custom:carme:slurm:read"
#: Seconds that a request waits for Slurm; a service waits a little longer for the hub.
TIMEOUT = 8.0
_OLDEST = 300.0
_UNKNOWN = "The hub has no answer from Slurm now."


class SlurmHandler(APIHandler):
    """The base of these handlers: only services with the scope get an answer."""

    async def get(self) -> None:
        """Send an answer that is not older than ``max_age``."""
        if SCOPE not in getattr(self, "expanded_scopes", ()):
            raise web.HTTPError(403, "This is for services of the hub.")
        hub = started_hub()
        # In an outage a caller would wait for the next try, and get no better answer than from Slurm itself.
        if hub is None or not hub.watcher.health.ok:
            raise web.HTTPError(503, _UNKNOWN)
        try:
            asked, body = await self.answer(hub, self._max_age())
        except (SlurmError, TimeoutError) as error:
            raise web.HTTPError(503, _UNKNOWN) from error
        age = time.monotonic() - asked + 0.001  # rounded up, so that it never looks newer than it is
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.finish(f'{{"age": {age:.3f}, "answer": {body}}}')

    async def answer(self, hub: HubContext, max_age: float) -> tuple[float, str]:
        """Return when Slurm was queried (monotonic), and its answer as JSON."""
        raise NotImplementedError

    def _max_age(self) -> float:
        try:
            age = float(self.get_query_argument("max_age", "0"))
        except ValueError as error:
            raise web.HTTPError(400, "max_age is a number of seconds.") from error
        if not 0 <= age <= _OLDEST:
            raise web.HTTPError(400, f"max_age is a number of seconds from 0 to {_OLDEST:.0f}.")
        return age


async def _snapshot(hub: HubContext, max_age: float) -> Snapshot:
    return await hub.watcher.fresh(time.monotonic() - max_age, timeout=TIMEOUT)


class JobsHandler(SlurmHandler):
    """Jobs that are on nodes or name a reservation."""

    async def answer(self, hub: HubContext, max_age: float) -> tuple[float, str]:
        """Parse jobs in small steps, and serialize them in a thread: there may be thousands."""
        snapshot = await _snapshot(hub, max_age)
        await all_steps(snapshot.read_in_steps())

        def write() -> str:
            return json.dumps(jobs_to_json(filter(matters_to_bookings, snapshot.jobs.values())))

        return snapshot.asked, await asyncio.to_thread(write)


class JobIdsHandler(SlurmHandler):
    """The ids of all jobs that the controller knows, including ended ones."""

    async def answer(self, hub: HubContext, max_age: float) -> tuple[float, str]:
        """Return the ids."""
        snapshot = await _snapshot(hub, max_age)
        return snapshot.asked, json.dumps(list(snapshot.jobs))


class NodesHandler(SlurmHandler):
    """All nodes."""

    async def answer(self, hub: HubContext, max_age: float) -> tuple[float, str]:
        """Serialize the nodes in a thread."""
        async with asyncio.timeout(TIMEOUT):
            asked, nodes = await hub.watcher.nodes_with_time(max_age)
        return asked, await asyncio.to_thread(lambda: json.dumps(nodes_to_json(nodes)))


_PATH = "/api/carme/slurm/"
HANDLERS: list[tuple[str, Any]] = [
    (f"{_PATH}jobs", JobsHandler),
    (f"{_PATH}job-ids", JobIdsHandler),
    (f"{_PATH}nodes", NodesHandler),
]
