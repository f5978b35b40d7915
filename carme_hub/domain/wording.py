"""Format amounts of GPU time, durations, times and foreign texts for people. Pure; English, whatever the locale."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_GPU_HOUR = 3_600_000


def hours(amount: int) -> str:
    """Return milli-GPU-seconds as hours with up to two decimals: "18.5"."""
    return f"{amount / _GPU_HOUR:.2f}".rstrip("0").rstrip(".")


def gpu_hours(amount: int) -> str:
    """Return milli-GPU-seconds as "20 GPU-hours"."""
    return f"{hours(amount)} GPU-hour{'' if hours(amount) == '1' else 's'}"


def duration(seconds: int) -> str:
    """Return seconds as "1 h 30 min"; two days and more as "2 d 4 h"."""
    parts, left = [], seconds
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if unit == "d" and seconds < 2 * size:
            continue
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 min"


def day(at: datetime) -> str:
    """Return "30 November 2026"."""
    return f"{at.day} {_MONTHS[at.month - 1]} {at.year}"


def escaped(text: str) -> str:
    r"""Return a foreign text, such as the name of a file, as one line that can be shown and sent: ``a\udcffb``.

    Bytes that are no UTF-8 are surrogates in Python (PEP 383), which no page and no JSON can have.
    """
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def moment(at: float, now: float, zone: str) -> str:
    """Return "today at 15:30", or "on Monday 30 November at 00:00", with the year if it is not the current one."""
    when, today = (datetime.fromtimestamp(t, ZoneInfo(zone)) for t in (at, now))
    if when.date() == today.date():
        return f"today at {when:%H:%M}"
    year = "" if when.year == today.year else f" {when.year}"
    return f"on {_DAYS[when.weekday()]} {when.day} {_MONTHS[when.month - 1]}{year} at {when:%H:%M}"
