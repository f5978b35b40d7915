"""Credits that expire: use is drawn from what expires first, at the time when it was used. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .entries import Entry, Kind

#: Begins the key of every correction that takes back what was left of a credit.
EXPIRY_PREFIX = "expiry:"


def expiry_key(credit: str, part: int = 0) -> str:
    """Return the key of the correction for an expired credit, or of its Nth follow-up."""
    return f"{EXPIRY_PREFIX}{credit}:{part}" if part else f"{EXPIRY_PREFIX}{credit}"


@dataclass(slots=True)
class _CreditBalance:
    """What may be drawn from: pots by when they expire (those that never do are one, the last), and what is owed."""

    credits: list[tuple[float, str, int]] = field(default_factory=list)
    permanent: int = 0

    def draw(self, amount: int) -> None:
        for at, (expires, key, left) in enumerate(self.credits):
            taken = max(0, min(left, amount))
            self.credits[at] = (expires, key, left - taken)
            amount -= taken
        self.permanent -= amount  # below zero it is owed

    def move(self, amount: int) -> None:
        """Take out what goes to another account: what lasts, or a credit would last in its place."""
        part = max(0, min(self.permanent, amount))
        self.permanent -= part
        self.draw(amount - part)

    def expire(self, now: float) -> dict[str, int]:
        """Take out what has expired, and return what is left of it."""
        expired = {key: rest for expires, key, rest in self.credits if expires <= now}
        self.credits = [credit for credit in self.credits if credit[0] > now]
        return expired

    def add(self, entry: Entry) -> None:
        debt = min(entry.amount, max(0, -self.permanent))
        if not entry.expires:
            self.permanent += entry.amount
            return
        self.permanent += debt
        self.credits.append((entry.expires, entry.key, entry.amount - debt))
        self.credits.sort()


def remaining_credits(entries: Sequence[Entry], draws: Iterable[tuple[int, int]], now: float) -> dict[str, int]:
    """Return what is left of each credit, at its expiry or now, by its key.

    Args:
        entries: an account's grants and its corrections about no time. A transfer to another account takes what lasts;
            one from before a credit's expiry was written by the earlier rule draws, as it did then.
        draws: (epoch second, amount) of what was used and of open holds, at the time when it was held, or at which
            the job began that had no hold: what was held in time is paid from the credit, also when it runs later.
    """
    earlier = _last_by_the_earlier_rule(entries)
    steps: list[tuple[int, int, Entry | int]] = [(time, 1, amount) for time, amount in draws]
    for entry in entries:
        if entry.at > now or entry.key.startswith(EXPIRY_PREFIX):
            continue
        steps.append((int(entry.at), 0, entry))
    credits, left = _CreditBalance(), {}
    for time, _, step in sorted(steps, key=lambda each: each[:2]):
        left.update(credits.expire(time))
        if not isinstance(step, Entry):
            credits.draw(step)
        elif step.amount >= 0:
            credits.add(step)
        elif step.kind is Kind.GRANT and step.id > earlier:
            credits.move(-step.amount)
        else:
            credits.draw(-step.amount)
    left.update(credits.expire(now))
    left.update({key: rest for _, key, rest in credits.credits})
    return left


def _last_by_the_earlier_rule(entries: Iterable[Entry]) -> int:
    """Return the id of the last expiry by which transfers drew like use, -1 = none.

    Those do not name the expiry's time. What they left to an account was theirs to use: nobody takes it back now.
    """
    return max((entry.id for entry in entries if entry.key.startswith(EXPIRY_PREFIX) and not entry.expires), default=-1)
