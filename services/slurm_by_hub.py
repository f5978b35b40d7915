"""Jobs and nodes of Slurm, read from the hub's last snapshot: one query to Slurm serves the hub and its services.

The hub's answer says how old the snapshot is; the hub queries Slurm if that is older than the service accepts. If the
hub does not answer, has no snapshot, or its answer is not valid, the service queries Slurm itself, so that it does not
depend on the hub.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar

from carme_hub.domain.cluster.jobs import Snapshot
from carme_hub.domain.cluster.resources import Node
from carme_hub.errors import SlurmUnreachable
from carme_hub.services.hub_api import ask_hub
from carme_hub.slurm.client import SlurmClient
from carme_hub.slurm.json_format import jobs_from_json, nodes_from_json

_T = TypeVar("_T")
#: Seconds that a service waits for the hub; longer than the hub waits for Slurm.
HUB_TIMEOUT = 10.0

#: Sends a GET to the hub's API: path and query.
AskHub = Callable[[str, Mapping[str, object]], Awaitable[dict[str, Any]]]


async def _ask(path: str, query: Mapping[str, object]) -> dict[str, Any]:
    return await ask_hub(path, query, timeout=HUB_TIMEOUT)


class SlurmByHub:
    """Reads jobs and nodes from the hub, or from Slurm.

    Args:
        client: queries Slurm itself.
        jobs_age, nodes_age: how old an answer may be, in seconds.
        ask: queries the hub; None without a hub.
    """

    def __init__(
        self,
        client: SlurmClient,
        *,
        jobs_age: float = 0.0,
        nodes_age: Callable[[], float] = float,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        ask: AskHub | None = _ask,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._ask, self._clock, self._log = client, ask, clock, log
        self._jobs_age, self._nodes_age = jobs_age, nodes_age
        self._problem = ""
        #: When Slurm was asked for the nodes that ``nodes`` returned last (monotonic).
        self.nodes_asked_at = float("-inf")

    async def snapshot(self) -> Snapshot:
        """Return the jobs that are on nodes or name a reservation, and perhaps others.

        Raises:
            SlurmUnreachable: neither the hub nor Slurm answers.
        """

        def read(asked: float, answer: Any) -> Snapshot:
            return Snapshot(asked, self._clock(), jobs_from_json(answer))

        found = await self._from_hub("jobs", self._jobs_age, read)
        return await self._client.snapshot() if found is None else found

    async def job_ids(self) -> Collection[int]:
        """Return the ids of all jobs that the controller knows; raises as ``snapshot`` does."""

        def read(_asked: float, answer: Any) -> frozenset[int]:
            if not isinstance(answer, list) or not all(type(each) is int for each in answer):
                raise SlurmUnreachable("the hub's answer is not valid: no list of job ids")
            return frozenset(answer)

        found = await self._from_hub("job-ids", self._jobs_age, read)
        return set((await self._client.snapshot()).jobs) if found is None else found

    async def nodes(self) -> tuple[Node, ...]:
        """Return all nodes; raises as ``snapshot`` does."""
        began = self._clock()
        found = await self._from_hub("nodes", self._nodes_age(), lambda asked, answer: (asked, nodes_from_json(answer)))
        asked, nodes = found if found is not None else (began, await self._client.nodes())
        self.nodes_asked_at = asked
        return nodes

    async def _from_hub(self, what: str, max_age: float, read: Callable[[float, Any], _T]) -> _T | None:
        """Return the hub's answer, None if it has none."""
        if self._ask is None:
            return None
        # Taken before the request, so that an answer never looks newer than it is.
        began = self._clock()
        try:
            answer = await self._ask(f"carme/slurm/{what}", {"max_age": max_age})
            age = float(answer["age"])
            if not 0 <= age < float("inf"):
                raise SlurmUnreachable("the hub's answer is not valid: its age")
            found = read(began - age, answer["answer"])
        except Exception as error:  # noqa: BLE001 - after any error Slurm can be queried
            if str(error) != self._problem:
                self._log.warning("The hub does not answer about Slurm, so Slurm is queried directly: %s", error)
            self._problem = str(error)
            return None
        if self._problem:
            self._problem = ""
            self._log.info("The hub answers about Slurm again")
        return found
