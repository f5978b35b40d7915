"""Many pages at once take turns at the database; only a look that has its turn says how the database is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from carme_hub.accounting.notices import DueNotice
from carme_hub.domain.quotas.rules import Person
from carme_hub.spawners.handlers import notices
from carme_hub.spawners.handlers.notices import GpuTimeLookup, Notice
from carme_hub.store.ledger.idempotency import SentNotice


class Clock:
    """The monotonic clock of the notices, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(notices, "time", clock)
    return clock


class SilentDatabase:
    """Answers when it is let, and counts who asks."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.asked = 0

    async def __call__(self, *_about: Any) -> list[DueNotice]:
        self.asked += 1
        await self.answers.wait()
        return [DueNotice(SentNotice("x", "ada", "warning", "little is left", 1.0))]


class Database:
    """Answers after some seconds, and counts who asks."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked = 0

    async def __call__(self, *_about: Any) -> list[DueNotice]:
        self.asked += 1
        await asyncio.sleep(self.seconds)
        return [DueNotice(SentNotice("x", "ada", "warning", "little is left", 1.0))]


def user_of(parts_after: float = 0.0) -> Any:
    """Return a hub user whose spawner has its shared parts after some seconds."""
    book = SimpleNamespace(accounts_of=lambda _user: (), coordinates=lambda _user: (), known=True)
    admission = SimpleNamespace(person=lambda _user: Person("ada"), ledger=None)

    async def shared() -> Any:
        await asyncio.sleep(parts_after)
        return SimpleNamespace(associations=book, admission=admission)

    return SimpleNamespace(name="ada", admin=False, spawner=SimpleNamespace(shared=shared))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0)


MAX_CURVES = [Notice("warning", "little is left", "", "")]


async def test_pages_that_come_too_late_for_a_turn_leave_notices_out_and_the_next_page_has_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notices, "PAGE_WAIT", 2.0)
    database = Database(0.2)
    monkeypatch.setattr(notices, "open_notices", database)
    board = GpuTimeLookup()
    found = await asyncio.gather(*(board.for_user(user_of()) for _ in range(40)))
    assert database.asked < 40, "nobody waits for all who came before"
    assert [] != [each for each in found if each] != found, "some were in time, and some were not"
    asked = database.asked
    await asyncio.sleep(0.3)
    assert database.asked == asked, "who has left asks nothing"
    assert await board.for_user(user_of()) == MAX_CURVES
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_a_hub_that_is_still_setting_up_says_nothing_about_its_database(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notices, "PAGE_WAIT", 0.3)
    monkeypatch.setattr(notices, "open_notices", Database(0))
    board = GpuTimeLookup()
    assert list(await board.for_user(user_of(parts_after=600))) == []
    monkeypatch.setattr(notices, "PAGE_WAIT", 60)
    assert await board.for_user(user_of()) == MAX_CURVES
    assert caplog.records == []


async def test_a_look_that_hangs_lets_no_other_page_wait_however_long_it_hangs(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notices, "PAGE_WAIT", 1.0)
    database = SilentDatabase()
    monkeypatch.setattr(notices, "open_notices", database)
    board = GpuTimeLookup()
    pages = [asyncio.create_task(board.for_user(user_of())) for _ in range(3)]
    await until(lambda: database.asked == 2)
    clock.now += notices.PAGE_WAIT
    assert await asyncio.gather(*pages) == [(), (), ()]
    for _ in range(3):
        page = asyncio.create_task(board.for_user(user_of()))
        await asyncio.sleep(0)
        assert page.done(), "it waits for nothing"
        assert list(page.result()) == []
        clock.now += notices.COOLDOWN
    assert database.asked == 2
    assert all("the database has not answered" in each.message for each in caplog.records)
    assert 1 <= len(caplog.records) <= 4
    database.answers.set()


async def test_a_database_that_was_late_is_left_alone_for_a_while(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "PAGE_WAIT", 1.0)
    database = SilentDatabase()
    monkeypatch.setattr(notices, "open_notices", database)
    board = GpuTimeLookup()
    page = asyncio.create_task(board.for_user(user_of()))
    await until(lambda: database.asked == 1)
    clock.now += notices.PAGE_WAIT
    assert list(await page) == []
    database.answers.set()
    await until(lambda: not board._running)
    assert list(await board.for_user(user_of())) == []
    assert database.asked == 1
    monkeypatch.setattr(notices, "PAGE_WAIT", 60)
    monkeypatch.setattr(notices, "open_notices", Database(0))
    clock.now += notices.COOLDOWN
    assert await board.for_user(user_of()) == MAX_CURVES
