"""One look for everybody: fast on demand, patient in an outage, and never more queries for more sessions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
import pytest_asyncio

from carme_hub.domain.cluster.jobs import Snapshot
from carme_hub.domain.cluster.resources import Node
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.watcher import EARLY_EVERY, EARLY_POLLS, QUEUE_INTERVALS, SlurmWatcher, WatcherSettings

FAST = WatcherSettings(fast_interval=0.05, slow_interval=0.4, nodes_interval=30.0, breaker_failures=3, poll_timeout=2.0)


class SlurmThatCanBeSilent:
    """Answers after a moment; or not, or with a fault of ours."""

    cluster = "lab"

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.takes = 0.01
        self.asked = 0

    async def snapshot(self) -> Snapshot:
        self.asked += 1
        asked = time.monotonic()
        await asyncio.sleep(self.takes)
        if self.failure is not None:
            raise self.failure
        return Snapshot(asked, time.monotonic(), {})

    async def nodes(self) -> tuple[Node, ...]:
        self.asked += 1
        await asyncio.sleep(self.takes)
        if self.failure is not None:
            raise self.failure
        return (Node("node1", "idle", True),)


@pytest.fixture
def slurm() -> SlurmThatCanBeSilent:
    return SlurmThatCanBeSilent()


@pytest_asyncio.fixture(loop_scope="module")
async def watcher(slurm: SlurmThatCanBeSilent) -> AsyncIterator[SlurmWatcher]:
    watcher = SlurmWatcher(slurm, FAST)  # type: ignore[arg-type]
    watcher.start()
    yield watcher
    await watcher.stop()


async def _until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.005)


def _most(began: float) -> float:
    """Return how many looks there may be at the fast interval since then, however many ask."""
    intervals = (time.monotonic() - began) / FAST.fast_interval
    return 2 + EARLY_POLLS + intervals * (1 + 1 / EARLY_EVERY)


async def test_150_waiters_share_a_few_questions(watcher: SlurmWatcher, slurm: SlurmThatCanBeSilent) -> None:
    slurm.takes = 0.5  # so that nobody is late for the answer
    for number in range(150):
        watcher.want_fast(number)
    found = await asyncio.gather(*(watcher.fresh() for _ in range(150)))
    assert len({id(snapshot) for snapshot in found}) == 1
    assert slurm.asked <= 3


async def test_the_number_of_questions_does_not_depend_on_the_number_of_sessions(
    watcher: SlurmWatcher, slurm: SlurmThatCanBeSilent
) -> None:
    for sessions in (1, 150):
        for number in range(sessions):
            watcher.want_fast(number)
        began, before = time.monotonic(), slurm.asked
        await _until(lambda before=before: slurm.asked > before + 5)  # type: ignore[misc]
        assert slurm.asked - before <= _most(began)


async def test_fresh_is_never_older_than_asked_for(watcher: SlurmWatcher) -> None:
    await watcher.fresh()
    after = time.monotonic()
    assert (await watcher.fresh(after)).asked >= after
    assert await watcher.fresh(after) is await watcher.fresh(after)


async def test_slow_at_rest_and_fast_on_demand(watcher: SlurmWatcher, slurm: SlurmThatCanBeSilent) -> None:
    watcher.settings = replace(FAST, slow_interval=60.0)
    await watcher.fresh()
    before = slurm.asked
    await asyncio.sleep(0.3)
    assert slurm.asked - before <= 1
    watcher.want_fast("a")
    before = slurm.asked
    await _until(lambda: slurm.asked - before >= 4)
    watcher.done_fast("a")
    watcher.done_fast("never registered")
    await asyncio.sleep(0.1)
    before = slurm.asked
    await asyncio.sleep(0.3)
    assert slurm.asked - before <= 1


async def test_what_waits_in_the_queue_is_looked_at_every_few_intervals(
    watcher: SlurmWatcher, slurm: SlurmThatCanBeSilent
) -> None:
    await watcher.fresh()
    watcher.want_fast("starting")
    assert watcher._pause() == FAST.fast_interval
    watcher.want_queue("starting")
    assert watcher._pause() == QUEUE_INTERVALS * FAST.fast_interval
    watcher.want_fast("another")
    assert watcher._pause() == FAST.fast_interval
    watcher.done_fast("another")
    watcher.want_fast("starting")  # its user gave up: the end is waited for
    assert watcher._pause() == FAST.fast_interval
    watcher.done_fast("starting")
    assert watcher._pause() == FAST.slow_interval


async def test_an_outage_keeps_the_last_answer_and_is_told(watcher: SlurmWatcher, slurm: SlurmThatCanBeSilent) -> None:
    last = await watcher.fresh()
    watcher.want_fast("a")
    slurm.failure = SlurmUnreachable("connect failure")
    await _until(lambda: not watcher.health.ok)
    assert watcher.latest is not None
    assert watcher.latest.asked >= last.asked
    kept = watcher.latest
    with pytest.raises(SlurmUnreachable, match="connect failure"):
        await watcher.fresh()
    since = watcher.health.since
    await _until(lambda: watcher.health.failures >= 4)
    assert watcher.health.since == since
    assert watcher.latest is kept
    slurm.failure = None
    await _until(lambda: watcher.health.ok)
    assert (watcher.health.error, watcher.health.failures) == ("", 0)


async def test_the_breaker_asks_ever_more_rarely_however_many_wait(
    watcher: SlurmWatcher, slurm: SlurmThatCanBeSilent
) -> None:
    slurm.failure = SlurmUnreachable("down")
    watcher.want_fast("a")
    await _until(lambda: watcher.health.failures >= 6)
    began, before = time.monotonic(), slurm.asked
    waiting = [asyncio.create_task(watcher.fresh(timeout=0.7)) for _ in range(50)]
    await asyncio.sleep(0.9)
    assert slurm.asked - before <= 2 + (time.monotonic() - began) / FAST.slow_interval
    assert all(isinstance(e, SlurmUnreachable) for e in await asyncio.gather(*waiting, return_exceptions=True))


async def test_a_look_that_never_ends_is_given_up(watcher: SlurmWatcher, slurm: SlurmThatCanBeSilent) -> None:
    slurm.takes = 60.0
    with pytest.raises(SlurmUnreachable, match="no answer"):
        await watcher.fresh(timeout=30.0)
    slurm.takes = 0.01
    await watcher.fresh(timeout=30.0)


async def test_fresh_has_a_time_limit_of_its_own(watcher: SlurmWatcher, slurm: SlurmThatCanBeSilent) -> None:
    slurm.takes = 60.0
    watcher.settings = replace(FAST, poll_timeout=30.0)
    with pytest.raises(SlurmUnreachable, match=r"in 0\.1 s"):
        await watcher.fresh(timeout=0.1)


async def test_a_fault_of_ours_does_not_end_the_task(
    watcher: SlurmWatcher, slurm: SlurmThatCanBeSilent, caplog: pytest.LogCaptureFixture
) -> None:
    slurm.failure = KeyError("bug")
    with pytest.raises(SlurmUnreachable, match="KeyError"):
        await watcher.fresh()
    slurm.failure = None
    await watcher.fresh(timeout=30.0)
    assert "unexpected" in caplog.text


async def test_listeners_hear_every_look_and_do_not_disturb_each_other(
    watcher: SlurmWatcher, slurm: SlurmThatCanBeSilent, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[tuple[bool, str]] = []

    def broken(_snapshot: Snapshot | None, _error: str) -> None:
        raise ValueError("listener")

    watcher.subscribe(broken)
    unsubscribe = watcher.subscribe(lambda snapshot, error: heard.append((snapshot is not None, error)))
    await watcher.fresh()
    slurm.failure = SlurmUnreachable("down")
    with pytest.raises(SlurmUnreachable):
        await watcher.fresh()
    assert heard[0] == (True, "")
    assert heard[-1] == (False, "down")
    unsubscribe()
    count = len(heard)
    slurm.failure = None
    await watcher.fresh(timeout=30.0)
    assert len(heard) == count
    assert "listener" in caplog.text


async def test_changed_wakes_at_the_next_look(watcher: SlurmWatcher) -> None:
    watcher.want_fast("a")
    async with asyncio.timeout(30):
        await watcher.changed()


async def test_nodes_are_asked_once_for_all_and_only_when_wanted(
    watcher: SlurmWatcher, slurm: SlurmThatCanBeSilent
) -> None:
    await watcher.fresh()
    assert watcher.queries["nodes"] == 0
    found = await asyncio.gather(*(watcher.nodes() for _ in range(100)))
    assert found[0] == (Node("node1", "idle", True),)
    assert watcher.queries["nodes"] == 1
    await watcher.nodes()
    assert watcher.queries["nodes"] == 1
    await watcher.nodes(max_age=0.0)
    assert watcher.queries["nodes"] == 2
    watcher._clock = lambda: time.monotonic() + FAST.nodes_interval + 1
    slurm.failure = SlurmUnreachable("down")
    with pytest.raises(SlurmUnreachable):
        await watcher.nodes()


async def test_stop_ends_everything_and_start_begins_again(watcher: SlurmWatcher, slurm: SlurmThatCanBeSilent) -> None:
    await watcher.stop()
    before = slurm.asked
    await asyncio.sleep(0.1)
    assert slurm.asked == before
    watcher.start()
    watcher.start()
    await watcher.fresh()


async def test_a_storm_of_impatient_callers_gets_looks_at_the_interval(
    watcher: SlurmWatcher, slurm: SlurmThatCanBeSilent
) -> None:
    await watcher.fresh()
    began, before = time.monotonic(), slurm.asked
    watcher.want_fast("storm")
    for _ in range(100):
        await asyncio.gather(watcher.fresh(), asyncio.sleep(0.005))
        if time.monotonic() - began > 0.8:
            break
    assert slurm.asked - before <= _most(began)
