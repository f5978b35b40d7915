"""The times of one booking: which of them are meant, and the same step on the wall clock for all of them.

Who moves a class from nine to ten moves each of its times from nine to ten, whatever clocks did in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.recurrence import BadRecurrence, Recurrence, occurrences
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.store.reservations import ReservationReads

from .context import BadBooking

#: One time alone, it and all that are later, or all that are not over.
Which = Literal["one", "later", "all"]
#: States in which nothing is to be done any more.
FINAL = frozenset({State.ENDED, State.CANCELLED, State.RELEASED})


def chosen(reads: ReservationReads, one: Reservation, which: Which) -> list[Reservation]:
    """Return the reservations that are meant, by start; of the others only those that are not over."""
    if which == "one" or not one.series:
        return [one]
    first = one.period.start if which == "later" else 0
    return [
        each
        for each in reads.of_series(one.series)
        if each.id == one.id or (each.state not in FINAL and each.period.start >= first)
    ]


@dataclass(frozen=True, slots=True)
class Step:
    """By how much a start and an end are moved on the wall."""

    start: timedelta
    end: timedelta


def step(one: Reservation, period: Period) -> Step:
    """Return how far a reservation is moved by giving it this period."""
    zone = ZoneInfo(one.zone)
    return Step(_wall(period.start, zone) - _start(one, zone), _wall(period.end, zone) - _wall(one.period.end, zone))


def stepped(each: Reservation, by: Step) -> Period:
    """Return the period of a reservation that is moved as far; an edge that is not moved stays to the second."""
    zone = ZoneInfo(each.zone)
    start, end = _start(each, zone) + by.start, _wall(each.period.end, zone) + by.end
    try:
        (moved,) = occurrences(Recurrence(each.zone, start, end))
        return Period(
            moved.period.start if by.start else each.period.start, moved.period.end if by.end else each.period.end
        )
    except (BadRecurrence, ValueError, OverflowError) as error:
        raise BadBooking(f"{start:%d.%m.%Y %H:%M}: it would end before it starts.") from error


def _start(each: Reservation, zone: ZoneInfo) -> datetime:
    """Return its start on the wall: that of the rule, which clocks may have skipped, unless it was moved since."""
    if each.occurrence:
        start = datetime.fromisoformat(each.occurrence)
        if int(start.replace(tzinfo=zone).timestamp()) == each.period.start:
            return start
    return _wall(each.period.start, zone)


def _wall(at: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None, fold=0)
