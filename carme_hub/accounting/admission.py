"""Admission: check all rules that apply to a session and write its hold, in one write transaction.

``Ledger`` calls this for the hub. A session in a reservation takes over what the reservation holds for the session's
time. So nothing is held twice, and limits that were checked when the reservation was booked are not checked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from carme_hub.accounting.slots.holds import return_unused, slot_of_session, take_over
from carme_hub.domain.ledger.entries import Balance, Entry, Kind, hold_key, release_key
from carme_hub.domain.quotas.decision import Decision, decide
from carme_hub.domain.quotas.policy_rules import PolicyRequest, with_rules
from carme_hub.domain.quotas.rules import AppliedQuota, Facts, Person, QuotaRequest, SubjectKind, applicable
from carme_hub.errors import Refused
from carme_hub.store.ledger.slots import OpenSlot, open_slots
from carme_hub.store.ledger.writes import LedgerReads, LedgerWrites, OpenHold

from .context import LedgerContext, Unknown, covers, named_session
from .credit_expiry import expire_due
from .usage_snapshot import (
    NOTHING_FREED,
    NOTHING_REPLACED,
    ReleasedHold,
    ReplacedSession,
    SnapshotReader,
    WindowUse,
    gpu_time_rules,
    window_moments,
)

#: Reason of a hold on a statement.
HOLD_REASON = "held until the session is over"
#: Seconds by which Slurm's clock may be ahead of the hub's; a session that has just ended may be charged for them.
CLOCK_SKEW = 60


class StillRunning(Refused):
    """A hold cannot be released while its session has a job."""

    reason = "still-running"


@dataclass(frozen=True, slots=True)
class Limit:
    """One rule on GPU time for a person: what was taken, and the limit (milli-GPU-seconds)."""

    rule: AppliedQuota
    taken: WindowUse
    limit: int


@dataclass(frozen=True, slots=True)
class QuotaStatus:
    """A person's quotas: balances by account, all rules that apply, and the use of those on GPU time."""

    balances: dict[str, Balance]
    rules: tuple[AppliedQuota, ...]
    limits: tuple[Limit, ...]

    def of(self, account: str) -> QuotaStatus:
        """Return the part for one account: its balance, its own rules and those about the person."""

        def counts(one: AppliedQuota) -> bool:
            return one.quota.who is not SubjectKind.ACCOUNT or one.subject == account

        return QuotaStatus(
            {account: self.balances.get(account, Balance())},
            tuple(one for one in self.rules if counts(one)),
            tuple(limit for limit in self.limits if counts(limit.rule)),
        )

    def left(self, account: str, now: float) -> int | None:
        """Return what the tightest hard rule in force leaves, in milli-GPU-seconds; None if no rule limits it."""
        mine = self.of(account)
        hard = [each for each in mine.limits if not each.rule.quota.soft and each.rule.quota.in_force(now)]
        left = [each.limit - each.taken.used - each.taken.held for each in hard]
        if any(one.quota.needs_grant and one.quota.in_force(now) for one in mine.rules):
            left.append(mine.balances[account].left)
        return min(left) if left else None


