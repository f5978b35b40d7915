"""Booking, long series, a month of the calendar and the reconciler's pass: 10,000 bookings a year on 1,000 nodes.

``python benchmarks/bookings.py [sqlite] [postgresql]`` (two minutes for both). There is no peer: no open portal on
Slurm has a calendar. Commits wait for the disk on both. Its name is not ``calendar.py``, because programs in this
folder would import it in place of the standard library's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # the PostgreSQL of the tests

from measure import figure, load, log_progress, median, percentile  # noqa: E402
from rig.postgres import postgres  # noqa: E402

from carme_hub.accounting.context import LedgerContext  # noqa: E402
from carme_hub.booking import creation, visibility  # noqa: E402
from carme_hub.booking.bookings import Bookings  # noqa: E402
from carme_hub.booking.calendar import BookingRequest, Calendar, RequestedTime, SlotTaken, Supply  # noqa: E402
from carme_hub.booking.context import Booker, BookingContext  # noqa: E402
from carme_hub.booking.reconcile.reconciler import ReservationReconciler  # noqa: E402
from carme_hub.booking.rules import Rules  # noqa: E402
from carme_hub.domain.calendar.capacity import GpuInventory, Need, Place  # noqa: E402
from carme_hub.domain.calendar.periods import Period  # noqa: E402
from carme_hub.domain.calendar.recurrence import Recurrence  # noqa: E402
from carme_hub.domain.calendar.reservations import HOLDING, PROMISED, Reservation, State  # noqa: E402
from carme_hub.domain.calendar.slurm_reservations import SlurmReservation, Step  # noqa: E402
from carme_hub.domain.ledger.entries import GPU_HOUR, ONE, Entry, Kind  # noqa: E402
from carme_hub.domain.quotas.booking_rules import BookingRule  # noqa: E402
from carme_hub.domain.quotas.policy import Policy  # noqa: E402
from carme_hub.domain.quotas.rules import Person, Quota, SubjectKind, Window  # noqa: E402
from carme_hub.services.reservations.application.ledger import ReservationLedger  # noqa: E402
from carme_hub.store.engine import CarmeStore  # noqa: E402
from carme_hub.store.ledger.writes import LedgerStore  # noqa: E402
from carme_hub.store.reservations import ReservationStore  # noqa: E402

BOOKINGS, NODES, TIMES = 10_000, 1000, 200
NOW, HOUR = 1_795_000_000, 3600
YEAR, MONTH = 365 * 24 * HOUR, 30 * 24 * HOUR
TYPES = ("a100", "h100", "l40s")
INVENTORY = tuple(GpuInventory(f"n{n:04}", TYPES[n % 3], 8 if n % 3 == 0 else 4, 8) for n in range(NODES))
TOTAL = {type: sum(item.count for item in INVENTORY if item.type == type) for type in TYPES}
#: The user who books, and the rules on GPU time that apply: one of each kind of window.
ADA = Person("ada", frozenset({"course"}))
QUOTAS = (
    Quota("day", SubjectKind.USER, gpu_time=1000 * GPU_HOUR, window=Window.DAY),
    Quota("week", SubjectKind.GROUP, "course", together=True, gpu_time=9000 * GPU_HOUR, window=Window.WEEK),
    Quota("rolling", SubjectKind.USER, gpu_time=90_000 * GPU_HOUR, window=Window.ROLLING, days=30),
    Quota("month", SubjectKind.ACCOUNT, gpu_time=90_000 * GPU_HOUR, window=Window.MONTH),
    Quota("total", SubjectKind.ACCOUNT, needs_grant=True, gpu_time=900_000 * GPU_HOUR),
)


class SlurmThatHasAll:
    """A Slurm that has all reservations of the calendar, as a parsed answer: scontrol's own time is not measured."""

    def __init__(self) -> None:
        self.reservations: tuple[SlurmReservation, ...] = ()

    async def show(self) -> tuple[SlurmReservation, ...]:
        """Return all."""
        return self.reservations

    async def take(self, step: Step) -> str:
        """Refuse every step: none is due."""
        raise AssertionError(step)


