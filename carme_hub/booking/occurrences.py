"""Occurrences of a recurring booking: selection of those in scope, and the same shift on the wall clock for all.

A class that is moved from nine to ten is moved from nine to ten on each day, also across clock changes.
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

#: One reservation, it and all later ones, or all that are not over.
SeriesScope = Literal["one", "later", "all"]
#: States after which a reservation does not change.
FINAL = frozenset({State.ENDED, State.CANCELLED, State.RELEASED})


def in_scope(reads: ReservationReads, one: Reservation, which: SeriesScope) -> list[Reservation]:
    """Return the reservations in scope, by start; ``one`` itself, and of the others those that are not over."""
    if which == "one" or not one.series:
        return [one]
    first = one.period.start if which == "later" else 0
    return [
        each
        for each in reads.of_series(one.series)
        if each.id == one.id or (each.state not in FINAL and each.period.start >= first)
    ]


@dataclass(frozen=True, slots=True)
class WallClockShift:
    """The shift of start and end on the wall clock."""

    start: timedelta
    end: timedelta


def shift_to(one: Reservation, period: Period) -> WallClockShift:
    """Return the shift that gives a reservation this period."""
    zone = ZoneInfo(one.zone)
    return WallClockShift(
        _wall(period.start, zone) - _start(one, zone), _wall(period.end, zone) - _wall(one.period.end, zone)
    )


def shifted(each: Reservation, by: WallClockShift) -> Period:
    """Return the shifted period of a reservation; a start or end that is not shifted stays exactly the same."""
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
    """Return its start on the wall clock: the rule's, which a clock change may have skipped, unless it was moved."""
    if each.occurrence:
        start = datetime.fromisoformat(each.occurrence)
        if int(start.replace(tzinfo=zone).timestamp()) == each.period.start:
            return start
    return _wall(each.period.start, zone)


def _wall(at: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None, fold=0)
