"""Booking, a month of the calendar and the keeper's pass with 10,000 bookings over a year on 1,000 nodes.

``python benchmarks/bookings.py [sqlite] [postgresql]`` (two minutes for both). There is no peer: no open portal on
Slurm keeps a calendar. Commits wait for the disk on both. It is not called ``calendar.py``: what runs in this folder
would take it for the standard library's.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # the PostgreSQL of the tests

from measure import figure, load, median, percentile, say  # noqa: E402
from rig.postgres import postgres  # noqa: E402

from carme_hub.booking.calendar import Calendar, SlotTaken, Supply, Time, Wish  # noqa: E402
from carme_hub.booking.keeper import ReservationKeeper  # noqa: E402
from carme_hub.domain.capacity import Capacity, Need, Place, Spot  # noqa: E402
from carme_hub.domain.periods import Period  # noqa: E402
from carme_hub.domain.reservations import PROMISED, Reservation, State  # noqa: E402
from carme_hub.domain.slurm_reservations import SlurmReservation, Step  # noqa: E402
from carme_hub.store.engine import CarmeStore  # noqa: E402
from carme_hub.store.ledger import LedgerStore  # noqa: E402
from carme_hub.store.reservations import ReservationStore  # noqa: E402

BOOKINGS, NODES, TIMES = 10_000, 1000, 200
NOW, HOUR = 1_795_000_000, 3600
YEAR, MONTH = 365 * 24 * HOUR, 30 * 24 * HOUR
TYPES = ("a100", "h100", "l40s")
SPOTS = tuple(Spot(f"n{n:04}", TYPES[n % 3], 8 if n % 3 == 0 else 4, 8) for n in range(NODES))
TOTAL = {type: sum(spot.count for spot in SPOTS if spot.type == type) for type in TYPES}


class SlurmThatHasAll:
    """A Slurm that has what the calendar promises, as a parsed answer: its own time is scontrol's, not ours."""

    def __init__(self) -> None:
        self.there: tuple[SlurmReservation, ...] = ()

    async def show(self) -> tuple[SlurmReservation, ...]:
        """Return all."""
        return self.there

    async def take(self, step: Step) -> str:
        """Take nothing: none is due."""
        raise AssertionError(step)


def booked(chance: random.Random) -> Iterator[Reservation]:
    """Yield a year of bookings, each of up to 20 nodes for up to three days, on 1,000 nodes."""
    for number in range(BOOKINGS):
        start = NOW + chance.randrange(0, YEAR // HOUR) * HOUR
        period = Period(start, start + chance.choice([2, 4, 8, 24, 72]) * HOUR)
        type = chance.choice(TYPES)
        ours = chance.sample([spot for spot in SPOTS if spot.type == type], chance.choice([1, 1, 2, 5, 20]))
        places = tuple(Place(spot.node, type, spot.count, 1, cpus=spot.count * 8) for spot in ours)
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
    """Return the milliseconds of each time."""
    found = []
    for _ in range(TIMES):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1000)
    return found


def wish(chance: random.Random, gpus: int, seats: int, hours: int) -> Wish:
    start = NOW + chance.randrange(0, YEAR // HOUR) * HOUR
    return Wish("ada", "physics", "Work", Need("a100", gpus, seats), [Time(Period(start, start + hours * HOUR))])


def measure(name: str, url: str) -> bool:
    """Print the figures of one database and return whether all hold."""
    chance = random.Random(1)
    store = ReservationStore(LedgerStore(CarmeStore(url=url).open()))
    calendar = Calendar(store, "bench", lambda: Supply(SPOTS), lambda: NOW)
    say(f"{name}: writing {BOOKINGS} bookings")
    rows = list(booked(chance))
    with store.transaction("bench") as writes:
        for at in range(0, BOOKINGS, 500):
            writes.add(rows[at : at + 500])

    def book() -> None:
        calendar._book(wish(chance, 2, 4, 2), State.CONFIRMED)

    def conflict() -> None:
        with contextlib.suppress(SlotTaken):
            calendar._book(wish(chance, 8, TOTAL["a100"] // 8, 24), State.CONFIRMED)
            raise AssertionError("nothing was in the way")

    def month() -> None:
        start = NOW + chance.randrange(0, YEAR - MONTH)
        period = Period(start, start + MONTH)
        with store.reading("bench") as reads:
            there = reads.overlapping(period)
        capacity = Capacity(SPOTS, [taken for each in there for taken in each.taken()])
        for type in TYPES:
            capacity.band(type, period)

    say(f"{name}: booking")
    holds = [shown(name, "booking", timed(book), 50)]
    say(f"{name}: conflicts with alternatives")
    holds.append(shown(name, "conflict with alternatives", timed(conflict), 50))
    say(f"{name}: months")
    holds.append(shown(name, "month of the calendar", timed(month), 150))
    say(f"{name}: the keeper")
    slurm = SlurmThatHasAll()
    with store.reading("bench") as reads:
        slurm.there = tuple(each for one in reads.in_states(PROMISED) for each in one.in_slurm())
    keeper = ReservationKeeper(
        store, slurm, "bench", clock=lambda: NOW - 1, members=lambda _: (), ahead=2 * YEAR, every=30
    )
    times = []
    for _ in range(5):
        began = time.perf_counter()
        asyncio.run(keeper.once())
        times.append(time.perf_counter() - began)
    holds.append(figure(f"keeper pass, {name}", median(times), "s", goal=2, load=load()))
    return all(holds)


def shown(name: str, what: str, times: list[float], goal: float) -> bool:
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
