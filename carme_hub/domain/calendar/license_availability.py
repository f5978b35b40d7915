"""When a job may start if Slurm counts GPUs by licences: enough licences must be left for all of its time. Pure.

Slurm adds up the licences of running jobs, even of those that end earlier, and all reservations of the licence that
overlap the job's time limit, even if no two of them overlap each other (seen on 22.05 and 24.11).
``conflicts.ReservationTimetable`` calls this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .periods import Period


@dataclass(frozen=True, slots=True)
class LicenseCount:
    """The licences of one name at one moment.

    Attributes:
        total: how many there are. running: (end, number) of jobs outside of bookings. booked: number by period.
    """

    total: int
    running: Sequence[tuple[int, int]]
    booked: Sequence[tuple[Period, int]]

    def first_shortage(self, count: int, now: int, length: int) -> int | None:
        """Return the start of the first period within ``length`` seconds that leaves too few for ``count``, or None."""
        used = count + sum(have for _, have in self.running)
        if used > self.total:
            return now
        for period, booked in sorted(self._during(now, length), key=lambda each: each[0]):
            used += booked
            if used > self.total:
                return max(now, period.start)
        return None

    def first_start(self, count: int, now: int, length: int) -> int | None:
        """Return the first time, now or at an end, from which ``count`` are left for ``length`` seconds, or None."""
        ends = {now, *(end for end, _ in self.running), *(period.end for period, _ in self.booked)}
        return next((at for at in sorted(ends) if at >= now and self._fits(count, at, length)), None)

    def without_bookings(self) -> LicenseCount:
        """Return the count without the bookings."""
        return LicenseCount(self.total, self.running, ())

    def booked_at(self, at: int) -> int:
        """Return how many are booked at a moment."""
        return sum(count for period, count in self.booked if period.start <= at < period.end)

    def left_at(self, at: int) -> int:
        """Return how many are left at a moment."""
        return self.total - self.booked_at(at) - sum(have for end, have in self.running if end > at)

    def _fits(self, count: int, at: int, length: int) -> bool:
        running = sum(have for end, have in self.running if end > at)
        return count + running + sum(booked for _, booked in self._during(at, length)) <= self.total

    def _during(self, at: int, length: int) -> list[tuple[Period, int]]:
        period = Period(at, at + max(1, length))
        return [(there, count) for there, count in self.booked if there.overlaps(period)]
