"""A step function over time, such as the number of free GPUs of a node. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from .periods import Period


@dataclass(frozen=True, slots=True)
class StepFunction:
    """A number that changes at some moments.

    Attributes:
        edges: the moments, in order. levels: the number before the first moment, and from each moment on.
    """

    edges: list[int]
    levels: list[int]

    @classmethod
    def of(cls, first: int, changes: Mapping[int, int]) -> StepFunction:
        """Return the function that begins as ``first`` and changes by a difference at each moment."""
        edges = sorted(changes)
        return cls(edges, list(accumulate(map(changes.__getitem__, edges), initial=first)))

    def at(self, moment: int) -> int:
        """Return the number at a moment."""
        return self.levels[bisect_right(self.edges, moment)]

    def least(self, start: int, end: int) -> int:
        """Return the smallest number from ``start`` (included) to ``end`` (excluded)."""
        edges = self.edges
        return min(self.levels[bisect_right(edges, start) : bisect_left(edges, end) + 1])

    def parts(self, period: Period) -> tuple[tuple[Period, int], ...]:
        """Return consecutive parts of a period with their numbers; neighbours differ."""
        found: list[tuple[Period, int]] = []
        first, last = bisect_right(self.edges, period.start), bisect_left(self.edges, period.end)
        start, level = period.start, self.levels[first]
        for edge, next_level in zip(self.edges[first:last], self.levels[first + 1 : last + 1], strict=True):
            if next_level != level:
                found.append((Period(start, edge), level))
                start, level = edge, next_level
        return (*found, (Period(start, period.end), level))
