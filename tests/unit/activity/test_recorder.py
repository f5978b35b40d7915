"""Reports are stored together, and each is answered when it is committed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from carme_hub.activity import recorder
from carme_hub.activity.recorder import Recorder
from carme_hub.domain.activity.minutes import Minute
from carme_hub.errors import StoreError
from carme_hub.store.activity import Report

LOG = logging.getLogger("test")


class StoreThatFails:
    """Counts transactions; fails as often as it was told to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.groups = failures, []  # type: ignore[var-annotated]

    def record(self, reports: Sequence[Report]) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreError("The database is away.")
        self.groups.append([report.session for report in reports])


def report(session: str) -> Report:
    return Report(session, "n1", (Minute(0, 60),))


def made(store: StoreThatFails, collect: float = 0.05) -> Recorder:
    found: Any = store
    return Recorder(found, LOG, collect)


async def test_reports_that_come_together_are_one_transaction() -> None:
    store = StoreThatFails()
    recording = made(store)
    await asyncio.gather(*(recording.record(report(str(number))) for number in range(50)))
    await recording.record(report("later"))
    assert [len(group) for group in store.groups] == [50, 1]


async def test_a_report_after_a_rest_does_not_wait_and_those_right_after_it_do() -> None:
    store = StoreThatFails()
    recording = made(store, collect=3600)
    await asyncio.wait_for(recording.record(report("first")), 10)
    waits = asyncio.create_task(recording.record(report("second")))
    done, _ = await asyncio.wait([waits], timeout=0.2)
    assert (done, store.groups) == (set(), [["first"]])
    waits.cancel()
    assert recording._task is not None
    recording._task.cancel()


async def test_a_failure_is_told_to_each_and_the_next_report_is_tried() -> None:
    store = StoreThatFails(failures=1)
    recording = made(store)
    outcomes = await asyncio.gather(*(recording.record(report(x)) for x in "ab"), return_exceptions=True)
    assert [type(each) for each in outcomes] == [StoreError, StoreError]
    await recording.record(report("c"))
    assert store.groups == [["c"]]


async def test_a_reporter_that_went_away_harms_no_other() -> None:
    store = StoreThatFails()
    recording = made(store)
    gone = asyncio.create_task(recording.record(report("gone")))
    stays = asyncio.create_task(recording.record(report("stays")))
    await asyncio.sleep(0)
    gone.cancel()
    await stays
    assert store.groups == [["gone", "stays"]]


async def test_the_end_of_the_service_writes_what_waits() -> None:
    store = StoreThatFails()
    recording = made(store)
    waiting = asyncio.create_task(recording.record(report("a")))
    await asyncio.sleep(0)
    await recording.stop()
    await waiting
    assert store.groups == [["a"]]


async def test_too_many_that_wait_are_sent_away_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MOST_WAITING", 2)
    recording = made(StoreThatFails())
    waiting = [asyncio.create_task(recording.record(report(x))) for x in "ab"]
    await asyncio.sleep(0)
    with pytest.raises(StoreError, match="Too many reports wait"):
        await recording.record(report("c"))
    await asyncio.gather(*waiting)
