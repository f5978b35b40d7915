"""Half-open periods in whole UTC epoch seconds: a period that ends at 9:00 and one that starts then don't overlap."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """From ``start`` (included) to ``end`` (excluded).

    Raises:
        ValueError: the period would be shorter than a second.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.end <= self.start:
            raise ValueError("a period ends after it starts")

    @property
    def length(self) -> int:
        """Return the length in seconds."""
        return self.end - self.start

    def overlaps(self, other: Period) -> bool:
        """Return whether the periods share a second; adjacent periods do not overlap."""
        return self.start < other.end and other.start < self.end

    def at(self, start: int) -> Period:
        """Return the period of the same length that starts then."""
        return Period(start, start + self.length)