def admit(
    context: LedgerContext,
    session: str,
    person: Person,
    ask: QuotaRequest,
    partition: str,
    qos: str,
    reason: str = HOLD_REASON,
    *,
    slot: str = "",
    instead_of: str = "",
) -> Decision:
    """Decide on a new session and hold what it may use; a second call for the same session is granted.

    Args:
        slot: the reservation in which it is to start, "" for none; one of another account, or one that is over, counts
            as none.
        instead_of: the session that it replaces, "" for none. That session has ended: what it cannot have used is
            released at once, and not only when it is settled.
    """
    if not session:
        raise ValueError("a session has an id")
    ask = _priced(context, ask, partition, qos)
    with context.store.transaction(context.cluster) as writes:
        known = writes.entries([hold_key(session), release_key(session)])
        if release_key(session) in known:
            raise Refused("The hold of this session was released. Start a new session.", reason="given-back")
        if known:
            return Decision(largest=ask)
        now = context.clock()
        expire_due(context, writes, now, ask.account)
        inside = open_slots(writes, [slot]).get(slot) if slot else None
        replaced, back = _replaced(writes, instead_of, now)
        asked = _AdmissionCheck(context, writes, person, now, inside, replaced=replaced)
        start, end = int(now), int(now) + ask.seconds
        decision = asked.decide(ask, start, end, partition, qos)
        if decision.granted:
            hold = Entry(
                key=hold_key(session),
                kind=Kind.HOLD,
                cluster=context.cluster,
                account=ask.account,
                amount=-ask.amount,
                at=now,
                user=person.user,
                session=session,
                start=start,
                end=end,
                gpus=(ask.gpus,) if ask.gpus else (),
                factor=ask.factor,
                partition=partition,
                qos=qos,
                reason=reason,
            )
            writes.append([*back, *asked.taken(session, ask, start, end), hold])
    return decision


def extend(
    context: LedgerContext, session: str, seconds: int, person: Person | None, extension: int | None
) -> Decision:
    """Hold more for an open session, at the price at which it was admitted."""
    if seconds <= 0:
        raise Refused("Ask for one second more or longer.", reason="bad-amount")
    with context.store.transaction(context.cluster) as writes:
        hold = _open_hold(writes, session)
        first, now = hold.entry, context.clock()
        gpus = first.gpus[0] if first.gpus else QuotaRequest("").gpus
        ask = QuotaRequest(first.account, gpus, seconds, first.factor, already_held=hold.seconds)
        if extension is not None and extension <= hold.extensions:
            return Decision(largest=ask)
        expire_due(context, writes, now, ask.account)
        asked = _AdmissionCheck(
            context, writes, person or Person(first.user), now, slot_of_session(writes, session), session
        )
        decision = asked.decide(ask, hold.end, hold.end + seconds, first.partition, first.qos)
        if decision.granted:
            more = first.replace(
                key=hold_key(session, hold.extensions + 1),
                amount=-ask.amount,
                at=now,
                start=int(hold.end),
                end=int(hold.end) + seconds,
                reason="held for the session's longer time limit",
                id=0,
            )
            writes.append([*asked.taken(session, ask, hold.end, hold.end + seconds), more])
    return decision


def undo_extension(context: LedgerContext, session: str, reason: str) -> bool:
    """Undo a session's last extension, for example when Slurm refused it; return whether there was one."""
    with context.store.transaction(context.cluster) as writes:
        entries = {entry.key: entry for entry in writes.of_session(session)}
        if release_key(session) in entries:
            return False
        number = 1
        last = None
        while (found := entries.get(hold_key(session, number))) is not None:
            last = found if found.end > found.start else None  # an entry that undoes an extension covers no time
            number += 1
        if last is None:
            return False
        back = last.replace(
            key=hold_key(session, number), amount=-last.amount, at=context.clock(), end=last.start, reason=reason, id=0
        )
        writes.append([back])
        _return_extension(writes, session, context.clock())
        return True


def release(context: LedgerContext, session: str, reason: str, actor: str) -> bool:
    """Release all holds of a session; return whether there were any.

    Raises:
        StillRunning: it has a job in the last snapshot of Slurm.
    """
    with context.store.transaction(context.cluster) as writes:
        hold = writes.open_holds([session]).get(session)
        if hold is None:
            return False
        jobs = [each for each in context.running() if named_session(each) == session and covers(hold, each)]
        if jobs:
            raise StillRunning(f"Job {jobs[0].shown_id} of this session has not ended. End it first.")
        writes.append([release_entry(hold, context.clock(), reason, actor)])
        return_unused(context, writes, [session], context.clock())
    return True


