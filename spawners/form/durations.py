"""Formats times and durations for people, and lists the time limits to choose from."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from carme_hub.domain.sessions.profile import Limit

#: Usual time limits to choose from, in minutes.
_USUAL_TIMES = (15, 30, 60, 120, 240, 480, 720, 1440, 2880, 4320, 7200, 10080, 20160)


def clock(moment: float, now: float, zone: tzinfo | None = None) -> str:
    """Format a time: 14:05, tomorrow 09:10, Thu 26 Nov 09:10.

    Args:
        zone: None = the hub's.
    """
    when = datetime.fromtimestamp(moment).astimezone(zone)
    today = datetime.fromtimestamp(now).astimezone(zone).date()
    if when.date() == today:
        return f"{when:%H:%M}"
    if when.date() == today + timedelta(days=1):
        return f"tomorrow {when:%H:%M}"
    if when.date() == today - timedelta(days=1):
        return f"yesterday {when:%H:%M}"
    return f"{when:%a %-d %b %H:%M}"


def clock_in_zone(moment: float, now: float, zone: str) -> str:
    """Format a time in a named zone, with its name: 14:05 (Europe/Berlin)."""
    try:
        return f"{clock(moment, now, ZoneInfo(zone))} ({zone})"
    except (ZoneInfoNotFoundError, ValueError):
        return clock(moment, now)


def duration(minutes: int) -> str:
    """Return 90 as "1 hour 30 minutes"."""
    parts = []
    for size, unit in ((1440, "day"), (60, "hour"), (1, "minute")):
        count, minutes = divmod(minutes, size)
        if count:
            parts.append(f"{count} {unit}{'' if count == 1 else 's'}")
    return " ".join(parts) or "0 minutes"


def times_to_choose(limit: Limit, asked: object) -> list[int]:
    """Return the time limits that the form lists, in minutes, with the one that was asked for."""
    if limit.choices:
        return list(limit.choices)
    times = {m for m in _USUAL_TIMES if limit.allows(m)} | {limit.min, limit.max, limit.default}
    if isinstance(asked, int) and limit.allows(asked):
        times.add(asked)
    return sorted(times)
