"""Garbage collections of a hub stay short, and what is let go is freed all the same."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable, Iterator

import pytest

from carme_hub.garbage import ShortCollections


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


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def due() -> list[Callable[[], object]]:
    return []


@pytest.fixture
def collections(work: Work, due: list[Callable[[], object]]) -> Iterator[ShortCollections]:
    before = list(gc.callbacks)
    found = ShortCollections(due.append, logging.getLogger("test"), worked=work)
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
    collections.look_at_everything()
    assert known() is None


async def test_a_loop_that_is_closed_is_no_failure(work: Work) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    collections = ShortCollections(loop.call_soon_threadsafe, logging.getLogger("test"), worked=work)
    collections.start()
    work.each = 1.0
    gc.collect()
    collections.stop()
