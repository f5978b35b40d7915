"""Credits that expire: usage is drawn from the credit that expires first, at the time of use. Pure.

``carme_hub.accounting.credit_expiry`` writes the corrections for what is left of an expired credit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .entries import Entry, Kind

#: Prefix of the keys of corrections for the rest of an expired credit.
EXPIRY_PREFIX = "expiry:"


def expiry_key(credit: str, part: int = 0) -> str:
    """Return the key of the correction for an expired credit, or of its Nth follow-up correction."""
    return f"{EXPIRY_PREFIX}{credit}:{part}" if part else f"{EXPIRY_PREFIX}{credit}"


@dataclass(slots=True)
class _CreditBalance:
    """The balance of an account as credits by expiry, and one permanent amount, which is negative for a debt."""

    credits: list[tuple[float, str, int]] = field(default_factory=list)
    permanent: int = 0

    def draw(self, amount: int) -> None:
        for at, (expires, key, left) in enumerate(self.credits):
            taken = max(0, min(left, amount))
            self.credits[at] = (expires, key, left - taken)
            amount -= taken
        self.permanent -= amount  # a negative amount is a debt

    def move(self, amount: int) -> None:
        """Draw a transfer to another account: from the permanent amount first, since the transfer does not expire."""
        part = max(0, min(self.permanent, amount))
        self.permanent -= part
        self.draw(amount - part)

    def expire(self, now: float) -> dict[str, int]:
        """Remove expired credits, and return what is left of each."""
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
        entries: an account's grants, and its corrections without a period. A transfer to another account draws from
            the permanent amount; a transfer from before the last expiry by the earlier rule draws like usage.
        draws: (epoch second, amount) of charges and open holds, at the time of the hold, or at the start of a job
            without a hold: what was held before the expiry is paid from the credit, even if it runs later.
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
    """Return the id of the last expiry from the time when transfers drew like usage, -1 = none.

    Those entries do not store the time of the expiry. What they left to an account stays with the account.
    """
    return max((entry.id for entry in entries if entry.key.startswith(EXPIRY_PREFIX) and not entry.expires), default=-1)
