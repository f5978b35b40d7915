"""How long a lease is certainly one's own, by a clock of this host alone. Pure, except for ``clock``."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from carme_hub.fencing import Ticket


def clock() -> float:
    """Return seconds of a clock that nobody sets and that counts while the machine sleeps (CLOCK_BOOTTIME)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a lease, all in seconds and in fixed relation.

    Attributes:
        lease: after which it can be taken, from the last renewal.
    """

    lease: float = 12.0

    @property
    def renew(self) -> float:
        """Between two renewals."""
        return self.lease / 6

    @property
    def kill(self) -> float:
        """Without a renewal, after which the hub is killed; the rest is for its services, and clocks that drift."""
        return self.lease * 3 / 4

    @property
    def poll(self) -> float:
        """Between two looks of a standby."""
        return min(1.0, self.lease / 6)


@dataclass(slots=True)
class Tenure:
    """One time of holding the lease.

    Args:
        asked: when the lease was requested, not when the answer came.
    """

    ticket: Ticket
    times: Times
    asked: float
    lost: str = ""
    until: float = field(init=False)

    def __post_init__(self) -> None:
        self.until = self.asked + self.times.kill

    def renewed(self, asked: float) -> None:
        """Note a renewal that the database has confirmed."""
        self.until = max(self.until, asked + self.times.kill)

    def lose(self, why: str) -> None:
        """Note that the database has said that the lease is not ours."""
        self.lost = self.lost or why

    def over(self, now: float) -> str:
        """Return why the hub has to end now, "" while it may run."""
        if self.lost or now < self.until:
            return self.lost
        return f"the lease was not renewed for {self.times.kill:g} s"