def generate_bookings(chance: random.Random) -> Iterator[Reservation]:
    """Yield a year of bookings, each of up to 20 nodes for up to three days, on 1,000 nodes."""
    for number in range(BOOKINGS):
        start = NOW + chance.randrange(0, YEAR // HOUR) * HOUR
        period = Period(start, start + chance.choice([2, 4, 8, 24, 72]) * HOUR)
        type = chance.choice(TYPES)
        ours = chance.sample([item for item in INVENTORY if item.type == type], chance.choice([1, 1, 2, 5, 20]))
        places = tuple(Place(item.node, type, item.count, 1, cpus=item.count * 8) for item in ours)
        yield Reservation(
            id=str(uuid.UUID(int=chance.getrandbits(128))),
            cluster="bench",
            owner=f"user{number % 500}",
            account="physics",
            title="Work",
            need=Need(type, 1, len(ours)),
            period=period,
            places=places,
            state=State.CONFIRMED,
            created=NOW,
        )


def timed(work: Callable[[], Any]) -> list[float]:
    """Return the milliseconds of each call."""
    found = []
    for _ in range(TIMES):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1000)
    return found


def request(chance: random.Random, gpus: int, seats: int, hours: int) -> BookingRequest:
    start = NOW + chance.randrange(0, YEAR // HOUR) * HOUR
    return BookingRequest(
        "ada", "physics", "Work", Need("a100", gpus, seats), [RequestedTime(Period(start, start + hours * HOUR))]
    )


def measure(name: str, url: str) -> bool:
    """Print the figures of one database and return whether all hold."""
    chance = random.Random(1)
    ledger = LedgerStore(CarmeStore(url=url).open())
    store = ReservationStore(ledger)
    calendar = Calendar(store, "bench", lambda: Supply(INVENTORY), lambda: NOW)
    context = booking_context(ledger, calendar)
    ada = Booker(ADA, ("physics",))
    log_progress(f"{name}: writing {BOOKINGS} bookings")
    write(store, chance)

    def book() -> None:
        calendar._book(request(chance, 2, 4, 2), State.CONFIRMED)

    def conflict() -> None:
        with contextlib.suppress(SlotTaken):
            calendar._book(request(chance, 8, TOTAL["a100"] // 8, 24), State.CONFIRMED)
            raise AssertionError("nothing was in the way")

    def month() -> None:
        start = NOW + chance.randrange(0, YEAR - MONTH)
        period = Period(start, start + MONTH)
        assert visibility.between(context, ada, period, HOLDING)
        assert len(visibility.free(context, period, ())) == len(TYPES)

    log_progress(f"{name}: booking")
    holds = [report_p99(name, "booking", timed(book), 50)]
    log_progress(f"{name}: conflicts with alternatives")
    holds.append(report_p99(name, "conflict with alternatives", timed(conflict), 50))
    log_progress(f"{name}: months")
    holds.append(report_p99(name, "month of the calendar", timed(month), 150))
    for number, goal in ((52, 0.15), (300, 0.7)):
        log_progress(f"{name}: series of {number} times")
        took = median([series(context, chance, number) for _ in range(9)])
        what = f"series of {number} times, write transaction, {name}"
        holds.append(figure(what, took, "s", goal=goal, load=load()))
    log_progress(f"{name}: the reconciler")
    slurm = SlurmThatHasAll()
    with store.reading("bench") as reads:
        slurm.reservations = tuple(each for one in reads.in_states(PROMISED) for each in one.slurm_reservations())
    reconciler = ReservationReconciler(
        store, slurm, "bench", clock=lambda: NOW - 1, members=lambda _: (), ahead=2 * YEAR, interval=30
    )
    holds.append(figure(f"keeper pass, {name}", median(asyncio.run(passes(reconciler))), "s", goal=2, load=load()))
    return all(holds)


def booking_context(ledger: LedgerStore, calendar: Calendar) -> BookingContext:
    """Return a context with sufficient GPU time, and with rules."""
    with ledger.transaction("bench") as writes:
        amount = 500_000 * GPU_HOUR
        credit = Entry("grant:c", Kind.GRANT, "bench", "physics", amount, NOW - 1, actor="root", expires=NOW + MONTH)
        writes.append([Entry("grant:1", Kind.GRANT, "bench", "physics", amount, NOW - 1, actor="root"), credit])
    policy = Policy(QUOTAS, zone="Europe/Berlin")
    context = LedgerContext(ledger, "bench", policy=lambda: policy, factor=lambda *_: ONE, clock=lambda: NOW)
    rules = Rules(True, BookingRule(), (), policy.zone)
    return Bookings(calendar, rules=lambda *_: rules, ledger=ReservationLedger(context))._context


def write(store: ReservationStore, chance: random.Random) -> None:
    """Write all bookings, and keep none of them in memory, as a service does."""
    rows = list(generate_bookings(chance))
    with store.transaction("bench") as writes:
        for at in range(0, BOOKINGS, 500):
            writes.add(rows[at : at + 500])
    del rows
    gc.collect()
    gc.freeze()  # as the service does when it starts


def series(context: BookingContext, chance: random.Random, number: int) -> float:
    """Book a weekly (52) or daily class, and cancel it; return the seconds for which nobody else could write."""
    who = Booker(Person(f"tina{chance.random()}", ADA.groups), ("physics",))  # she has not booked anything yet
    nine = datetime(2026, 12, 1, 9) + timedelta(days=chance.randrange(0, 30))  # noqa: DTZ001
    often = "WEEKLY" if number <= 52 else "DAILY"
    rule = Recurrence("Europe/Berlin", nine, nine + timedelta(hours=2), f"FREQ={often};COUNT={number}")
    booking = replace(request(chance, 1, 4, 2), owner=who.user, times=())
    exclusive: list[float] = []
    began = context.store.transaction

    @contextlib.contextmanager
    def timed_exclusively(cluster: str) -> Iterator[Any]:
        with began(cluster) as writes:
            since = time.perf_counter()
            yield writes
        exclusive.append(time.perf_counter() - since)

    context.store.transaction = timed_exclusively  # type: ignore[method-assign]
    try:
        found = creation.book(context, who, booking, rule, "", False)
    finally:
        del context.store.transaction
    assert len(found) == number
    with context.writing() as writes:
        for each in found:
            writes.save(each.in_state(State.CANCELLED, NOW, actor="ada"))
            context.ledger.release_hold(writes.ledger, each, "cancelled", "ada")
    return exclusive[0]


async def passes(reconciler: ReservationReconciler) -> list[float]:
    """Return the seconds of five passes."""
    found = []
    for _ in range(5):
        began = time.perf_counter()
        await reconciler.once()
        found.append(time.perf_counter() - began)
    return found


def report_p99(name: str, what: str, times: list[float], goal: float) -> bool:
    more = {"median": round(median(times) or 0, 2), "load": load()}
    return figure(f"{what} p99, {name}", percentile(times, 0.99), "ms", goal=goal, **more)


def main() -> int:
    kinds = sys.argv[1:] or ["sqlite", "postgresql"]
    holds = []
    if "sqlite" in kinds:
        with tempfile.TemporaryDirectory() as folder:
            holds.append(measure("sqlite", f"sqlite:///{folder}/carme.sqlite"))
    if "postgresql" in kinds:
        with postgres() as server, server.database() as url:
            holds.append(measure("postgresql", url))
    return 0 if all(holds) else 1


if __name__ == "__main__":
    raise SystemExit(main())
