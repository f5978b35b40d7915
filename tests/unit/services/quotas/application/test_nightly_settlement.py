"""The full look of the night: once for each night, caught up with after it was missed, also where clocks change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.price_list import PriceList
from carme_hub.accounting.reconciliation import last_due
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.domain.quotas.policy import Policy
from carme_hub.errors import SlurmUnreachable
from carme_hub.services.quotas.application.settlement import RECONCILED, SettlementLoop
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.sessions import SessionStore

BERLIN = "Europe/Berlin"
HOUR = 3600.0


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


class Nights:
    """A site whose services are started, stopped and looked at; ``now`` is moved by hand."""

    def __init__(self, folder: Path, full_hour: int = 3) -> None:
        self.now = utc("2026-11-21 12:00")
        self.silent = False
        self.settings = CarmeQuotas(full_hour=full_hour)
        self._engine = CarmeStore(url=f"sqlite:///{folder / 'carme.sqlite'}").open()
        self.full: list[float] = []

    def service(self) -> SettlementLoop:
        """Start a service, as after a restart."""
        ledger = Ledger(
            LedgerStore(self._engine),
            "lab",
            policy=lambda: Policy(zone=BERLIN),
            factor=lambda _type, _partition, _qos: 1000,
            clock=lambda: self.now,
        )
        nothing: Any = None
        settling = SettlementLoop(
            self.settings,
            nothing,
            self,  # type: ignore[arg-type]
            ledger,
            SessionStore(self._engine),
            PriceList(self.settings),
            logging.getLogger("test"),
        )
        settling._reader = self  # type: ignore[assignment]
        return settling

    async def usage(self, _start: float, end: float | None = None) -> tuple[()]:
        if self.silent:
            raise SlurmUnreachable("sacct: error")
        await asyncio.sleep(0.01)
        if end is not None:  # only who compares asks for an end
            self.full.append(self.now)
        return ()

    async def job_ids(self) -> set[int]:
        return set()

    async def until(self, service: SettlementLoop, text: str, step: float = 900) -> list[str]:
        """Let the service look every quarter of an hour until a time (UTC); return when it looked at everything."""
        before = len(self.full)
        while self.now <= utc(text):
            await service.nightly()
            self.now += step
        return [f"{datetime.fromtimestamp(at, UTC):%d %H:%M}" for at in self.full[before:]]

    def close(self) -> None:
        self._engine.dispose()


@pytest.fixture
def open_site(tmp_path: Path) -> Iterator[Callable[..., Nights]]:
    found: list[Nights] = []

    def open_(now: str, full_hour: int = 3) -> Nights:
        site = Nights(tmp_path, full_hour)
        site.now = utc(now)
        found.append(site)
        return site

    yield open_
    for each in found:
        each.close()


@pytest.fixture
def site(open_site: Callable[..., Nights]) -> Nights:
    return open_site("2026-11-21 12:00")


async def test_each_night_at_the_hour_everything_is_looked_at_once(site: Nights) -> None:
    service = site.service()
    assert await site.until(service, "2026-11-21 20:00") == ["21 12:00"], "a new site is looked at once"
    assert await site.until(service, "2026-11-24 12:00") == ["22 02:00", "23 02:00", "24 02:00"]
    note = await service._ledger.note(RECONCILED)
    assert note is not None
    assert note.value["end"] - note.value["start"] == 35 * 24 * HOUR


async def test_a_night_that_was_missed_is_caught_up_with_after_the_start(site: Nights) -> None:
    await site.until(site.service(), "2026-11-22 01:00")
    site.now = utc("2026-11-22 09:30")  # down from two to half past ten
    service = site.service()
    assert await site.until(service, "2026-11-22 20:00") == ["22 09:30"]
    assert await site.until(service, "2026-11-23 12:00") == ["23 02:00"], "and the next night is a night as any"


async def test_several_nights_that_were_missed_are_one_look(site: Nights) -> None:
    await site.until(site.service(), "2026-11-22 01:00")
    site.now = utc("2026-11-29 09:30")
    assert await site.until(site.service(), "2026-11-29 20:00") == ["29 09:30"]


async def test_a_restart_does_not_look_a_second_time(site: Nights) -> None:
    assert await site.until(site.service(), "2026-11-22 02:20") == ["21 12:00", "22 02:00"]
    for _ in range(3):
        assert await site.until(site.service(), f"{datetime.fromtimestamp(site.now, UTC):%Y-%m-%d %H:%M}") == []


async def test_of_two_services_one_looks(site: Nights) -> None:
    await site.until(site.service(), "2026-11-22 01:50")
    before, site.now = len(site.full), utc("2026-11-22 02:00")
    services = [site.service() for _ in range(2)]
    assert sorted(await asyncio.gather(*(each.nightly() for each in services))) == [False, True]
    assert len(site.full) == before + 1


async def test_an_hour_that_clocks_skip_is_the_moment_at_which_they_jump(open_site: Callable[..., Nights]) -> None:
    site = open_site("2027-03-27 12:00", full_hour=2)
    assert await site.until(site.service(), "2027-03-29 12:00") == ["27 12:00", "28 01:00", "29 00:00"]


async def test_an_hour_that_comes_twice_is_one_night(open_site: Callable[..., Nights]) -> None:
    site = open_site("2026-10-24 12:00", full_hour=2)
    assert await site.until(site.service(), "2026-10-26 12:00") == ["24 12:00", "25 00:00", "26 01:00"]


async def test_a_look_that_failed_is_done_an_hour_later_and_one_that_died_with_its_service_too(site: Nights) -> None:
    service = site.service()
    await site.until(service, "2026-11-22 01:50")
    site.now, site.silent = utc("2026-11-22 02:00"), True
    with pytest.raises(SlurmUnreachable):
        await service.nightly()
    site.silent = False
    assert await site.until(site.service(), "2026-11-22 12:00") == ["22 03:00"]


async def test_a_clock_that_was_far_ahead_does_not_end_the_nights(site: Nights) -> None:
    site.now = utc("2030-01-01 12:00")
    await site.service().nightly()
    site.now = utc("2026-11-21 12:00")
    assert await site.until(site.service(), "2026-11-22 12:00") == ["21 12:00", "22 02:00"]


async def test_the_loop_looks_at_the_night_and_a_failing_one_keeps_nobody_from_being_told(site: Nights) -> None:
    service, told = site.service(), asyncio.Event()

    async def tell(_done: object) -> None:
        told.set()

    async def silent(*_asked: object, **_more: object) -> None:
        raise SlurmUnreachable("sacct: error")

    async def both() -> None:
        await told.wait()
        while "sacct" not in service.problem:
            await asyncio.sleep(0.01)

    service.on_result = tell
    service.reconcile = silent  # type: ignore[assignment, method-assign]
    loop = asyncio.create_task(service.run())
    await asyncio.wait_for(both(), 30)
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)


@pytest.mark.parametrize(
    ("now", "due"),
    [
        ("2026-11-21 01:59", "2026-11-20 02:00"),
        ("2026-11-21 02:00", "2026-11-21 02:00"),
        ("2026-11-20 23:30", "2026-11-20 02:00"),  # half past midnight of the next day there
        ("2027-03-28 00:59", "2027-03-27 02:00"),
        ("2027-03-28 01:00", "2027-03-28 01:00"),  # 3:00 of that day, an hour sooner
    ],
)
def test_the_last_due_moment_is_the_zones(now: str, due: str) -> None:
    assert last_due(utc(now), 3, BERLIN) == utc(due)
