"""Texts of pages about reservations: times, GPUs, states and histories. Pure.

Times are given in epoch seconds and shown in the zone that the reader chose; amounts are given in milli-GPU-seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from zoneinfo import ZoneInfo

from carme_hub.domain import wording
from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import HOLDING, Kind, Reservation, State
from carme_hub.domain.quotas.windows import midnight

#: Label of a state, and Bootstrap's colour for it; the colour adds no information.
BADGES = {
    State.PENDING: ("Waits for approval", "warning"),
    State.CONFIRMED: ("Confirmed", "primary"),
    State.ACTIVE: ("Now", "success"),
    State.ENDED: ("Over", "secondary"),
    State.CANCELLED: ("Cancelled", "secondary"),
    State.RELEASED: ("Given back", "secondary"),
}
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


# -- times ------------------------------------------------------------------------------------------------------------


def local(at: float, zone: str) -> datetime:
    """Return a time on the wall clock of a zone."""
    return datetime.fromtimestamp(at, ZoneInfo(zone))


def local_midnight(day: str, zone: str) -> float:
    """Return when a day like 2026-11-24 begins in a zone; raise ``ValueError`` if it is not a day."""
    try:
        return midnight(date.fromisoformat(day), zone)
    except OverflowError as error:
        raise ValueError(day) from error


def day(when: datetime, now: datetime) -> str:
    """Return "Tuesday 24 November", with the year if it is not this one."""
    said = wording.day(when)
    return f"{_WEEKDAYS[when.weekday()]} {said if when.year != now.year else said.rsplit(' ', 1)[0]}"


def span(period: Period, zone: str, now: float) -> str:
    """Return "Tuesday 24 November, 09:00–11:00", or both days if it ends on another."""
    start, end, today = local(period.start, zone), local(period.end, zone), local(now, zone)
    if start.date() == end.date() or (f"{end:%H:%M}" == "00:00" and period.length <= 86_400):
        return f"{day(start, today)}, {start:%H:%M}–{end:%H:%M}".replace("–00:00", "–24:00")
    return f"{day(start, today)}, {start:%H:%M} – {day(end, today)}, {end:%H:%M}"


def short_span(period: Period, zone: str, now: float) -> str:
    """Return the same for buttons, with only the weekday if that is unambiguous."""
    start, end = local(period.start, zone), local(period.end, zone)
    if 0 <= (start.date() - local(now, zone).date()).days < 7 and start.date() == end.date():
        return f"{_WEEKDAYS[start.weekday()]} {start:%H:%M}–{end:%H:%M}"
    return span(period, zone, now)


def clock(at: float, zone: str, now: float) -> str:
    """Return "on Tuesday 24 November at 09:00", or "today at 09:00"."""
    return wording.moment(at, now, zone)


def length(period: Period) -> str:
    """Return "2 h"."""
    return wording.duration(period.length)


# -- GPUs -------------------------------------------------------------------------------------------------------------


def counted(count: int, type: str) -> str:
    """Return "8 a100", and "7 × 1g.10gb", since two numbers in a row look like one."""
    return f"{count} × {type}" if type[:1].isdigit() else f"{count} {type}"


def counted_all(by_type: Mapping[str, int]) -> str:
    """Return "1 l4 and 4 a100"."""
    parts = [counted(count, type) for type, count in by_type.items()]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)


def need(wanted: Need) -> str:
    """Return "4 seats with 1 a100 each", "8 a100" or "2 whole a100 nodes"."""
    if not wanted.gpus:
        return f"{wanted.seats} whole {wanted.type} nodes" if wanted.seats > 1 else f"a whole {wanted.type} node"
    if wanted.seats > 1:
        return f"{wanted.seats} seats with {counted(wanted.gpus, wanted.type)} each"
    return counted(wanted.gpus, wanted.type)


def where(reservation: Reservation) -> str:
    """Return "gpu1 (4 a100), gpu2 (the whole node)"; "" without places."""
    if reservation.license and reservation.places:
        return f"{counted(reservation.own_type_gpus, reservation.need.type)}, on whichever nodes have them"
    return ", ".join(
        f"{place.node} ({'the whole node' if place.whole else counted(place.count, place.type)})"
        for place in reservation.places
    )


def whom(reservation: Reservation) -> str:
    """Return the users of a reservation, as the end of a sentence."""
    if reservation.kind is Kind.MAINTENANCE:
        return "nobody’s jobs run there"
    if reservation.everybody:
        return f"everybody of the account {reservation.account}"
    others = sorted(reservation.users - {reservation.owner})
    named = [reservation.owner, *others]
    if reservation.group:
        named.append(f"the members of the group {reservation.group}")
    return " and ".join([", ".join(named[:-1]), named[-1]]) if named[1:] else f"{reservation.owner} alone"


# -- states -----------------------------------------------------------------------------------------------------------


def badge(reservation: Reservation) -> tuple[str, str]:
    """Return the label of its state, and the label's colour."""
    if reservation.state is State.DRAFT:
        return ("On the waitlist", "info") if reservation.waits else ("Draft", "secondary")
    if reservation.kind is Kind.MAINTENANCE and reservation.state is State.CONFIRMED:
        return "Announced", "primary"
    return BADGES[reservation.state]


