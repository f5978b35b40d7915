"""Use and holds at one time, as the rules need them; ``SnapshotReader`` reads them for admission, slots and pages.

A session's hold counts in the windows that are open now. A reservation's hold counts, whole, in every window that its
time lies in, and in no other; in a rolling window, which ends at any time, also if its time begins within as many days.
So no limit of a window can be exceeded, whenever a reservation is used within its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import Balance, charge_key
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.rules import DAY, AppliedQuota, Facts, Person, SubjectKind, SubjectUsage, Window
from carme_hub.domain.quotas.windows import overlap, span
from carme_hub.store.ledger.writes import HoldLine, LedgerReads, Subject

from .context import LedgerContext, covers, named_session


@dataclass(frozen=True, slots=True)
class WindowUse:
    """Use of one subject in one rule's window, in milli-GPU-seconds: used (with running jobs) and held."""

    used: int
    held: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class ReleasedHold:
    """The amount of a reservation's hold that does not count, because the session would take it over."""

    slot: str
    amount: int


NOTHING_FREED = ReleasedHold("", 0)


@dataclass(frozen=True, slots=True)
class ReplacedSession:
    """A session that has ended when the new one starts: its GPUs are free, and ``amount`` of its hold is released."""

    session: str = ""
    account: str = ""
    amount: int = 0


NOTHING_REPLACED = ReplacedSession()


