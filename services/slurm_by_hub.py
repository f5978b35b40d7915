"""Slurm as the hub last saw it: one question to Slurm serves the hub and its services.

The hub says how old its answer is, and asks Slurm where that is too old for who asks. Where the hub is away, does not
know, or says what cannot be understood, the service asks Slurm itself: what it has promised does not depend on the hub.
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
#: Seconds after which a hub that does not answer is not waited for; longer than it waits for Slurm.
PATIENCE = 10.0

#: Asks the hub's API: path and query.
AskHub = Callable[[str, Mapping[str, object]], Awaitable[dict[str, Any]]]


async def _ask(path: str, query: Mapping[str, object]) -> dict[str, Any]:
    return await ask_hub(path, query, timeout=PATIENCE)


class SlurmByHub:
    """What a service wants to know of jobs and nodes.

    Args:
        client: asks Slurm itself.
        jobs_age, nodes_age: seconds that an answer may be old.
        ask: asks the hub; None where there is none to be asked.
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
        self._wrong = ""
        #: When Slurm was asked for the nodes that ``nodes`` returned last (monotonic).
        self.nodes_asked = float("-inf")

    async def snapshot(self) -> Snapshot:
        """Return the jobs that are on nodes or name a reservation, and perhaps others.

        Raises:
            SlurmUnreachable: neither hub nor Slurm say.
        """

        def read(asked: float, said: Any) -> Snapshot:
            return Snapshot(asked, self._clock(), jobs_from_json(said))

        found = await self._from_hub("jobs", self._jobs_age, read)
        return await self._client.snapshot() if found is None else found

    async def job_ids(self) -> Collection[int]:
        """Return the ids of all jobs that the controller knows; raises as ``snapshot`` does."""

        def read(_asked: float, said: Any) -> frozenset[int]:
            if not isinstance(said, list) or not all(type(each) is int for each in said):
                raise SlurmUnreachable("the hub's answer cannot be understood: no list of job ids")
            return frozenset(said)

        found = await self._from_hub("job-ids", self._jobs_age, read)
        return set((await self._client.snapshot()).jobs) if found is None else found

    async def nodes(self) -> tuple[Node, ...]:
        """Return all nodes; raises as ``snapshot`` does."""
        began = self._clock()
        found = await self._from_hub("nodes", self._nodes_age(), lambda asked, said: (asked, nodes_from_json(said)))
        asked, nodes = found if found is not None else (began, await self._client.nodes())
        self.nodes_asked = asked
        return nodes

    async def _from_hub(self, what: str, max_age: float, read: Callable[[float, Any], _T]) -> _T | None:
        """Return what the hub says, None where it does not."""
        if self._ask is None:
            return None
        # Before the question: an answer is never taken for younger than it is.
        began = self._clock()
        try:
            answer = await self._ask(f"carme/slurm/{what}", {"max_age": max_age})
            age = float(answer["age"])
            if not 0 <= age < float("inf"):
                raise SlurmUnreachable("the hub's answer cannot be understood: its age")
            found = read(began - age, answer["answer"])
        except Exception as error:  # noqa: BLE001 - whatever it is, Slurm can be asked
            if str(error) != self._wrong:
                self._log.warning("The hub does not say what it knows of Slurm, so Slurm is asked: %s", error)
            self._wrong = str(error)
            return None
        if self._wrong:
            self._wrong = ""
            self._log.info("The hub says again what it knows of Slurm")
        return found
