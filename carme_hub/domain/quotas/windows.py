"""The time over which GPU time is counted: from when to when, in the site's zone. Pure.

Windows of the calendar begin and end at midnight of the zone, so a day is 23 or 25 hours long where clocks change. A
midnight that clocks skip is the moment at which they jump; of one that comes twice, the first counts.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from .rules import Quota, Window

#: A time that never comes: the start of the year 9000, a number that every database takes.
FOREVER = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
#: Seconds in each of a rolling window's days; such a window knows no clock changes.
DAY = 86400


def midnight(day: date, zone: str) -> float:
    """Return when a day begins in an IANA zone, in epoch seconds."""
    return datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).timestamp()


def moment_in(day: date, zone: str, now: float) -> float:
    """Return a moment that counts in the windows of a day: its noon, of today not later than now.

    Its midnight would not do: what lies at one moment belongs to the window that ends there.
    """
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=ZoneInfo(zone)).timestamp()
    today = datetime.fromtimestamp(now, ZoneInfo(zone)).date()
    return min(noon, now) if day == today else noon


def span(quota: Quota, now: float, zone: str) -> tuple[float, float]:
    """Return the quota's window at a moment, from (inclusive) and to (exclusive), in epoch seconds.

    A rolling window ends now. A term is the same at every moment, also before it begins and after it is over; see
    ``Quota.in_force``. The total is from 0 to ``FOREVER``.
    """
    match quota.window:
        case Window.TOTAL:
            return 0.0, FOREVER
        case Window.TERM:
            return quota.start, quota.end
        case Window.ROLLING:
            return now - DAY * quota.days, now
    return calendar(quota.window, now, zone)


def calendar(window: Window, now: float, zone: str) -> tuple[float, float]:
    """Return the day, week or month of a moment, from (inclusive) and to (exclusive), in epoch seconds."""
    return _calendar(window, datetime.fromtimestamp(now, ZoneInfo(zone)).date(), zone)


def overlap(start: float, end: float, span: tuple[float, float]) -> float:
    """Return how many seconds from ``start`` to ``end`` lie within a span; 0 where they do not meet."""
    return max(0.0, min(end, span[1]) - max(start, span[0]))


@lru_cache(maxsize=4096)
def _calendar(window: Window, day: date, zone: str) -> tuple[float, float]:
    if window is Window.DAY:
        first, after = day, day + timedelta(days=1)
    elif window is Window.WEEK:
        first = day - timedelta(days=day.weekday())
        after = first + timedelta(days=7)
    else:
        first = day.replace(day=1)
        after = (first + timedelta(days=31)).replace(day=1)
    return midnight(first, zone), midnight(after, zone)
