"""Half-open periods in whole UTC epoch seconds: who ends at nine is not in the way of who starts at nine. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """From ``start`` (within it) to ``end`` (not within it).

    Raises:
        ValueError: it would not have a second in it.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.end <= self.start:
            raise ValueError("a period ends after it starts")

    @property
    def length(self) -> int:
        """Return its seconds."""
        return self.end - self.start

    def overlaps(self, other: Period) -> bool:
        """Return whether they share a second; that they touch is no overlap."""
        return self.start < other.end and other.start < self.end

    def at(self, start: int) -> Period:
        """Return the period of the same length that starts then."""
        return Period(start, start + self.length)
