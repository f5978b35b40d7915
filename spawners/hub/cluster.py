"""The state of the cluster for pages, from the watcher's shared snapshot.

No page causes a query of its own, and none waits long for Slurm. The Slurm spawner's offer reads it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.errors import SlurmError
from carme_hub.slurm.cooperative import all_steps
from carme_hub.slurm.watcher import SlurmWatcher


class ClusterCache:
    """One for the hub. Pages that come within ``max_age`` seconds get the same ``Cluster``, already indexed.

    Args:
        max_wait: seconds that a page waits for Slurm; after that it shows the last known state.
    """

    def __init__(
        self,
        watcher: SlurmWatcher,
        *,
        max_age: float = 10.0,
        max_wait: float = 1.5,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.watcher = watcher
        self.max_age = max_age
        self.max_wait = max_wait
        self._now = now
        self._monotonic = monotonic
        self._nodes: tuple[Node, ...] = ()
        self._seen = 0.0
        self._silent_since = 0.0
        self._tried = 0.0
        self._made: tuple[object, object, float] = (None, None, 0.0)
        self._cluster = Cluster()

    async def cluster(self) -> Cluster:
        """Return the cluster as of at most ``max_age`` seconds ago, or an older state that is marked as such."""
        await self._refresh()
        health = self.watcher.health
        silent = self._silent_since
        if not health.ok:
            failing = round(self._now() - max(0.0, self._monotonic() - health.since))
            silent = min(silent or failing, failing)
        latest = self.watcher.latest
        before_nodes, before_latest, before_silent = self._made
        if self._nodes is not before_nodes or latest is not before_latest or silent != before_silent:
            if latest is not None:
                await all_steps(latest.read_in_steps())
            jobs = latest.jobs.values() if latest else ()
            self._cluster = Cluster(self._nodes, jobs, seen=self._seen, silent_since=silent)
            self._made = (self._nodes, latest, silent)
        return self._cluster

    async def _refresh(self) -> None:
        now = self._now()
        if now - (self._tried if self._silent_since else self._seen) < self.max_age:
            return
        # In an outage a page tries rarely and waits a short time only, since the last try got no answer.
        max_wait = min(self.max_wait, 0.3) if self._silent_since else self.max_wait
        self._tried = now
        try:
            async with asyncio.timeout(max_wait):
                nodes = await self.watcher.nodes(self.max_age)
        except (SlurmError, TimeoutError):
            self._silent_since = self._silent_since or now
            return
        self._nodes, self._seen, self._silent_since = nodes, self._now(), 0.0
