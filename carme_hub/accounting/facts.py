"""What is known of use at one moment, as the rules need it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from carme_hub.domain.ledger import Balance, charge_key
from carme_hub.domain.quotas import DAY, Applied, Facts, Person, Use, Who, Window
from carme_hub.domain.resources import Gpus
from carme_hub.domain.usage import Usage
from carme_hub.domain.windows import overlap, span
from carme_hub.store.ledger import Held, LedgerReads, Whose

from .books import Books, covers, named_session


@dataclass(frozen=True, slots=True)
class Taken:
    """What one subject has taken in one rule's window, in milli-GPU-seconds: used (with what runs) and held."""

    used: int
    held: int
    start: float
    end: float


class Gathering:
    """Reads facts within one transaction; what several rules need is read once.

    Args:
        person: whose own use stands in for a group of which the members are not known.
    """

    def __init__(self, books: Books, reads: LedgerReads, person: Person, now: float) -> None:
        self._books = books
        self._reads = reads
        self._person = person
        self._now = now
        self._zone = books.policy().zone
        self._holds = reads.held()
        self._outside: dict[Whose, list[tuple[Usage, int]]] = {}
        self._taken: dict[tuple[Whose, float, float], Taken] = {}

    def facts(self, applied: Sequence[Applied], accounts: Iterable[str]) -> Facts:
        """Return the facts for these rules and accounts."""
        use = {(one.quota.id, one.subject): self._use(one) for one in applied}
        left = {name: balance.left - self._running(Whose(name)) for name, balance in self.balances(accounts).items()}
        return Facts(self._now, use, left)

    def balances(self, accounts: Iterable[str]) -> dict[str, Balance]:
        """Return the balances as the ledger has them, without what runs outside the hub."""
        return self._reads.balances(sorted(set(accounts)))

    def whose(self, one: Applied) -> Whose:
        """Return whose entries count for a rule."""
        quota = one.quota
        if quota.who is Who.ACCOUNT:
            return Whose(account=one.subject)
        if quota.together and quota.who in (Who.GROUP, Who.ROLE):
            return Whose(users=self._books.group(quota.who, one.subject, self._person))
        return Whose(users=frozenset({one.subject}))

    def taken(self, one: Applied) -> Taken:
        """Return what was taken of a rule's GPU time."""
        whose, (start, end) = self.whose(one), span(one.quota, self._now, self._zone)
        key = (whose, start, end)
        if key not in self._taken:
            until = None if one.quota.window in (Window.TOTAL, Window.ROLLING) else end
            used = self._reads.used(whose, start, until).amount + self._running(whose, (start, end))
            held = sum(hold.amount for hold in self._held(whose)) if end >= self._now else 0
            self._taken[key] = Taken(used, held, start, end)
        return self._taken[key]

    def _use(self, one: Applied) -> Use:
        quota, whose = one.quota, self.whose(one)
        gpu_time, frees_at = 0, 0.0
        frees: tuple[tuple[float, int], ...] = ()
        if quota.gpu_time is not None:
            taken = self.taken(one)
            gpu_time = taken.used + taken.held
            frees_at, frees = self._frees(one, whose, taken)
        if quota.concurrent_gpus is None and quota.sessions is None and quota.sessions_per_day is None:
            return Use(gpu_time, frees_at, frees=frees)
        holds, outside = self._held(whose), [usage for usage, _ in self._open(whose)]
        last = {hold.session: hold.end for hold in sorted(holds, key=lambda hold: hold.end)}
        ends = [(last[hold.session], hold.gpus) for hold in holds if hold.is_first]
        outside_ends = [(each.start + each.time_limit, _count(each.gpus)) for each in outside if each.time_limit]
        return Use(
            gpu_time=gpu_time,
            frees_at=frees_at,
            gpus=sum(hold.gpus for hold in holds) + sum(_count(each.gpus) for each in outside),
            sessions=len(ends),
            started=self._reads.started(whose, self._now - DAY) if quota.sessions_per_day is not None else (),
            ends=tuple(sorted(ends + outside_ends)),
            frees=frees,
        )

    def _frees(self, one: Applied, whose: Whose, taken: Taken) -> tuple[float, tuple[tuple[float, int], ...]]:
        if one.quota.window is Window.TOTAL:
            return 0.0, ()
        if one.quota.window is not Window.ROLLING:
            return taken.end, ()
        days, since = one.quota.days * DAY, int(taken.start)
        frees = []
        for start, end, amount in self._reads.oldest_uses(whose, taken.start):
            part = amount if start >= since else amount // (end - start) * (end - since)
            frees.append((float(end + days), part))
        return (frees[0][0] if frees else 0.0), tuple(frees)

    def _held(self, whose: Whose) -> list[Held]:
        return [hold for hold in self._holds if _is_of(whose, hold.account, hold.user)]

    def _running(self, whose: Whose, within: tuple[float, float] | None = None) -> int:
        """Return what open jobs without a hold have used by now, in a window."""
        window = within or (0.0, self._now)
        return sum(rate * int(overlap(usage.start, self._now, window)) for usage, rate in self._open(whose))

    def _open(self, whose: Whose) -> list[tuple[Usage, int]]:
        """Return open jobs that no hold covers, and what each costs a second."""
        if whose not in self._outside:
            holds = {hold.session: hold for hold in self._holds}
            found = {
                charge_key(self._reads.cluster, usage.job_id, usage.submitted): usage
                for usage in self._books.running()
                if usage.start
                and not usage.end
                and _is_of(whose, usage.account, usage.user)
                and not covers(holds.get(named_session(usage)), usage)
            }
            # The last look may be older than the last settling.
            charged = self._reads.entries(found) if found else {}
            self._outside[whose] = [
                (usage, self._books.rate(usage.gpus, usage.partition, usage.qos)[0])
                for key, usage in found.items()
                if key not in charged
            ]
        return self._outside[whose]


def _is_of(whose: Whose, account: str, user: str) -> bool:
    return (whose.account is None or whose.account == account) and (whose.users is None or user in whose.users)


def _count(gpus: Sequence[Gpus]) -> int:
    return sum(each.whole for each in gpus)
