"""Rules by which administrators stop new starts: for all, or for a profile or a partition. Pure.

What runs is not concerned. A rule lasts until its time is over or somebody allows starts again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from carme_hub.domain.sessions.session import Request
from carme_hub.errors import Refused


class StartsStopped(Refused):
    """An administrator lets nothing like this start at the moment."""

    reason = "starts-stopped"


@dataclass(frozen=True, slots=True)
class StartStop:
    """One rule. Times are UTC epoch seconds.

    Attributes:
        profile, partition: what it is about, "" = any. is_default: whether the partition is the one that a request
            without a partition gets. until: 0 = until somebody allows starts again.
        lifted: when that was, 0 = it was not.
    """

    id: str
    at: float
    actor: str
    reason: str
    profile: str = ""
    partition: str = ""
    is_default: bool = False
    until: float = 0.0
    lifted: float = 0.0

    def in_force(self, now: float) -> bool:
        """Return whether it is in force."""
        return not self.lifted and (not self.until or now < self.until)

    def concerns(self, request: Request) -> bool:
        """Return whether a request is one that it is about."""
        if self.profile and self.profile != request.profile:
            return False
        if not self.partition:
            return True
        wanted = [name for name in request.partition.split(",") if name]
        return self.partition in wanted or (not wanted and self.is_default)

    @property
    def about(self) -> str:
        """What it is about, as words."""
        parts = [f"profile {self.profile}"] if self.profile else []
        parts += [f"partition {self.partition}"] if self.partition else []
        return " in ".join(parts) or "everything"


def stop_for(request: Request, rules: Iterable[StartStop], now: float) -> StartStop | None:
    """Return the rule that stops a request, the one that lasts longest; None = it may start."""
    found = [rule for rule in rules if rule.in_force(now) and rule.concerns(request)]
    return max(found, key=lambda rule: (rule.until or float("inf"), rule.at), default=None)


def sentence(rule: StartStop, until: str) -> str:
    """Return what a user reads who wants to start something.

    Args:
        until: when it ends as words, "" = that is not known.
    """
    what = "Nothing new" if rule.about == "everything" else f"Nothing new of this {_kind(rule)}"
    time = f"until {until}" if until else "at the moment"
    end = "" if rule.reason.endswith((".", "!", "?")) else "."
    return f"{what} can be started {time}: {rule.reason}{end} What runs already is not affected."


def _kind(rule: StartStop) -> str:
    return "profile" if rule.profile else "partition"
