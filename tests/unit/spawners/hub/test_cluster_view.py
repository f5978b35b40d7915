"""Pages share one look at the cluster, and an outage neither hangs nor empties them."""

from __future__ import annotations

import asyncio

from carme_hub.domain.cluster.jobs import Snapshot
from carme_hub.domain.cluster.resources import Node
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.watcher import Health
from carme_hub.spawners.hub.cluster import ClusterCache


class WatcherThatCounts:
    """Gives the same nodes, or fails, or takes long, as the test says."""

    def __init__(self) -> None:
        self.asked = 0
        self.fails = False
        self.takes = 0.0
        self.health = Health(True, 0.0)
        self.latest: Snapshot | None = None

    async def nodes(self, max_age: float | None = None) -> tuple[Node, ...]:
        self.asked += 1
        await asyncio.sleep(self.takes)
        if self.fails:
            raise SlurmUnreachable("no answer")
        return (Node("n1", "idle", True, gpus={"a100": 4}),)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def look(max_wait: float = 60) -> tuple[ClusterCache, WatcherThatCounts, Clock]:
    watcher, clock = WatcherThatCounts(), Clock()
    return ClusterCache(watcher, max_age=10, max_wait=max_wait, now=clock, monotonic=clock), watcher, clock


async def test_many_pages_cost_one_question() -> None:
    pages, watcher, _ = look()
    first = await pages.cluster()
    assert all([await pages.cluster() is first for _ in range(50)])
    assert watcher.asked == 1


async def test_a_later_page_asks_again() -> None:
    pages, watcher, clock = look()
    await pages.cluster()
    clock.now += 11
    await pages.cluster()
    assert watcher.asked == 2


async def test_an_outage_keeps_what_was_known_and_says_since_when() -> None:
    pages, watcher, clock = look()
    await pages.cluster()
    watcher.fails = True
    clock.now += 20
    cluster = await pages.cluster()
    assert (cluster.silent_since, cluster.seen, len(cluster.nodes)) == (1020.0, 1000.0, 1)
    for _ in range(20):
        await pages.cluster()
    assert watcher.asked == 2, "an outage is not asked by every page"
    watcher.fails = False
    clock.now += 11
    assert (await pages.cluster()).silent_since == 0


async def test_the_queues_outage_counts_too() -> None:
    pages, watcher, clock = look()
    await pages.cluster()
    watcher.health = Health(False, clock.now - 60, "no answer", 3)
    assert (await pages.cluster()).silent_since == 940


async def test_a_slow_slurm_does_not_hold_a_page_up() -> None:
    pages, watcher, _ = look(max_wait=0.05)
    watcher.takes = 300
    async with asyncio.timeout(30):
        cluster = await pages.cluster()
    assert not cluster.known
    assert cluster.silent_since
