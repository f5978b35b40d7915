"""Bookings that come again: a rule of RFC 5545 on the wall clock of a zone, expanded to periods in UTC. Pure.

Every Tuesday at nine is nine on the wall, whatever the clocks did in between, and ends at eleven on the wall. A time
that clocks skip is taken with the offset from before the gap, and of one that comes twice the first counts (RFC 5545,
section 3.3.5); what that does to an occurrence is said in its note. Slurm's own DAILY and WEEKLY flags add 24 hours and
know no wall clock, so each occurrence becomes a reservation of its own. What a rule says is understood in ``rrule``.
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

#: The most occurrences of one rule: every day of a year.
MAX_OCCURRENCES = 366
#: Days from the first occurrence to the last at most: three years.
MAX_DAYS = 3 * 366
#: Years in which it may lie: near the ends of the calendar days have no neighbours to count with.
_YEARS = range(1970, 9000)
_UNTIL = re.compile(r"(\d{8})(?:T(\d{6})(Z?))?")


class BadRecurrence(Refused):
    """A rule that cannot be followed; the message says what to write."""

    reason = "bad-recurrence"


@dataclass(frozen=True, slots=True)
class Recurrence:
    """When something takes place.

    Attributes:
        zone: IANA zone of the wall clock. start, end: of the first occurrence, on that clock, without an offset.
        rule: an RRULE of RFC 5545 without its name, "" for once. It has a COUNT or an UNTIL.
        without: starts on the wall, as ISO 8601, of occurrences that are left out (EXDATE).
        moved: by such a start, the period at which that occurrence is instead (RECURRENCE-ID).
    """

    zone: str
    start: datetime
    end: datetime
    rule: str = ""
    without: frozenset[str] = frozenset()
    moved: Mapping[str, Period] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One time of several.

    Attributes:
        id: its start on the wall by the rule, as ISO 8601; it stays when the occurrence is moved.
        note: a sentence where clocks change it, "" otherwise.
    """

    id: str
    period: Period
    note: str = ""


def occurrences(recurrence: Recurrence, limit: int = MAX_OCCURRENCES) -> tuple[Occurrence, ...]:
    """Return all occurrences, by their start.

    Raises:
        BadRecurrence: the zone or the rule cannot be understood, it never ends, or there are more than ``most``.
    """
    try:
        zone = ZoneInfo(recurrence.zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadRecurrence(f"{recurrence.zone!r} is no time zone. Zones are named like Europe/Berlin.") from error
    if recurrence.start.tzinfo or recurrence.end.tzinfo:
        raise BadRecurrence(
            "Give start and end as times on the wall, without an offset; the zone is named beside them."
        )
    for at in (recurrence.start, recurrence.end):
        if at.year not in _YEARS:
            raise BadRecurrence(f"Nothing takes place in the year {at.year} here. Give another day.")
    if recurrence.end <= recurrence.start:
        raise BadRecurrence("It ends before it starts. Give a later end.")
    found = []
    for number, start in enumerate(_starts(recurrence, zone)):
        if number >= limit:
            raise BadRecurrence(f"That comes more than {limit} times. Let it end sooner, or book it in parts.")
        id = start.isoformat()
        if id in recurrence.without:
            continue
        if id in recurrence.moved:
            found.append(Occurrence(id, recurrence.moved[id]))
        else:
            found.append(_occurrence(start, start + (recurrence.end - recurrence.start), zone))
    return tuple(sorted(found, key=lambda each: (each.period, each.id)))


def _starts(recurrence: Recurrence, zone: ZoneInfo) -> Iterator[datetime]:
    """Yield the starts on the wall."""
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
        raise BadRecurrence(f"It goes on for more than {MAX_DAYS} days. Let it end sooner.")
    found = 0
    for start in islice(days(rule, recurrence.start, until or last), count):
        yield start
        found += 1
    if count is not None and found < count:
        raise BadRecurrence(f"In {MAX_DAYS} days it comes {found} times, not {count}. Take a smaller COUNT.")


def _count(value: str) -> int:
    if not value.isdecimal() or not value.isascii() or not 0 < int(value) <= MAX_OCCURRENCES:
        raise BadRecurrence(f"COUNT={value} is no number of times from 1 to {MAX_OCCURRENCES}.")
    return int(value)


def _until(value: str, zone: ZoneInfo) -> datetime:
    """Return the last moment on the wall; a date is within it to its end."""
    matched = _UNTIL.fullmatch(value)
    try:
        if matched is None:
            raise ValueError(value)
        at = datetime.fromisoformat(f"{matched[1]}T{matched[2] or '235959'}")
        return at.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None) if matched[3] else at
    except (ValueError, OverflowError) as error:
        raise BadRecurrence(f"UNTIL={value} is no day. Write it like UNTIL=20270212.") from error


def _occurrence(start: datetime, end: datetime, zone: ZoneInfo) -> Occurrence:
    """Return what takes place from one time on the wall to another."""
    began, over = _moment(start, zone), _moment(end, zone)
    asked = int((end - start).total_seconds())
    words = []
    if _skipped(start, zone):
        there = datetime.fromtimestamp(began, zone)
        words.append(f"Clocks skip {start:%H:%M} on that day; it starts at {there:%H:%M}.")
        if over <= began:  # both in the gap, or the end just after it: keep its length
            over = began + asked
    elif _ambiguous(start, zone):
        words.append(f"{start:%H:%M} comes twice on that day; the first one counts.")
    if over - began != asked and not _skipped(start, zone):
        more = timedelta(seconds=abs(over - began - asked))
        words.append(f"Clocks change in it: it is {_length(more)} {'longer' if over - began > asked else 'shorter'}.")
    return Occurrence(start.isoformat(), Period(began, over), " ".join(words))


def _moment(wall: datetime, zone: ZoneInfo) -> int:
    return int(wall.replace(tzinfo=zone, fold=0).timestamp())


def _skipped(wall: datetime, zone: ZoneInfo) -> bool:
    """Return whether clocks jump over it: then no moment shows it."""
    return datetime.fromtimestamp(_moment(wall, zone), zone).replace(tzinfo=None, fold=0) != wall


def _ambiguous(wall: datetime, zone: ZoneInfo) -> bool:
    first, second = (wall.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    return first < second and not _skipped(wall, zone)


def _length(much: timedelta) -> str:
    minutes = int(much.total_seconds()) // 60
    return f"{minutes // 60} h" if minutes % 60 == 0 else f"{minutes} min"