class SnapshotReader:
    """Reads facts within one transaction; facts that several rules need are read once.

    Args:
        person: whose use counts for a group if the group's members are not known.
        at: the time whose windows count; the default is now. Running jobs count up to now.
        extends: the session whose extension reaches into those windows, so that its hold counts there.
        replaced: the session that the requested one replaces.
    """

    def __init__(
        self,
        context: LedgerContext,
        reads: LedgerReads,
        person: Person,
        now: float,
        *,
        at: float | None = None,
        freed: ReleasedHold = NOTHING_FREED,
        extends: str = "",
        replaced: ReplacedSession = NOTHING_REPLACED,
    ) -> None:
        self._extends = extends
        self._context = context
        self._reads = reads
        self._person = person
        self._now = now
        self._at = now if at is None else at
        self._zone = context.policy().zone
        held = reads.held()
        self._holds = [_without(hold, replaced) for hold in held if not hold.is_slot]
        self._slots = [
            replace(hold, amount=hold.amount - freed.amount) if hold.session == freed.slot else hold
            for hold in held
            if hold.is_slot
        ]
        self._freed = {hold.account: freed.amount for hold in held if hold.is_slot and hold.session == freed.slot}
        self._freed[replaced.account] = self._freed.get(replaced.account, 0) + replaced.amount
        self._outside: dict[Subject, list[tuple[Usage, int]]] = {}
        self._taken: dict[tuple[Subject, float, float], WindowUse] = {}
        self._used: dict[tuple[Subject, float, float | None], int] = {}
        self._last_use: dict[Subject, int] = {}
        self._balances: dict[str, Balance] = {}
        self._by_subject: dict[tuple[Subject, bool], list[HoldLine]] = {}

    def move_to(self, at: float) -> None:
        """Read the windows of another time from here on."""
        self._at = at
        self._taken.clear()

    def count(self, slot: HoldLine) -> None:
        """Count the hold of one more reservation."""
        self._slots.append(slot)
        self._taken.clear()
        for (subject, of_slots), mine in self._by_subject.items():
            if of_slots and _is_of(subject, slot.account, slot.user):
                mine.append(slot)
        if (balance := self._balances.get(slot.account)) is not None:
            self._balances[slot.account] = replace(balance, held=balance.held + slot.amount)

    def facts(self, applied: Sequence[AppliedQuota], accounts: Iterable[str]) -> Facts:
        """Return the facts for these rules and accounts."""
        use = {(one.quota.id, one.subject): self._use(one) for one in applied}
        left = {
            name: balance.left - self._running(Subject(name)) + self._freed.get(name, 0)
            for name, balance in self.balances(accounts).items()
        }
        return Facts(self._at, use, left)

    def counts_later(self, applied: Iterable[AppliedQuota]) -> bool:
        """Return whether a reservation counts for these rules, so that later windows may not be empty."""
        timed = (one for one in applied if one.quota.gpu_time is not None) if self._slots else ()
        return any(self._booked(self.subject_of(one)) for one in timed)

    def counts(self, one: AppliedQuota, account: str, user: str) -> bool:
        """Return whether a hold of this user and account counts for a rule."""
        return _is_of(self.subject_of(one), account, user)

    def balances(self, accounts: Iterable[str]) -> dict[str, Balance]:
        """Return the ledger's balances, without jobs that run outside the hub."""
        names = sorted(set(accounts))
        if new := [name for name in names if name not in self._balances]:
            self._balances |= self._reads.balances(new)
        return {name: self._balances[name] for name in names}

    def subject_of(self, one: AppliedQuota) -> Subject:
        """Return the subject whose entries count for a rule."""
        quota = one.quota
        if quota.who is SubjectKind.ACCOUNT:
            return Subject(account=one.subject)
        if quota.together and quota.who in (SubjectKind.GROUP, SubjectKind.ROLE):
            return Subject(users=self._context.group(quota.who, one.subject, self._person))
        return Subject(users=frozenset({one.subject}))

    def taken(self, one: AppliedQuota) -> WindowUse:
        """Return the use of a rule's GPU time in its window."""
        subject, (start, end) = self.subject_of(one), span(one.quota, self._at, self._zone)
        key = (subject, start, end)
        if key not in self._taken:
            until = None if one.quota.window in (Window.TOTAL, Window.ROLLING) else end
            used = self._use_of(subject, start, until) + self._running(subject, (start, end))
            open_now = (
                [hold for hold in self._held(subject) if self._counts_in(hold, start)] if end >= self._now else []
            )
            reach = end + one.quota.days * DAY if one.quota.window is Window.ROLLING else end
            booked = [slot for slot in self._booked(subject) if slot.start < reach and slot.end > start]
            self._taken[key] = WindowUse(used, sum(hold.amount for hold in (*open_now, *booked)), start, end)
        return self._taken[key]

    def _use_of(self, subject: Subject, since: float, until: float | None) -> int:
        if subject.account is not None and subject == Subject(subject.account) and since <= 0 and until is None:
            return self.balances([subject.account])[subject.account].used  # the store keeps this sum
        key = (subject, since, until)
        if key not in self._used:
            self._used[key] = (
                0 if self._unused_since(subject, since) else self._reads.used(subject, since, until).amount
            )
        return self._used[key]

    def _unused_since(self, subject: Subject, since: float) -> bool:
        """Return whether nothing was used since, without reading entries: most bookings are later than all use."""
        if self._at <= self._now:
            return False
        if subject not in self._last_use:
            self._last_use[subject] = self._reads.last_use(subject)
        return int(since) >= self._last_use[subject]

    def _counts_in(self, hold: HoldLine, start: float) -> bool:
        """Return whether a session's hold counts in a window that begins at ``start``."""
        return self._at <= self._now or hold.end > start or (bool(hold.session) and hold.session == self._extends)

    def _use(self, one: AppliedQuota) -> SubjectUsage:
        quota, subject = one.quota, self.subject_of(one)
        gpu_time, frees_at = 0, 0.0
        frees: tuple[tuple[float, int], ...] = ()
        if quota.gpu_time is not None:
            taken = self.taken(one)
            gpu_time = taken.used + taken.held
            frees_at, frees = self._frees(one, subject, taken)
        if quota.concurrent_gpus is None and quota.sessions is None and quota.sessions_per_day is None:
            return SubjectUsage(gpu_time, frees_at, frees=frees)
        holds, outside = self._held(subject), [usage for usage, _ in self._open(subject)]
        last = {hold.session: hold.end for hold in sorted(holds, key=lambda hold: hold.end)}
        ends = [(last[hold.session], hold.gpus) for hold in holds if hold.is_first]
        outside_ends = [(each.start + each.time_limit, _count(each.gpus)) for each in outside if each.time_limit]
        return SubjectUsage(
            gpu_time=gpu_time,
            frees_at=frees_at,
            gpus=sum(hold.gpus for hold in holds) + sum(_count(each.gpus) for each in outside),
            sessions=len(ends),
            started=self._reads.started(subject, self._now - DAY) if quota.sessions_per_day is not None else (),
            ends=tuple(sorted(ends + outside_ends)),
            frees=frees,
        )

    def _frees(
        self, one: AppliedQuota, subject: Subject, taken: WindowUse
    ) -> tuple[float, tuple[tuple[float, int], ...]]:
        if one.quota.window is Window.TOTAL:
            return 0.0, ()
        if one.quota.window is not Window.ROLLING:
            return taken.end, ()
        days, since = one.quota.days * DAY, int(taken.start)
        frees: list[tuple[float, int]] = []
        if self._unused_since(subject, taken.start):
            return 0.0, ()
        for start, end, amount in self._reads.oldest_uses(subject, taken.start):
            part = amount if start >= since else amount // (end - start) * (end - since)
            frees.append((float(end + days), part))
        return (frees[0][0] if frees else 0.0), tuple(frees)

    def _held(self, subject: Subject) -> list[HoldLine]:
        return self._of(subject, of_slots=False)

    def _booked(self, subject: Subject) -> list[HoldLine]:
        return self._of(subject, of_slots=True)

    def _of(self, subject: Subject, *, of_slots: bool) -> list[HoldLine]:
        if (subject, of_slots) not in self._by_subject:
            holds = self._slots if of_slots else self._holds
            self._by_subject[subject, of_slots] = [hold for hold in holds if _is_of(subject, hold.account, hold.user)]
        return self._by_subject[subject, of_slots]

    def _running(self, subject: Subject, within: tuple[float, float] | None = None) -> int:
        """Return what open jobs without a hold have used in a window until now."""
        window = within or (0.0, self._now)
        return sum(rate * int(overlap(usage.start, self._now, window)) for usage, rate in self._open(subject))

    def _open(self, subject: Subject) -> list[tuple[Usage, int]]:
        """Return open jobs that no hold covers, with the price of each per second."""
        if subject not in self._outside:
            holds = {hold.session: hold for hold in self._holds}
            found = {
                charge_key(self._reads.cluster, usage.job_id, usage.submitted): usage
                for usage in self._context.running()
                if usage.start
                and not usage.end
                and _is_of(subject, usage.account, usage.user)
                and not covers(holds.get(named_session(usage)), usage)
            }
            # The last snapshot of Slurm may be older than the last settlement.
            charged = self._reads.entries(found) if found else {}
            self._outside[subject] = [
                (usage, self._context.rate(usage.gpus, usage.partition, usage.qos)[0])
                for key, usage in found.items()
                if key not in charged
            ]
        return self._outside[subject]


