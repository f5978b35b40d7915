"""Summary of the next hours in sentences, for people who cannot see the calendar, and for phones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from carme_hub.booking.bookings import ReservationView
from carme_hub.domain import wording
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Kind, by_type
from carme_hub.services.reservations.application.wording import counted, counted_all

#: Bookings that are listed one by one at most.
MAX_SENTENCES = 20

Band = Sequence[tuple[Period, int]]


def sentences(
    views: Sequence[ReservationView], free: Mapping[str, Band], totals: Mapping[str, int], now: float, zone: str
) -> list[str]:
    """Return free GPUs and how they change, then the visitor's bookings, then the number of others' bookings.

    Args:
        views: the reservations of that time. free, totals: GPUs by type.
    """
    found = [_free(type, band, totals.get(type, 0), now, zone) for type, band in sorted(free.items()) if band]
    mine = [each for each in views if each.mine and each.reservation is not None]
    found += [_mine(each, now, zone) for each in mine[:MAX_SENTENCES]]
    if len(mine) > MAX_SENTENCES:
        found.append(f"And {len(mine) - MAX_SENTENCES} more of yours.")
    for each in views:
        if each.kind is Kind.MAINTENANCE:
            nodes = ", ".join(place.node for place in each.places)
            found.append(f"Maintenance of {nodes} {_from_to(each.period, now, zone)}.")
    others = sum(not each.mine and each.kind is Kind.BOOKING for each in views)
    if others:
        found.append(f"Others have {others} booking{'' if others == 1 else 's'}.")
    if not mine:
        found.append("You have no booking in this time.")
    return found


def _free(type: str, band: Band, total: int, now: float, zone: str) -> str:
    first = band[0][1]
    start = f"{type}: {_count(first, total)} {'is' if first == 1 else 'are'} free now"
    later = [(period, level) for period, level in band[1:] if level != first]
    if not later:
        return f"{start}, and stay so." if first != 1 else f"{start}, and stays so."
    least = min(later, key=lambda part: (part[1], part[0].start))
    most = max(later, key=lambda part: (part[1], -part[0].start))
    told = [part for part in (least, most) if part[1] != first]
    told = sorted({part[0].start: part for part in told}.values(), key=lambda part: part[0].start)
    changes = (f"{_count(level, total)} {wording.moment(period.start, now, zone)}" for period, level in told)
    return f"{start}; {', and '.join(changes)}."


def _count(free: int, total: int) -> str:
    return f"{free or 'None'} of {total}"


def _mine(view: ReservationView, now: float, zone: str) -> str:
    one = view.reservation
    title = one.title if one is not None else ""
    gpus = counted_all(by_type(view.places)) or counted(view.gpus, view.type)
    if view.period.start <= now:
        return f"“{title}” has {gpus} until {_clock(view.period.end, now, zone)}."
    return f"“{title}” has {gpus} {_from_to(view.period, now, zone)}."


def _from_to(period: Period, now: float, zone: str) -> str:
    if period.start <= now:
        return f"until {_clock(period.end, now, zone)}"
    return f"from {_clock(period.start, now, zone)} to {_clock(period.end, now, zone)}"


def _clock(at: float, now: float, zone: str) -> str:
    return wording.moment(at, now, zone).removeprefix("on ").removeprefix("today at ")
