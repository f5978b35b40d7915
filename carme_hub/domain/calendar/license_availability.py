"""When a job may start where Slurm counts its GPUs by licences: as many must be left for all of its time. Pure.

Slurm adds up what running jobs have now, though they may end before, and all reservations of the licence that overlap
the job's time limit, though no two of them may be at the same moment (seen on 22.05 and 24.11).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .periods import Period


@dataclass(frozen=True, slots=True)
class LicenseCount:
    """A licence at one moment.

    Attributes:
        total: how many there are. running: until when jobs outside of bookings have how many. booked: by period.
    """

    total: int
    running: Sequence[tuple[int, int]]
    booked: Sequence[tuple[Period, int]]

    def first_shortage(self, count: int, now: int, length: int) -> int | None:
        """Return when that begins with which so many are too many for so many seconds from now; None for nothing."""
        used = count + sum(have for _, have in self.running)
        if used > self.total:
            return now
        for period, booked in sorted(self._during(now, length), key=lambda each: each[0]):
            used += booked
            if used > self.total:
                return max(now, period.start)
        return None

    def first_start(self, count: int, now: int, length: int) -> int | None:
        """Return from when on so many are left for so many seconds, None for never: at once, or after an end."""
        ends = {now, *(end for end, _ in self.running), *(period.end for period, _ in self.booked)}
        return next((at for at in sorted(ends) if at >= now and self._fits(count, at, length)), None)

    def without_bookings(self) -> LicenseCount:
        """Return it as if nobody had booked."""
        return LicenseCount(self.total, self.running, ())

    def booked_at(self, at: int) -> int:
        """Return how many are booked at a moment."""
        return sum(count for period, count in self.booked if period.start <= at < period.end)

    def left_at(self, at: int) -> int:
        """Return how many nobody has at a moment."""
        return self.total - self.booked_at(at) - sum(have for end, have in self.running if end > at)

    def _fits(self, count: int, at: int, length: int) -> bool:
        running = sum(have for end, have in self.running if end > at)
        return count + running + sum(booked for _, booked in self._during(at, length)) <= self.total

    def _during(self, at: int, length: int) -> list[tuple[Period, int]]:
        period = Period(at, at + max(1, length))
        return [(there, count) for there, count in self.booked if there.overlaps(period)]