def _without(hold: HoldLine, replaced: ReplacedSession) -> HoldLine:
    """Return a hold as it is without the replaced session; the first line of a session has its number of GPUs."""
    if hold.session != replaced.session or not replaced.session:
        return hold
    back = replaced.amount if hold.is_first else 0
    return replace(hold, amount=hold.amount - back, gpus=0, is_first=False)


def gpu_time_rules(applied: Iterable[AppliedQuota]) -> list[AppliedQuota]:
    """Return the rules with only their limits on GPU time, balance and GPU types, without those on sessions."""
    return [
        replace(
            one,
            quota=replace(
                one.quota,
                concurrent_gpus=None,
                session_gpus=None,
                sessions=None,
                sessions_per_day=None,
                time_limit=None,
                may_extend=None,
            ),
        )
        for one in applied
    ]


def window_moments(applied: Iterable[AppliedQuota], start: float, end: float, zone: str) -> list[float]:
    """Return times in whose windows all GPU time from ``start`` to ``end`` lies: its start, and starts of windows.

    A rolling window has no start: it is checked once per its length, and at the end.
    """
    found = {start}
    for quota in (one.quota for one in applied if one.quota.gpu_time is not None):
        if quota.window is Window.TERM:
            found |= {quota.start} if start < quota.start < end else set()
        elif quota.window is Window.ROLLING:
            found |= {*range(int(start) + quota.days * DAY, int(end), quota.days * DAY), max(start, end - 1)}
        elif quota.window is not Window.TOTAL:
            at = start
            while (at := span(quota, at, zone)[1]) < end:
                found.add(at)
    return sorted(found)


def _is_of(subject: Subject, account: str, user: str) -> bool:
    return (subject.account is None or subject.account == account) and (subject.users is None or user in subject.users)


def _count(gpus: Sequence[Gpus]) -> int:
    return sum(each.whole for each in gpus)
