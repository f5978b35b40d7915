"""How well the promise is kept: when Slurm was last seen to be equal to the calendar, and how long a pass takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from carme_hub.booking.reconcile.reconciler import Pass


@dataclass
class ReconcilerHealth:
    """What the passes of the keeper have come to.

    Attributes:
        patience: seconds without an answer of Slurm after which nothing is known to be kept.
        answered: when Slurm last answered a pass. same: when it was last equal to the calendar. None = never.
        refused: how many of Slurm's reservations it refused in the last pass. seconds: how long that took.
        refusals: of people's requests, by reason, since the start.
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
        """Take what a pass has found."""
        self.passes += 1
        self.seconds = seconds
        self.equal = done.equal
        if done.unreachable:
            return
        self.answered = done.at
        self.refused = len(done.refused)
        # What was changed without a refusal is as it should be from then on.
        if not done.refused:
            self.same = done.at

    def keeping(self, now: float) -> bool:
        """Return whether Slurm has answered of late."""
        return self.answered is not None and now - self.answered < self.max_silence

    def drift(self, now: float) -> float | None:
        """Return the seconds since Slurm was last made or seen equal to the calendar, None for never."""
        return None if self.same is None else max(0.0, now - self.same)
