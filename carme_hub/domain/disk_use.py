"""How full a place with somebody's files is, how fast it grows, and when that has to be said. Pure.

A *place* is a folder with a limit of its own: a user's home by the quota of the user, a project by the quota of its
account. Sizes are bytes, times are seconds since 1970 (UTC).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: The share of a limit from which a place is nearly full, in percent, and the days ahead in which it will be full.
NEAR_PERCENT, NEAR_DAYS = 90, 3.0
#: Days of samples from which growth is estimated, and the least of them.
GROWTH_DAYS, LEAST_DAYS = 14.0, 1.0
DAY = 86_400


@dataclass(frozen=True, slots=True)
class Use:
    """What a place has, as its file system counts it.

    Attributes:
        soft, limit: bytes above which the grace time runs, and that writes cannot exceed; None = no limit.
        grace_ends: when the soft limit becomes the limit; None = it does not run, or is not known.
        files, soft_files, file_limit: the same for the number of files; None = not known, no limit.
        shared: the figures count everybody's files.
    """

    path: str
    used: int
    limit: int | None = None
    soft: int | None = None
    grace_ends: float | None = None
    files: int | None = None
    file_limit: int | None = None
    soft_files: int | None = None
    shared: bool = False

    @property
    def percent(self) -> int:
        """How full it is by the limit that is nearer, 0 without a limit. More than 100 is possible: a limit moves."""
        shares = [0]
        for count, limits in ((self.used, (self.soft, self.limit)), (self.files, (self.soft_files, self.file_limit))):
            known = [limit for limit in limits if limit is not None]
            if count is not None and known:
                shares.append(count * 100 // min(known) if min(known) else 100)
        return max(shares)

    @property
    def is_full(self) -> bool:
        """Whether a write fails now."""
        over = self.limit is not None and self.used >= self.limit
        return over or (self.files is not None and self.file_limit is not None and self.files >= self.file_limit)


@dataclass(frozen=True, slots=True)
class Sample:
    """What a place had at a time."""

    at: float
    used: int


def growth(samples: Sequence[Sample], now: float) -> float | None:
    """Return by how many bytes a day a place has grown lately (least squares); None where too little is known."""
    known = [each for each in samples if now - each.at <= GROWTH_DAYS * DAY]
    if len(known) < 2 or max(s.at for s in known) - min(s.at for s in known) < LEAST_DAYS * DAY:
        return None
    mean_at, mean_used = (sum(values) / len(known) for values in ([s.at for s in known], [s.used for s in known]))
    spread = sum((s.at - mean_at) ** 2 for s in known)
    return sum((s.at - mean_at) * (s.used - mean_used) for s in known) / spread * DAY


def days_left(use: Use, bytes_a_day: float | None) -> float | None:
    """Return in how many days a place is full if it grows as it did; None where it does not grow or has no limit."""
    limit = use.soft if use.soft is not None else use.limit
    if limit is None or not bytes_a_day or bytes_a_day <= 0 or use.used >= limit:
        return None
    return (limit - use.used) / bytes_a_day


@dataclass(frozen=True, slots=True)
class Warning:
    """What has to be said of a place; ``level`` is danger where writes fail now, or else warning."""

    level: str
    text: str


def warning(use: Use, bytes_a_day: float | None, now: float) -> Warning | None:
    """Return what to say of a place before writes fail, and when they do; None where there is nothing to say."""
    whose = f"The file system of {use.path}" if use.shared else use.path
    if use.is_full:
        what = "files" if use.limit is None or use.used < use.limit else "space"
        return Warning(
            "danger", f"{whose} is full: no {what} left of {_limit(use, what)}. Writing fails until you remove files."
        )
    over = use.soft is not None and use.used > use.soft
    if over or (use.soft_files is not None and use.files is not None and use.files > use.soft_files):
        until = "soon"
        if use.grace_ends is not None:
            left = use.grace_ends - now
            if left <= 0:
                return Warning("danger", f"{whose} has been above its limit for too long: writing fails. {_have(use)}")
            until = f"in {_days(left / DAY)}"
        return Warning("warning", f"{whose} is above its limit: writing fails {until}. {_have(use)}")
    left_days = days_left(use, bytes_a_day)
    if use.percent >= NEAR_PERCENT or (left_days is not None and left_days <= NEAR_DAYS):
        soon = f" At its growth it is full in {_days(left_days)}." if left_days is not None else ""
        return Warning("warning", f"{whose} is {use.percent} % full. {_have(use)}{soon}")
    return None


def _limit(use: Use, what: str) -> str:
    return size(use.limit or 0) if what == "space" else f"{use.file_limit or 0:,} files"


def _have(use: Use) -> str:
    limit = use.soft if use.soft is not None else use.limit
    text = f"{size(use.used)} used" + (f" of {size(limit)}" if limit is not None else "")
    file_limit = use.soft_files if use.soft_files is not None else use.file_limit
    if use.files is not None and file_limit is not None:
        text += f", {use.files:,} of {file_limit:,} files"
    return text + "."


def _days(count: float) -> str:
    if count < 1:
        hours = max(1, round(count * 24))
        return f"about {hours} {'hour' if hours == 1 else 'hours'}"
    return f"about {count:.0f} {'day' if round(count) == 1 else 'days'}"


def size(count: int) -> str:
    """Return a number of bytes in its largest binary unit, with one decimal below ten."""
    number, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.0f} {unit}" if unit == "B" or number >= 9.95 else f"{number:.1f} {unit}"
