"""Finished jobs are read again and again; an error is said once, and the next look makes up for it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from carme_hub.activity.settings import DAY, CarmeActivity
from carme_hub.errors import SlurmUnreachable
from carme_hub.services.activity.application import finished_jobs

NOW = 1_795_000_000.0


class CollectorThatFails:
    """Fails at the first two looks."""

    def __init__(self) -> None:
        self.looks = 0

    async def collect(self) -> int:
        self.looks += 1
        if self.looks <= 2:
            raise SlurmUnreachable("sacct: no answer in 60 s")
        return 1


class StoreThatPrunes:
    """Notes what is deleted."""

    def __init__(self) -> None:
        self.before: list[float] = []

    def prune(self, before: float) -> None:
        self.before.append(before)


async def test_it_goes_on_after_errors_and_says_each_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(finished_jobs, "EVERY", 0.01)
    collector: Any = CollectorThatFails()
    store: Any = StoreThatPrunes()
    log = logging.getLogger("finished")
    settings = CarmeActivity(keep_jobs=30)
    loop = finished_jobs.collect_for_ever(settings, collector, store, log, clock=lambda: NOW)
    task = asyncio.create_task(loop)
    async with asyncio.timeout(20):
        while len(store.before) < 2:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert collector.looks >= 4
    assert set(store.before) == {NOW - 30 * DAY}
    assert [record.getMessage() for record in caplog.records] == [
        "Finished jobs are not read now, and will be later: sacct: no answer in 60 s"
    ]
