"""All pages share one look at the calendar; a database that fails leaves what was known and never holds a page up."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from booked_parts import HOUR, NOW, booking, cluster, job, node, offer, place
from sqlalchemy import Engine
from traitlets.config import Config

from carme_hub.domain.calendar.reservations import Kind, Reservation, State
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import StoreError
from carme_hub.spawners.form.slots import SlotOver, Slots
from carme_hub.spawners.handlers.extend import TimeFixed, extend
from carme_hub.spawners.hub.shared import HubContext
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationStore

NAME = "carme-1111111100004000-0"


class Clock:
    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


class SlotsThatCount(Slots):
    """Counts its reads, and fails or hangs in them as the test says."""

    fails = False
    reads = 0

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.may_go = threading.Event()
        self.may_go.set()

    def _overlapping(self) -> list[Reservation]:
        self.reads += 1
        self.may_go.wait(30)
        if self.fails:
            raise StoreError("The database is away")
        return super()._overlapping()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = CarmeStore(url=f"sqlite:///{tmp_path / 'carme.sqlite'}").open()
    yield engine
    engine.dispose()


def slots(engine: Engine, *known: Reservation, max_wait: float = 60.0) -> tuple[SlotsThatCount, Clock]:
    with ReservationStore(LedgerStore(engine)).transaction("lab") as writes:
        writes.add(known)
    clock = Clock()
    return SlotsThatCount(engine, "lab", clock=clock, max_wait=max_wait), clock


async def test_what_is_now_and_to_come_is_read_and_nothing_else(engine: Engine) -> None:
    others = (booking("3", start=-3), booking("4", state=State.PENDING), booking("5", cluster="other"))
    found, _ = slots(engine, booking("1"), booking("2", start=40), *others)
    look = await found.refresh()
    assert [each.id[0] for each in look.known] == ["1", "2"]
    assert look.silent_since == 0
    seen = await found.for_user("sam", ["class"], ("teaching",), cluster())
    assert seen.mine == (booking("1"),)


async def test_many_pages_cost_one_read_until_it_is_old(engine: Engine) -> None:
    found, clock = slots(engine, booking())
    await asyncio.gather(*(found.refresh() for _ in range(50)))
    assert found.reads == 1
    clock.now += 6
    await found.refresh()
    assert found.reads == 2


async def test_a_database_that_fails_leaves_what_was_known_with_since_when(engine: Engine) -> None:
    found, clock = slots(engine, booking())
    await found.refresh()
    found.fails = True
    for _ in range(3):
        clock.now += 10
        look = await found.refresh()
        assert (look.known, look.silent_since) == ((booking(),), NOW + 10)
    found.fails = False
    clock.now += 10
    assert (await found.refresh()).silent_since == 0


async def test_a_database_that_hangs_holds_no_page_up_and_is_asked_once(engine: Engine) -> None:
    found, clock = slots(engine, booking(), max_wait=0.05)
    found.may_go.clear()
    async with asyncio.timeout(20):
        for _ in range(5):
            look = await found.refresh()
            assert (look.known, look.silent_since) == ((), NOW)
            clock.now += 10
    assert found.reads == 1
    found.may_go.set()
    await found.stop()
    assert found.latest.known == (booking(),)
    assert found.latest.silent_since == 0


async def test_a_start_in_a_booking_is_said_and_cut_once_more(engine: Engine) -> None:
    found, clock = slots(engine, booking())
    await found.refresh()
    said: list[str] = []
    request = Request("gpu", "base", Gpus("a100", 1), time_limit=59, reservation=f"{NAME},x")
    clock.now += 600
    request, id = found.enter(request, lambda _percent, text: said.append(text))
    assert (request.time_limit, id) == (49, booking().id)
    assert said[0].startswith("In your booking “Physics” until ")
    assert said[0].endswith("; time limit: 49 minutes.")


@pytest.mark.parametrize("name", ["", "course", "carme-course"])
async def test_a_start_elsewhere_is_left_as_it_is(engine: Engine, name: str) -> None:
    found, _ = slots(engine, booking())
    request = Request("gpu", "base", reservation=name)
    assert found.enter(request, lambda *_: None) == (request, "")


async def test_a_start_in_a_booking_that_is_gone_is_refused(engine: Engine) -> None:
    found, clock = slots(engine, booking())
    request = Request("gpu", "base", reservation=NAME)
    with pytest.raises(SlotOver, match="over, or was cancelled"):
        found.enter(request, lambda *_: None)
    await found.refresh()
    clock.now += HOUR - 30
    with pytest.raises(SlotOver):
        found.enter(request, lambda *_: None)


# -- what spawners share -----------------------------------------------------------------------------------------------


class HubWithoutServers:
    """The hub's own database, in which nothing is."""

    def query(self, _table: Any) -> HubWithoutServers:
        return self

    def filter(self, _clause: Any) -> list[Any]:
        return []

    def commit(self) -> None:
        """Keep nothing."""


