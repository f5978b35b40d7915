"""Parse and write durations such as "1d 12h", "90 min", "1.5 h", exactly and without rounding. Pure."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86400),
    **dict.fromkeys(("d", "day", "days", "gpu-day", "gpu-days"), 86400),
    **dict.fromkeys(("h", "hour", "hours", "gpu-hour", "gpu-hours"), 3600),
    **dict.fromkeys(("m", "min", "minute", "minutes", "gpu-minute", "gpu-minutes"), 60),
    **dict.fromkeys(("s", "sec", "second", "seconds", "gpu-second", "gpu-seconds"), 1),
}
_PART = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([A-Za-z-]+)")
#: The longest accepted duration in seconds: 10,000 years.
MOST = 10_000 * 366 * 86400


def read_seconds(text: str) -> Fraction | None:
    """Return the seconds of a text, or None if it has no unit, an unknown unit, or is too long."""
    at, total = 0, Fraction(0)
    while match := _PART.match(text, at):
        unit = _UNITS.get(match[2].lower())
        if unit is None:
            return None
        total += Fraction(match[1]) * unit
        at = match.end()
    return total if at and not text[at:].strip() and total <= MOST else None


def write_seconds(milliseconds: int) -> str:
    """Return the text that ``read_seconds`` reads as these milliseconds: "1h 30min 0.5s"."""
    parts, left = [], milliseconds
    for unit, size in (("h", 3_600_000), ("min", 60_000)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    if left or not parts:
        parts.append(f"{left // 1000}s" if left % 1000 == 0 else f"{left // 1000}.{left % 1000:03}s")
    return " ".join(parts)
