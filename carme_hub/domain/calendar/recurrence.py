"""Recurring bookings: a rule of RFC 5545 on the wall clock of a time zone, expanded to periods in UTC. Pure.

"Every Tuesday from 9 to 11" keeps its wall-clock times across changes of daylight saving time. A time that the clocks
skip uses the offset from before the gap, and of a time that occurs twice the first counts (RFC 5545, section 3.3.5);
the occurrence's note explains the effect. Slurm's own DAILY and WEEKLY flags add 24 hours and ignore the wall clock, so
each occurrence becomes a reservation of its own. ``rrule`` parses the rules; booking and its pages call
``occurrences``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from carme_hub.errors import Refused

from .periods import Period
from .rrule import BadRule, days, parse

#: How many occurrences one rule may have: every day of a year.
MAX_OCCURRENCES = 366
#: How many days may lie between the first occurrence and the last: three years.
MAX_DAYS = 3 * 366
#: Allowed years: near the ends of the calendar, date arithmetic overflows.
_YEARS = range(1970, 9000)
_UNTIL = re.compile(r"(\d{8})(?:T(\d{6})(Z?))?")


class BadRecurrence(Refused):
    """An invalid rule or time; the message says what to write."""

    reason = "bad-recurrence"


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The times of a booking.

    Attributes:
        zone: IANA zone of the wall clock. start, end: of the first occurrence, wall-clock times without an offset.
        rule: an RRULE of RFC 5545 without its name, "" for a single occurrence. It has a COUNT or an UNTIL.
        without: wall-clock starts, as ISO 8601, of excluded occurrences (EXDATE).
        moved: new periods of moved occurrences by their original wall-clock start (RECURRENCE-ID).
    """

    zone: str
    start: datetime
    end: datetime
    rule: str = ""
    without: frozenset[str] = frozenset()
    moved: Mapping[str, Period] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a recurrence.

    Attributes:
        id: the wall-clock start by the rule, as ISO 8601; it stays the same when the occurrence is moved.
        note: a sentence if a clock change affects it, "" otherwise.
    """

    id: str
    period: Period
    note: str = ""


def occurrences(recurrence: Recurrence, limit: int = MAX_OCCURRENCES) -> tuple[Occurrence, ...]:
    """Return all occurrences, by their start.

    Raises:
        BadRecurrence: the zone or the rule is invalid, the rule never ends, or has more than ``limit`` occurrences.
    """
    try:
        zone = ZoneInfo(recurrence.zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadRecurrence(f"{recurrence.zone!r} is not a time zone. Zones are named like Europe/Berlin.") from error
    if recurrence.start.tzinfo or recurrence.end.tzinfo:
        raise BadRecurrence("Give start and end as local times without an offset; the time zone is a separate value.")
    for at in (recurrence.start, recurrence.end):
        if at.year not in _YEARS:
            raise BadRecurrence(f"Bookings in the year {at.year} are not possible. Give another day.")
    if recurrence.end <= recurrence.start:
        raise BadRecurrence("It ends before it starts. Give a later end.")
    found = []
    for number, start in enumerate(_starts(recurrence, zone)):
        if number >= limit:
            raise BadRecurrence(f"That is more than {limit} occurrences. Choose an earlier end, or book it in parts.")
        id = start.isoformat()
        if id in recurrence.without:
            continue
        if id in recurrence.moved:
            found.append(Occurrence(id, recurrence.moved[id]))
        else:
            found.append(_occurrence(start, start + (recurrence.end - recurrence.start), zone))
    return tuple(sorted(found, key=lambda each: (each.period, each.id)))


def _starts(recurrence: Recurrence, zone: ZoneInfo) -> Iterator[datetime]:
    """Yield the wall-clock starts."""
    if not recurrence.rule:
        yield recurrence.start
        return
    try:
        rule = parse(recurrence.rule)
    except BadRule as error:
        raise BadRecurrence(str(error)) from error
    last = recurrence.start + timedelta(days=MAX_DAYS)
    until = _until(rule.until, zone) if rule.until else None
    count = _count(rule.count) if rule.count else None
    if until is not None and until > last:
        raise BadRecurrence(f"It lasts more than {MAX_DAYS} days. Choose an earlier end.")
    found = 0
    for start in islice(days(rule, recurrence.start, until or last), count):
        yield start
        found += 1
    if count is not None and found < count:
        raise BadRecurrence(f"It occurs {found} times in {MAX_DAYS} days, not {count} times. Choose a smaller COUNT.")


def _count(value: str) -> int:
    if not value.isdecimal() or not value.isascii() or not 0 < int(value) <= MAX_OCCURRENCES:
        raise BadRecurrence(f"COUNT={value} is not a number from 1 to {MAX_OCCURRENCES}.")
    return int(value)


def _until(value: str, zone: ZoneInfo) -> datetime:
    """Return the last wall-clock time; a date includes all of its day."""
    matched = _UNTIL.fullmatch(value)
    try:
        if matched is None:
            raise ValueError(value)
        at = datetime.fromisoformat(f"{matched[1]}T{matched[2] or '235959'}")
        return at.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None) if matched[3] else at
    except (ValueError, OverflowError) as error:
        raise BadRecurrence(f"UNTIL={value} is not a date. Write it like UNTIL=20270212.") from error


def _occurrence(start: datetime, end: datetime, zone: ZoneInfo) -> Occurrence:
    """Return the occurrence from one wall-clock time to another."""
    began, over = _moment(start, zone), _moment(end, zone)
    asked = int((end - start).total_seconds())
    words = []
    if _skipped(start, zone):
        there = datetime.fromtimestamp(began, zone)
        words.append(f"Clocks skip {start:%H:%M} on that day; it starts at {there:%H:%M}.")
        if over <= began:  # both are in the gap, or the end is just after it: keep the length
            over = began + asked
    elif _ambiguous(start, zone):
        words.append(f"{start:%H:%M} occurs twice on that day; the first one counts.")
    if over - began != asked and not _skipped(start, zone):
        more = timedelta(seconds=abs(over - began - asked))
        change = "longer" if over - began > asked else "shorter"
        words.append(f"Clocks change during it: it is {_length(more)} {change}.")
    return Occurrence(start.isoformat(), Period(began, over), " ".join(words))


def _moment(wall: datetime, zone: ZoneInfo) -> int:
    return int(wall.replace(tzinfo=zone, fold=0).timestamp())


def _skipped(wall: datetime, zone: ZoneInfo) -> bool:
    """Return whether the clocks skip this time."""
    return datetime.fromtimestamp(_moment(wall, zone), zone).replace(tzinfo=None, fold=0) != wall


def _ambiguous(wall: datetime, zone: ZoneInfo) -> bool:
    first, second = (wall.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    return first < second and not _skipped(wall, zone)


def _length(much: timedelta) -> str:
    minutes = int(much.total_seconds()) // 60
    return f"{minutes // 60} h" if minutes % 60 == 0 else f"{minutes} min"