def shared(tmp_path: Path, *, enabled: bool) -> HubContext:
    config = Config()
    config.CarmeReservations.enabled = enabled
    config.CarmeStore.url = f"sqlite:///{tmp_path / 'carme.sqlite'}"
    config.CarmeSlurm.slurm_prefix = str(tmp_path / "no-slurm")
    return HubContext(config, HubWithoutServers, logging.getLogger("test"))


@pytest.mark.parametrize("enabled", [False, True])
async def test_the_calendar_is_looked_at_where_it_is_enabled(tmp_path: Path, enabled: bool) -> None:
    part = shared(tmp_path, enabled=enabled)
    await part.start()
    try:
        assert (part.slots is not None) is enabled
        if part.slots is not None:
            assert (await part.slots.refresh()).was_read
    finally:
        await part.stop()


async def test_a_session_in_a_booking_is_held_for_from_it(engine: Engine, tmp_path: Path) -> None:
    held: list[dict[str, Any]] = []

    class AdmissionThatNotes:
        async def hold(self, _user: Any, _session: str, request: Request, _say: Any, **more: Any) -> Request:
            held.append(more)
            return request

        async def cost(self, _user: Any, _request: Any, **more: Any) -> tuple[None, dict[str, Any]]:
            held.append(more)
            return None, {}

    part = shared(tmp_path, enabled=False)
    part.admission = AdmissionThatNotes()  # type: ignore[assignment]
    inside = Request("gpu", "base", Gpus("a100", 1), reservation=NAME)
    assert await part.admit(None, "s1", inside, lambda *_: None) == inside, "a hub without a calendar looks at nothing"
    part.slots, _ = slots(engine, booking())
    await part.slots.refresh()
    assert (await part.admit(None, "s1", inside, lambda *_: None)).time_limit == 59
    await part.admit(None, "s1", Request("gpu", "base"), lambda *_: None)
    await part.cost(None, inside)
    await part.cost(None, None)
    await part.admit(None, "s2", Request("gpu", "base"), lambda *_: None, "s1")
    await part.cost(None, None, "s1")
    id = booking().id
    assert [each["slot"] for each in held] == ["", id, "", id, "", "", ""]
    assert [each["instead_of"] for each in held] == [*[""] * 5, "s1", "s1"]


# -- more time ---------------------------------------------------------------------------------------------------------


async def longer(page: Any, minutes: int, *, reservation: str = "", running: Any = None) -> int:
    """Ask for more time of a session that began an hour ago, and return how many minutes it then has."""
    running = running or job(1, 2, ends=1)
    given: list[int] = []

    async def told(*_: Any) -> Any:
        return page

    async def find(*_: Any) -> list[Any]:
        return [running]

    async def set_time_limit(_name: str, _user: str, total: int) -> Any:
        given.append(total)
        return running

    async def extended(*_: Any) -> Any:
        return session

    request = Request("gpu", "base", Gpus("a100", 2), reservation=reservation)
    session = Session("s1", "lab", "sam", "", request, SessionState.RUNNING, 0.0)
    part: Any = SimpleNamespace(
        client=SimpleNamespace(find=find, set_time_limit=set_time_limit),
        registry=SimpleNamespace(set_time_limit=extended),
        admission=None,
        log=SimpleNamespace(info=lambda *_: None),
    )
    await extend(part, SimpleNamespace(offer=told, user=None), session, minutes)
    return given[0]


async def test_a_session_in_a_booking_is_not_longer_than_that() -> None:
    page = offer(booking(hours=3))
    assert await longer(page, 60, reservation=NAME) == 180
    with pytest.raises(TimeFixed, match=r"runs in “Physics”, which ends at .*; it can have 1 hour more"):
        await longer(page, 61, reservation=NAME)
    with pytest.raises(TimeFixed, match="it can have no more"):
        await longer(offer(booking(hours=2)), 5, reservation=NAME)
    with pytest.raises(TimeFixed, match="The booking that it runs in is over"):
        await longer(offer(), 5, reservation=NAME)


async def test_a_session_does_not_get_time_that_somebody_has_booked() -> None:
    soon = booking(start=2, places=(place(count=4),))
    there = cluster(node(used=2), node("n2"), jobs=(job(1, 2, ends=1),))
    assert await longer(offer(soon, there=there), 60) == 180
    with pytest.raises(TimeFixed, match=r"From .* its GPUs are booked \(Physics\); it can have 1 hour more"):
        await longer(offer(soon, there=there), 61)
    window = booking(start=2, places=(place(count=4, whole=True),), kind=Kind.MAINTENANCE, title="Disks")
    with pytest.raises(TimeFixed, match=r"there is maintenance \(Disks\)"):
        await longer(offer(window, there=there, groups=(), accounts=("physics",)), 61)
    with pytest.raises(TimeFixed, match="its GPUs are booked; it can"):
        await longer(offer(soon, there=there, groups=(), accounts=("physics",)), 61)


async def test_where_nobody_books_time_is_given_as_before() -> None:
    page = offer()
    object.__setattr__(page, "bookings", None)
    assert await longer(page, 240, reservation="course") == 360
