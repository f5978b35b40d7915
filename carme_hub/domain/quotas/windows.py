"""Windows in which GPU time is counted: their start and end in the site's time zone. Pure.

Calendar windows begin and end at midnight of the zone, so a day is 23 or 25 hours long when clocks change. A midnight
that the clocks skip is the moment of the change; of a midnight that occurs twice, the first counts.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from .rules import Quota, Window

#: The end of a window without an end: the start of the year 9000, a number that every database accepts.
FOREVER = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
#: Seconds in each day of a rolling window; clock changes do not affect it.
DAY = 86400


def midnight(day: date, zone: str) -> float:
    """Return when a day begins in an IANA zone, in epoch seconds."""
    return datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).timestamp()


def moment_in(day: date, zone: str, now: float) -> float:
    """Return a moment that counts in the windows of a day: its noon, or now if that is earlier today.

    Midnight does not work: an entry at that moment belongs to the window that ends then.
    """
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=ZoneInfo(zone)).timestamp()
    today = datetime.fromtimestamp(now, ZoneInfo(zone)).date()
    return min(noon, now) if day == today else noon


def span(quota: Quota, now: float, zone: str) -> tuple[float, float]:
    """Return the quota's window at a moment, start (included) and end (excluded), in epoch seconds.

    A rolling window ends now. A term is the same at every moment, also before its start and after its end; see
    ``Quota.in_force``. The total lasts from 0 to ``FOREVER``.
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
    """Return the day, week or month of a moment, start (included) and end (excluded), in epoch seconds."""
    return _calendar(window, datetime.fromtimestamp(now, ZoneInfo(zone)).date(), zone)


def overlap(start: float, end: float, span: tuple[float, float]) -> float:
    """Return how many seconds from ``start`` to ``end`` lie within a span."""
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