def release_entry(hold: OpenHold, at: float, reason: str, actor: str = "carme-hub") -> Entry:
    """Return the entry that releases all holds of a session."""
    return hold.entry.replace(
        key=release_key(hold.entry.session),
        kind=Kind.RELEASE,
        amount=hold.amount,
        at=at,
        end=int(hold.end),
        reason=reason,
        actor=actor,
        id=0,
    )


def preview(
    context: LedgerContext,
    person: Person,
    asks: Sequence[QuotaRequest],
    partition: str,
    qos: str,
    *,
    slot: str = "",
    instead_of: str = "",
) -> list[Decision]:
    """Decide on several requests as if each were the only one; write nothing."""
    with context.store.reading(context.cluster) as reads:
        now = context.clock()
        inside = open_slots(reads, [slot]).get(slot) if slot else None
        asked = _AdmissionCheck(context, reads, person, now, inside, replaced=_replaced(reads, instead_of, now)[0])
        start = int(now)
        priced = [_priced(context, ask, partition, qos) for ask in asks]
        return [asked.decide(ask, start, start + ask.seconds, partition, qos) for ask in priced]


def quota_status(context: LedgerContext, person: Person, accounts: Iterable[str]) -> QuotaStatus:
    """Return balances, and the use of each rule on GPU time; write nothing."""
    names = sorted(set(accounts))
    with context.store.reading(context.cluster) as reads:
        snapshot, quotas = SnapshotReader(context, reads, person, context.clock()), context.policy().quotas
        rules = {(one.quota.id, one.subject): one for name in names or [""] for one in applicable(quotas, person, name)}
        limits = [
            Limit(one, snapshot.taken(one), one.quota.gpu_time)
            for one in rules.values()
            if one.quota.gpu_time is not None
        ]
        return QuotaStatus(snapshot.balances(names), tuple(rules.values()), tuple(limits))


class _AdmissionCheck:
    """Decides on requests of one person at one moment. Facts that several requests need are read once.

    Args:
        slot: the reservation in which the session is to run, None for none. extends: the session to extend.
        replaced: the session that the new one replaces.
    """

    def __init__(
        self,
        context: LedgerContext,
        reads: LedgerReads,
        person: Person,
        now: float,
        slot: OpenSlot | None,
        extends: str = "",
        replaced: ReplacedSession = NOTHING_REPLACED,
    ) -> None:
        self._context, self._reads, self._person, self._now, self._slot = context, reads, person, now, slot
        self._extends, self._replaced = extends, replaced
        self._gathered: dict[tuple[ReleasedHold, float], SnapshotReader] = {}
        self._facts: dict[tuple[str, ReleasedHold], Facts] = {}

    def decide(self, ask: QuotaRequest, start: float, end: float, partition: str, qos: str) -> Decision:
        """Decide on a request for GPUs from ``start`` to ``end`` by the policy's quotas and the site's own rules."""
        decision, freed = self._by_quotas(ask, start, end), self._freed(ask, start, end)
        request = PolicyRequest(
            *(self._person, ask, start, end, self._now),
            kind="extension" if self._extends else "session",
            in_booking=bool(freed.amount) and freed.amount == ask.amount,
            partition=partition,
            qos=qos,
        )
        return with_rules(decision, self._context.rules, request)

    def _by_quotas(self, ask: QuotaRequest, start: float, end: float) -> Decision:
        policy, freed = self._context.policy(), self._freed(ask, start, end)
        snapshot = self._snapshot(freed, self._now)
        applied = applicable(policy.quotas, self._person, ask.account)
        if (key := (ask.account, freed)) not in self._facts:
            self._facts[key] = snapshot.facts(applied, [ask.account])
        if self._slot is not None and freed.amount and freed.amount == ask.amount:
            applied = tuple(self._promised(snapshot, one, self._slot) for one in applied)
        decision = decide(applied, ask, self._facts[key], zone=policy.zone)
        lasting = gpu_time_rules(one for one in applied if one.quota.in_force(self._now))
        if not decision.granted or not snapshot.counts_later(lasting):
            return decision  # nothing counts in later windows that does not count in today's
        for at in window_moments(lasting, self._now, end, policy.zone)[1:]:
            facts = self._snapshot(freed, at).facts(lasting, [ask.account])
            later = decide(lasting, ask, facts, zone=policy.zone)
            if not later.granted:
                return later
        return decision

    def taken(self, session: str, ask: QuotaRequest, start: float, end: float) -> list[Entry]:
        """Return the entry by which a session takes over what the slot holds for it, if that is anything."""
        freed = self._freed(ask, start, end)
        return [take_over(self._slot, session, freed.amount, self._now)] if self._slot and freed.amount else []

    def _freed(self, ask: QuotaRequest, start: float, end: float) -> ReleasedHold:
        """Return what the slot holds for a request: for the time within the slot, and at most all that it holds."""
        slot = self._slot
        if slot is None or slot.entry.account != ask.account:
            return NOTHING_FREED
        return ReleasedHold(slot.id, min(slot.amount, slot.within(ask.gpus, ask.factor, start, end)))

    def _promised(self, snapshot: SnapshotReader, one: AppliedQuota, slot: OpenSlot) -> AppliedQuota:
        """Return a rule without the limits that were checked when the slot was booked: the balance, and GPU time.

        GPU time stays limited where the slot does not count for the rule.
        """
        quota = replace(one.quota, needs_grant=False)
        if not quota.soft and snapshot.counts(one, slot.entry.account, slot.entry.user):
            quota = replace(quota, gpu_time=None)
        return replace(one, quota=quota)

    def _snapshot(self, freed: ReleasedHold, at: float) -> SnapshotReader:
        key = (freed, at)
        if key not in self._gathered:
            self._gathered[key] = SnapshotReader(
                *(self._context, self._reads, self._person, self._now),
                at=at,
                freed=freed,
                extends=self._extends,
                replaced=self._replaced,
            )
        return self._gathered[key]


