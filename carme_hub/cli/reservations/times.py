"""Times of bookings as users write them, in the user's time zone: "2026-12-01 09:00", "thu 18:00", "11:00".

A time without an offset is wall time in the zone, and is sent as such: the calendar resolves changes of the clock. A
time with an offset, and "now", is a moment.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from carme_hub.cli.base import UsageError
from carme_hub.domain.quotas.durations import read_seconds

_TIME_PATTERN = re.compile(r"(?P<day>\d{4}-\d\d-\d\d|[a-z]+)?(?:(?:^|[ t])\s*(?P<time>\d{1,2}:\d\d(?::\d\d)?))?")
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_EXAMPLES = 'write 2026-12-01 09:00, "tomorrow 9:00", "thu 18:00", or 18:00'
_DAY = timedelta(days=1)


def local_zone() -> str:
    """Return the IANA zone of the user (``TZ``) or this machine; "" where neither is set."""
    named = [os.environ.get("TZ", "").removeprefix(":"), str(Path("/etc/localtime").resolve())]
    for name in (each.rpartition("zoneinfo/")[2] for each in named if each):
        try:
            return ZoneInfo(name).key
        except (ZoneInfoNotFoundError, ValueError, OSError):
            continue
    return ""


def read_zone(name: str) -> ZoneInfo:
    """Return a zone by its name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(f"{name!r} is not a time zone; zones have names such as Europe/Berlin") from None


def read_time(text: str, zone: ZoneInfo, now: float, *, after: datetime | None = None) -> datetime:
    """Return wall time in the zone (naive), or a moment (aware) where the text has an offset.

    Args:
        after: the start, where the text is an end: a time without a day is on the day of the start, a day without a
            time is included (until its last midnight), and a weekday is the next one after the start. None for a
            start, which is read relative to now.
    """
    normalized = " ".join(text.split()).lower()
    if normalized == "now":
        return datetime.fromtimestamp(int(now), UTC)
    try:
        exact = datetime.fromisoformat(normalized.upper())
    except ValueError:
        exact = None
    if exact is not None and exact.tzinfo:
        return exact
    today = datetime.fromtimestamp(now, zone).replace(tzinfo=None)
    base = today if after is None else wall_time(after, zone)
    match = _TIME_PATTERN.fullmatch(normalized)
    try:
        if not normalized or match is None:
            raise ValueError(normalized)
        at = _time(match["time"]) if match["time"] else time_of_day()
        day = _day(match["day"] or "", today.date(), base, at if match["time"] else None)
        return datetime.combine(day, at) + (_DAY if after is not None and not match["time"] else timedelta())
    except (ValueError, OverflowError):
        raise UsageError(f"{text!r} is no time; {_EXAMPLES}") from None


def _time(text: str) -> time_of_day:
    return time_of_day.fromisoformat(text.rjust(5, "0") if text.count(":") == 1 else text.rjust(8, "0"))


def _day(word: str, today: date, base: datetime, at: time_of_day | None) -> date:
    """Return the day; for a weekday the first from ``base`` on whose time has not passed."""
    if not word:
        return base.date()
    if word in ("today", "tomorrow"):
        return today + (_DAY if word == "tomorrow" else timedelta())
    if word[0].isdigit():
        return date.fromisoformat(word)
    [number] = [number for number, name in enumerate(_WEEKDAYS) if len(word) >= 3 and name.startswith(word)]
    ahead = (number - base.weekday()) % 7
    return base.date() + timedelta(days=7 if ahead == 0 and at is not None and at <= base.time() else ahead)


def read_length(text: str) -> timedelta:
    """Return a length such as "2h" or "90 min"."""
    seconds = read_seconds(text)
    if not seconds or seconds.denominator != 1 or seconds > 10 * 366 * 86_400:
        raise UsageError(f"{text!r} is not a length; write 2h, 90min or 1d 12h")
    return timedelta(seconds=int(seconds))


def wall_time(at: datetime, zone: ZoneInfo) -> datetime:
    """Return the wall time in the zone."""
    return at.astimezone(zone).replace(tzinfo=None) if at.tzinfo else at


def moment(at: datetime, zone: ZoneInfo) -> int:
    """Return epoch seconds; of a wall time that occurs twice the first counts, as in the calendar."""
    return int((at if at.tzinfo else at.replace(tzinfo=zone)).timestamp())


def rest_time(at: datetime) -> str | int:
    """Return a time as the REST API takes it."""
    return int(at.timestamp()) if at.tzinfo else at.isoformat(timespec="seconds")


def command_time(at: int, zone: ZoneInfo) -> str:
    """Return a moment as text for ``read_time``, with its offset where the wall time is ambiguous."""
    local = datetime.fromtimestamp(at, zone)
    on_wall = local.replace(tzinfo=None, fold=0)
    return local_text(on_wall if moment(on_wall, zone) == at else local)


def local_text(at: datetime) -> str:
    """Return a time as text, with its offset where it has one."""
    return at.isoformat(sep=" ", timespec="seconds" if at.second else "minutes")


def span(start: int, end: int, zone: ZoneInfo) -> str:
    """Return "Tue 2026-12-01 09:00 to 11:00", with the day of the end where it differs."""
    first, last = (datetime.fromtimestamp(at, zone) for at in (start, end))
    day = "" if first.date() == last.date() else f"{last:%a %Y-%m-%d} "
    return f"{first:%a %Y-%m-%d} {clock(first)} to {day}{clock(last)}"


def clock(at: datetime) -> str:
    """Return "09:00", with seconds where there are any."""
    return f"{at:%H:%M:%S}" if at.second else f"{at:%H:%M}"
