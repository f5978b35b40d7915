"""Health of the reconciler: when Slurm was last equal to the calendar, and how long a pass takes.

REST (``health``) and the metrics show it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from carme_hub.booking.reconcile.reconciler import Pass


@dataclass
class ReconcilerHealth:
    """Results of the reconciler's passes.

    Attributes:
        max_silence: seconds without an answer of Slurm after which it counts as not kept.
        answered: when Slurm last answered a pass. same: when it was last equal to the calendar. None = never.
        refused: reservations that Slurm refused in the last pass. seconds: duration of that pass.
        refusals: refused requests of users by reason, since the start.
    """

    max_silence: float = 180.0
    answered: float | None = None
    same: float | None = None
    equal: bool = False
    refused: int = 0
    seconds: float = 0.0
    passes: int = 0
    refusals: Counter[str] = field(default_factory=Counter)

    def note(self, done: Pass, seconds: float) -> None:
        """Record the result of a pass."""
        self.passes += 1
        self.seconds = seconds
        self.equal = done.equal
        if done.unreachable:
            return
        self.answered = done.at
        self.refused = len(done.refused)
        # After a pass without refusals Slurm is equal to the calendar.
        if not done.refused:
            self.same = done.at

    def keeping(self, now: float) -> bool:
        """Return whether Slurm has answered recently."""
        return self.answered is not None and now - self.answered < self.max_silence

    def drift(self, now: float) -> float | None:
        """Return the seconds since Slurm was last equal to the calendar, None for never."""
        return None if self.same is None else max(0.0, now - self.same)
