"""What somebody reserved in Slurm by hand is in the way as a booking is; a silent Slurm keeps no page up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from booked_parts import HOUR, NOW, booking, job, node, offer, place
from booked_parts import cluster as nodes_of
from sqlalchemy import Engine
from test_slots_cache import Clock, SlotsThatCount

from carme_hub.domain.calendar.conflicts import ReservationConflict, ReservationTimetable
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Kind, Reservation, State
from carme_hub.domain.calendar.slurm_reservations import SlurmReservation
from carme_hub.domain.cluster.jobs import Job
from carme_hub.domain.cluster.resources import Gpus, Node
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import SlurmUnreachable
from carme_hub.spawners.form.slots import CalendarView
from carme_hub.spawners.form.start_estimate import prospect
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationStore

REQUEST = Request("gpu", "base", Gpus("a100", 1), 1, 1024, 240)


def by_hand(name: str = "root_1", start: float = 2, hours: float = 4, **more: Any) -> SlurmReservation:
    """Return a reservation of all of n1 that begins in two hours."""
    begin = NOW + int(start * HOUR)
    given: dict[str, Any] = {"nodes": frozenset({"n1"}), "cpus": 32, "users": frozenset({"root"}), **more}
    return SlurmReservation(name, Period(begin, begin + int(hours * HOUR)), **given)


def maint(**more: Any) -> SlurmReservation:
    return by_hand(flags=frozenset({"MAINT", "SPEC_NODES"}), **more)


def conflict(
    *there: SlurmReservation, nodes: Sequence[Node] = (), jobs: Sequence[Job] = ()
) -> ReservationConflict | None:
    cluster = Cluster(nodes or [node()], jobs, seen=NOW)
    return ReservationTimetable(cluster, (), NOW, there).conflict(REQUEST)


@pytest.mark.parametrize("there", [by_hand(), maint(), by_hand(gpus={"a100": 4}, cpus=4)])
def test_what_was_reserved_by_hand_is_in_the_way(there: SlurmReservation) -> None:
    found = conflict(there)
    assert found is not None
    assert (found.longest, found.at, found.expected) == (119, NOW + 2 * HOUR, NOW + 6 * HOUR)
    assert [each.kind is Kind.MAINTENANCE for each in found.causes] == [there.maintenance]


@pytest.mark.parametrize(
    "there",
    [
        by_hand(gpus={"a100": 3}, cpus=3),  # one is left
        by_hand(gpus={"h100": 4}, cpus=4),
        by_hand(cpus=8),  # some cores, and no GPU that is said
        by_hand(nodes=frozenset({"n7"})),
        by_hand(nodes=frozenset()),  # licences alone
        by_hand(start=-4),
    ],
)
def test_what_takes_none_of_its_gpus_is_not(there: SlurmReservation) -> None:
    assert conflict(there) is None


def test_another_node_is_as_good_and_jobs_inside_are_counted_once() -> None:
    assert conflict(by_hand(), nodes=[node(), node("n2")]) is None
    inside = job(1, 2, ends=3, reservation="training")
    there = by_hand("training", start=-1, gpus={"a100": 2}, cpus=2)
    assert conflict(there, nodes=[node(used=2)], jobs=[inside]) is None, "two are nobody's"


def test_a_running_session_does_not_get_time_in_it() -> None:
    mine = job(1, 2, ends=1)
    timetable = ReservationTimetable(Cluster([node()], [mine], seen=NOW), (), NOW, [maint()])
    assert timetable.extension_conflict(mine, NOW + 2 * HOUR) is None
    found = timetable.extension_conflict(mine, NOW + 3 * HOUR)
    assert found is not None
    assert (found.kind, found.title) == (Kind.MAINTENANCE, "root_1")


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (maint(), "there is maintenance (root_1): take"),
        (by_hand("for-eve"), "all a100 are booked: take"),
    ],
)
def test_the_form_says_so_and_names_no_reservation_of_others(there: SlurmReservation, words: str) -> None:
    page = offer(look=CalendarView((), was_read=True, by_hand=(there,)), there=nodes_of(node()))
    more = {"virtual": False, "suggest": True, "bookings": page.bookings}
    said = prospect(page.cluster, page.profiles[0], REQUEST, NOW, **more)  # type: ignore[arg-type]
    assert words in str(said["sentence"])
    assert said["suggestion"] == {"options": {"time_minutes": 115}, "what": "1 hour 55 minutes"}


# -- the look ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = CarmeStore(url=f"sqlite:///{tmp_path / 'carme.sqlite'}").open()
    yield engine
    engine.dispose()


class SlurmThatShows:
    """Shows what it has, fails, or hangs."""

    def __init__(self, *there: SlurmReservation) -> None:
        self.there, self.asked, self.wrong = there, 0, ""
        self.may_go = asyncio.Event()
        self.may_go.set()

    async def __call__(self) -> tuple[SlurmReservation, ...]:
        self.asked += 1
        await self.may_go.wait()
        if self.wrong:
            raise SlurmUnreachable(self.wrong)
        return self.there


def slots(engine: Engine, slurm: SlurmThatShows, *known: Reservation, max_wait: float = 30.0) -> tuple[Any, Clock]:
    with ReservationStore(LedgerStore(engine)).transaction("lab") as writes:
        writes.add(known)
    clock = Clock()
    return SlotsThatCount(engine, "lab", clock=clock, max_wait=max_wait, in_slurm=slurm), clock


async def test_bookings_are_not_counted_twice_and_what_nobody_knows_is(engine: Engine) -> None:
    one, over = booking("1"), booking("2", state=State.CANCELLED)
    orphan = by_hand("carme-ffffffffffffffff-0")
    ours = [by_hand(each.names()[0]) for each in (one, over)]
    magnetic = by_hand("course", flags=frozenset({"MAGNETIC"}))
    found, _ = slots(engine, SlurmThatShows(*ours, orphan, maint(), magnetic), one, over)
    look = await found.refresh()
    assert look.by_hand == (orphan, maint())
    bookings = await found.for_user("sam", ["class"], ("teaching",), Cluster([node()], seen=NOW))
    assert bookings.conflict(REQUEST) is not None


async def test_slurm_is_asked_twice_a_minute_at_most_and_a_failure_leaves_what_was_seen(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    slurm = SlurmThatShows(maint())
    found, clock = slots(engine, slurm, booking(places=(place("n2"),)))
    for _ in range(20):
        assert (await found.refresh()).by_hand == (maint(),)
        clock.now += 2
    assert slurm.asked == 2
    slurm.wrong = "slurmctld is away"
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            clock.now += 31
            assert (await found.refresh()).by_hand == (maint(),)
            await asyncio.sleep(0.01)
    assert caplog.text.count("slurmctld is away") == 1
    slurm.wrong, slurm.there = "", ()
    clock.now += 31
    await found.refresh()
    async with asyncio.timeout(10):
        while (await found.refresh()).by_hand:
            await asyncio.sleep(0.01)


async def test_a_slurm_that_hangs_holds_one_page_up_for_a_moment_and_ends_with_the_hub(engine: Engine) -> None:
    slurm = SlurmThatShows(maint())
    slurm.may_go.clear()
    found, clock = slots(engine, slurm, booking(), max_wait=0.3)
    began = time.monotonic()
    for _ in range(20):
        look = await found.refresh()
        assert look.by_hand == ()
        clock.now += 1
    assert time.monotonic() - began < 3
    assert look.known == (booking(),)
    await found.stop()
    assert slurm.asked == 1


async def test_a_database_that_never_answers_keeps_no_hub_from_ending(engine: Engine) -> None:
    found, _ = slots(engine, SlurmThatShows(), max_wait=0.05)
    found.may_go.clear()
    await found.refresh()
    try:
        async with asyncio.timeout(5):
            await found.stop(0.1)
            await found.stop()
    finally:
        found.may_go.set()
        await found.stop()
