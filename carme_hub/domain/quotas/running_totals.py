"""Running totals of the usage of one rule by one subject, for the replay of a policy. Pure.

The cost of each query and event does not grow with the number of earlier events, so that a month takes seconds.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush, nsmallest

from .rules import DAY, AppliedQuota, Quota, SubjectUsage, Window
from .windows import overlap, span

#: How many items that leave a rolling window are considered to say when a request is possible again.
_AHEAD = 100


class Meter:
    """Usage of one rule by one subject. Times must not decrease from call to call."""

    def __init__(self, rule: AppliedQuota, zone: str) -> None:
        self.key = (rule.quota.id, rule.subject)
        self._quota = rule.quota
        self._zone = zone
        self._held = 0
        self._gpus = 0
        self._open: dict[int, tuple[float, int, int]] = {}
        self._started: deque[float] = deque()
        self._window = (0.0, 0.0)
        self._used = 0
        self._rolling = _Rolling(rule.quota.days * DAY) if rule.quota.window is Window.ROLLING else None

    @staticmethod
    def needed(quota: Quota) -> bool:
        """Return whether a rule has a limit that needs counting."""
        limits = (quota.gpu_time, quota.concurrent_gpus, quota.sessions, quota.sessions_per_day)
        return any(limit is not None for limit in limits)

    def open(self, number: int, at: float, end: float, gpus: int, held: int) -> None:
        """Count an admitted job; ``end`` is by its time limit, ``held`` in milli-GPU-seconds."""
        self._held += held
        self._gpus += gpus
        self._open[number] = (end, gpus, held)
        if self._quota.sessions_per_day is not None:
            self._started.append(at)

    def close(self, number: int, at: float, start: float, rate: int) -> None:
        """Charge a job that ran from ``start`` to ``at``, at ``rate`` milli-GPU-seconds a second."""
        _, gpus, held = self._open.pop(number)
        self._held -= held
        self._gpus -= gpus
        if self._quota.gpu_time is None or start >= at:
            return
        if self._rolling is not None:
            self._rolling.add(int(start), int(at), rate)
        else:
            self._advance(at)
            self._used += rate * int(overlap(start, at, self._window))

    def use(self, at: float, *, whole: bool = False) -> SubjectUsage:
        """Return the usage at a moment; ``whole``: with the values that tell when a request is possible again."""
        frees_at = 0.0
        frees: tuple[tuple[float, int], ...] = ()
        if self._quota.gpu_time is None:
            used = 0
        elif self._rolling is not None:
            used = self._rolling.used(int(at))
            frees = self._rolling.frees() if whole else ()
        else:
            self._advance(at)
            used = self._used
            frees_at = 0.0 if self._quota.window is Window.TOTAL else self._window[1]
        while self._started and self._started[0] <= at - DAY:
            self._started.popleft()
        return SubjectUsage(
            gpu_time=used + self._held,
            frees_at=frees_at or (frees[0][0] if frees else 0.0),
            gpus=self._gpus,
            sessions=len(self._open),
            started=tuple(self._started),
            ends=tuple((end, gpus) for end, gpus, _ in self._open.values()) if whole else (),
            frees=frees,
        )

    def _advance(self, at: float) -> None:
        # Usage that ended before the new window began does not count; later usage is added as far as it overlaps.
        if not self._window[0] <= at < self._window[1]:
            self._window = span(self._quota, at, self._zone)
            self._used = 0


class _Rolling:
    """Sums over a rolling window. Usage that crosses the edge of the window counts exactly by its part inside."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._whole = 0
        self._by_start: list[tuple[int, int]] = []
        self._by_end: list[tuple[int, int, int]] = []
        # Of usage that crosses the edge: the sum of rates, and of rates × starts.
        self._rates = 0
        self._starts = 0

    def add(self, start: int, end: int, rate: int) -> None:
        """Count use from start to end."""
        self._whole += rate * (end - start)
        heappush(self._by_start, (start, rate))
        heappush(self._by_end, (end, start, rate))

    def used(self, at: int) -> int:
        """Return the usage in the window that ends now."""
        edge = at - self._length
        while self._by_start and self._by_start[0][0] < edge:
            start, rate = heappop(self._by_start)
            self._rates += rate
            self._starts += rate * start
        while self._by_end and self._by_end[0][0] <= edge:
            end, start, rate = heappop(self._by_end)
            self._whole -= rate * (end - start)
            self._rates -= rate
            self._starts -= rate * start
        return self._whole - (self._rates * edge - self._starts)

    def frees(self) -> tuple[tuple[float, int], ...]:
        """Return (time, amount) of the usage that leaves the window next."""
        soon = nsmallest(_AHEAD, self._by_end)
        return tuple((float(end + self._length), rate * (end - start)) for end, start, rate in soon)
