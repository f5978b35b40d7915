"""Garbage collections of a hub stay short, and what is let go is freed all the same."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from carme_hub.garbage import DUE_YOUNG_COLLECTIONS, ShortCollections


class Circle:
    """Garbage that only a collection finds, once nobody has it."""

    def __init__(self) -> None:
        self.itself = self


class Work:
    """How much a thread has worked, as the test says."""

    each = 0.0
    _worked = 0.0

    def __call__(self) -> float:
        self._worked += self.each
        return self._worked


def old_circle() -> weakref.ref[Circle]:
    """Return a reference to garbage that only a full collection finds."""
    circle = Circle()
    gc.collect(1)
    return weakref.ref(circle)


@contextlib.asynccontextmanager
async def going_on(collections: ShortCollections) -> AsyncIterator[None]:
    task = asyncio.create_task(collections.run())
    yield
    task.cancel()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def due() -> list[Callable[[], object]]:
    return []


@pytest.fixture
def collections(work: Work, due: list[Callable[[], object]]) -> Iterator[ShortCollections]:
    before = list(gc.callbacks)
    found = ShortCollections(due.append, logging.getLogger("test"), cpu_time=work)
    found.start()
    yield found
    found.stop()
    assert gc.callbacks == before
    assert gc.get_freeze_count() == 0


def test_what_is_there_at_the_start_is_in_no_later_collection(collections: ShortCollections) -> None:
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < 10_000


def test_what_becomes_garbage_later_is_freed(collections: ShortCollections) -> None:
    known = weakref.ref(Circle())
    gc.collect()
    assert known() is None


def test_what_a_long_collection_leaves_is_in_no_later_one(
    collections: ShortCollections, work: Work, due: list[Callable[[], object]]
) -> None:
    held = Circle()
    gc.collect()
    assert due == []
    work.each = 1.0
    gc.collect()
    [freeze] = due
    freeze()
    assert all(each is not held for each in gc.get_objects())


def test_a_collection_of_the_young_is_no_matter(
    collections: ShortCollections, work: Work, due: list[Callable[[], object]]
) -> None:
    work.each = 1.0
    gc.collect(1)
    assert due == []


def test_everything_is_looked_at_once_a_night(collections: ShortCollections) -> None:
    circle = Circle()
    known = weakref.ref(circle)
    gc.freeze()
    del circle
    gc.collect()
    assert known() is not None  # the price of it
    collections.collect_all()
    assert known() is None


async def test_one_that_is_due_is_made_when_the_loop_has_time(
    collections: ShortCollections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carme_hub.garbage.CHECK_INTERVAL", 0.01)
    monkeypatch.setattr("carme_hub.garbage.BUSY_DELAY", 10.0)
    known = old_circle()
    async with going_on(collections):
        await asyncio.sleep(0.05)
        assert known() is not None  # none is due
        for _ in range(DUE_YOUNG_COLLECTIONS):
            gc.collect(1)
        await until(lambda: known() is None)
    assert gc.get_count()[2] < DUE_YOUNG_COLLECTIONS


async def test_one_that_is_due_waits_while_the_loop_is_busy_but_not_for_ever(
    collections: ShortCollections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carme_hub.garbage.CHECK_INTERVAL", 0.01)
    monkeypatch.setattr("carme_hub.garbage.BUSY_DELAY", -1.0)
    known = old_circle()
    for _ in range(DUE_YOUNG_COLLECTIONS):
        gc.collect(1)
    async with going_on(collections):
        await asyncio.sleep(0.1)
        assert known() is not None
        monkeypatch.setattr("carme_hub.garbage.MAX_DELAY", 0.1)
        await until(lambda: known() is None)


async def test_of_many_objects_that_come_at_once_each_looks_at_a_part(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carme_hub.garbage.CHECK_INTERVAL", 60.0)
    full: list[int] = []

    def seen(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] == 2:
            full.append(len(kept))

    loop = asyncio.get_running_loop()
    collections = ShortCollections(loop.call_soon_threadsafe, logging.getLogger("test"), cpu_time=work)
    kept: list[list[int]] = []
    collections.start()
    gc.callbacks.append(seen)
    try:
        async with going_on(collections):
            for _ in range(300):
                kept.extend([] for _ in range(1000))
                await asyncio.sleep(0)
    finally:
        gc.callbacks.remove(seen)
        collections.stop()
    parts = [after - before for before, after in itertools.pairwise([0, *full, len(kept)])]
    assert len(parts) > 3
    assert max(parts) < 100_000


def test_python_makes_none_by_itself_until_it_is_told_to_again(work: Work) -> None:
    before = gc.get_threshold()
    collections = ShortCollections(lambda _: None, logging.getLogger("test"), cpu_time=work)
    collections.start()
    assert gc.get_threshold()[:2] == before[:2]
    assert gc.get_threshold()[2] > 1_000_000
    collections.stop()
    assert gc.get_threshold() == before


async def test_a_loop_that_is_closed_is_no_failure(work: Work) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    collections = ShortCollections(loop.call_soon_threadsafe, logging.getLogger("test"), cpu_time=work)
    collections.start()
    work.each = 1.0
    gc.collect()
    collections.stop()
