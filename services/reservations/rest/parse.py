"""Conversion of REST requests to the use cases' arguments: times, recurrences and booking requests."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from carme_hub.booking.calendar import BookingRequest, RequestedTime
from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.recurrence import Recurrence, occurrences
from carme_hub.services.reservations.rest.models import AskIn
from carme_hub.services.rest import Unprocessable

_BACKWARDS = "It ends before it starts. Give a later end."


def request_of(asked: AskIn, owner: str, account: str) -> tuple[BookingRequest, Recurrence | None]:
    """Return the booking request, and its recurrence if it has a rule or times on the wall clock.

    Raises:
        Unprocessable: the times are not valid; the message says what to write.
    """
    zone_of(asked.zone)
    times, recurrence = [], None
    if isinstance(asked.start, int) and isinstance(asked.end, int) and not asked.rule:
        times = [RequestedTime(period_of(asked.start, asked.end, asked.zone))]
    else:
        start, end = wall(asked.start, asked.zone), wall(asked.end, asked.zone)
        without = frozenset(wall(each, asked.zone).isoformat() for each in asked.without)
        recurrence = Recurrence(asked.zone, start, end, asked.rule, without)
    request = BookingRequest(
        owner=owner,
        account=account,
        title=asked.title.strip(),
        need=Need(asked.gpu_type, asked.gpus, asked.seats),
        times=times,
        users=frozenset(asked.users),
        group=asked.group,
        everybody=asked.everybody,
        profile=asked.profile,
        zone=asked.zone,
    )
    return request, recurrence


def period_of(start: int | str, end: int | str, zone: str) -> Period:
    """Return the period between two UTC times, or two times on the wall clock of a zone.

    Raises:
        Unprocessable: it ends before it starts, or the zone or a day does not exist.
    """
    if isinstance(start, int) and isinstance(end, int):
        if end <= start:
            raise Unprocessable(_BACKWARDS)
        return Period(start, end)
    zone_of(zone)
    (one,) = occurrences(Recurrence(zone, wall(start, zone), wall(end, zone)))
    return one.period


def moment_of(at: int | str, zone: str) -> int:
    """Return a UTC time; of a time on the wall clock that comes twice the first."""
    return at if isinstance(at, int) else int(wall(at, zone).replace(tzinfo=zone_of(zone), fold=0).timestamp())


def wall(at: int | str, zone: str) -> datetime:
    """Return a time on the wall clock of a zone, without an offset."""
    if isinstance(at, int):
        return datetime.fromtimestamp(at, zone_of(zone)).replace(tzinfo=None)
    try:
        return datetime.fromisoformat(at)
    except ValueError as error:
        raise Unprocessable(f"There is no {at}: that month is shorter. Write a day that is in the calendar.") from error


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Unprocessable(f"{name!r} is not a time zone. Zones have names such as Europe/Berlin.") from error