def _replaced(reads: LedgerReads, session: str, now: float) -> tuple[ReplacedSession, list[Entry]]:
    """Return what is released of a session that has ended and is not settled yet, and the entry that releases it.

    What it may be charged stays held: all the time from its admission until now. What it took over from a booking
    returns to the booking when the session is settled.
    """
    hold = reads.open_holds([session]).get(session) if session else None
    if hold is None:
        return NOTHING_REPLACED, []
    first, end = hold.entry, int(now) + CLOCK_SKEW
    kept = sum(each.count for each in first.gpus) * first.factor * (end - int(first.start))
    back = max(0, hold.amount - kept) if slot_of_session(reads, session) is None else 0
    about = {"key": hold_key(session, hold.extensions + 1), "amount": back, "at": now, "start": end, "end": end}
    entry = first.replace(**about, reason="another session goes on in its place", id=0)
    return ReplacedSession(session, first.account, back), [entry] if back else []


def _return_extension(writes: LedgerWrites, session: str, now: float) -> None:
    """Return to the reservation what a session took over beyond the time that it holds now."""
    slot, hold = slot_of_session(writes, session), writes.open_holds([session]).get(session)
    if slot is None or hold is None or not hold.entry.gpus:
        return
    needs = slot.within(hold.entry.gpus[0], hold.entry.factor, hold.entry.start, hold.end)
    if (back := slot.returned_amount(session, needs)) > 0:
        writes.append([slot.change(back, now, f"session {session} does not need it", session=session)])


def _priced(context: LedgerContext, ask: QuotaRequest, partition: str, qos: str) -> QuotaRequest:
    return replace(ask, factor=context.factor(ask.gpus.type, partition, qos)) if ask.gpus else ask


def _open_hold(writes: LedgerWrites, session: str) -> OpenHold:
    hold = writes.open_holds([session]).get(session)
    if hold is None:
        raise Unknown("This session holds no GPU time: it has ended, or was never admitted.")
    return hold