def state_sentence(reservation: Reservation, zone: str, now: float) -> str:
    """Return its state as a sentence for its owner."""
    over = clock(reservation.ended or reservation.period.end, zone, now)
    why = f" {_sentence(reservation.reason)}" if reservation.reason else ""
    match reservation.state:
        case State.DRAFT:
            return "It is booked automatically when GPUs become free." if reservation.waits else "A draft."
        case State.PENDING:
            return "It waits for an administrator’s approval. Its GPUs are kept meanwhile."
        case State.CONFIRMED if reservation.period.start > now:
            return f"It begins {clock(reservation.period.start, zone, now)}."
        case State.CONFIRMED | State.ACTIVE:
            until = clock(reservation.period.end, zone, now)
            used = "" if reservation.used else " Nobody has used it yet."
            return f"It is on now, until {until.removeprefix('today at ').removeprefix('on ')}.{used}"
        case State.ENDED:
            return f"It ended {over}{'' if reservation.used else ', and nobody used it'}."
        case State.CANCELLED:
            return f"Cancelled {over} by {reservation.actor or 'the service'}.{why}"
    return f"Given back {over} by {reservation.actor or 'the service'}.{why}"


def _sentence(text: str) -> str:
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text[-1:] in '.!?' else '.'}"


def history(reservation: Reservation, zone: str, now: float) -> list[tuple[str, str]]:
    """Return the known events of a reservation: (when, what), oldest first."""
    found = [(reservation.created, f"Booked by {reservation.owner}.")]
    if reservation.version > 1 and reservation.changed > reservation.created and reservation.state in HOLDING:
        what = "Became active." if reservation.state is State.ACTIVE else "Changed"
        by = f" by {reservation.actor}." if reservation.actor and what == "Changed" else ""
        why = f" {_sentence(reservation.reason)}" if reservation.reason else ""
        found.append((reservation.changed, f"{what}{by or ('.' if what == 'Changed' else '')}{why}"))
    if reservation.used:
        found.append((reservation.used, "Its first job started."))
    if reservation.state in (State.CANCELLED, State.RELEASED):
        found.append((reservation.ended, state_sentence(reservation, zone, now)))
    if reservation.state is State.ENDED:
        found.append((reservation.period.end, "Ended."))
    return [(_stamp(at, zone), what) for at, what in sorted(found, key=lambda each: each[0])]


def _stamp(at: float, zone: str) -> str:
    when = local(at, zone)
    month = wording.day(when).split(" ")[1][:3]
    return f"{when.day} {month} {when.year}, {when:%H:%M}"
