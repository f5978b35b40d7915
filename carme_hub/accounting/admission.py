"""Ask, and hold: every rule that applies is checked and the hold is written in one write transaction.

A session in a reservation takes over what that holds for its time, so nothing is held twice, and what was granted when
the reservation was booked is not asked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from carme_hub.accounting.slots.holds import return_unused, slot_with, take_over
from carme_hub.domain.ledger.entries import Balance, Entry, Kind, hold_key, release_key
from carme_hub.domain.quotas.decision import Decision, decide
from carme_hub.domain.quotas.rules import AppliedQuota, Ask, Facts, Person, Who, applying
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
    about_time,
    moments,
)

#: What a statement says of a hold.
HELD = "held until the session is over"
#: Seconds by which Slurm's clock may be ahead of ours where a session has just ended.
LATE = 60


class StillRunning(Refused):
    """A hold cannot be given back while its session has a job."""

    reason = "still-running"


@dataclass(frozen=True, slots=True)
class Limit:
    """One rule with GPU time as it stands for a person: what was taken, and of how much (milli-GPU-seconds)."""

    rule: AppliedQuota
    taken: WindowUse
    limit: int


@dataclass(frozen=True, slots=True)
class QuotaStatus:
    """Where a person stands: balances by account, all rules that apply, and those with GPU time as they stand."""

    balances: dict[str, Balance]
    rules: tuple[AppliedQuota, ...]
    limits: tuple[Limit, ...]

    def of(self, account: str) -> QuotaStatus:
        """Return what of it counts for one account: its own rules and those about the person, and its balance."""

        def counts(one: AppliedQuota) -> bool:
            return one.quota.who is not Who.ACCOUNT or one.subject == account

        return QuotaStatus(
            {account: self.balances.get(account, Balance())},
            tuple(one for one in self.rules if counts(one)),
            tuple(limit for limit in self.limits if counts(limit.rule)),
        )

    def left(self, account: str, now: float) -> int | None:
        """Return what is left by the tightest hard rule in force, in milli-GPU-seconds; None where none limits it."""
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
    ask: Ask,
    partition: str,
    qos: str,
    reason: str = HELD,
    *,
    slot: str = "",
    instead_of: str = "",
) -> Decision:
    """Decide on a new session and hold what it may use; asked again for the same session, it is granted.

    Args:
        slot: the reservation in which it is to start, "" for none; one of another account, or over, is none.
        instead_of: the session in place of which it starts, "" for none. That has ended: what it cannot have used any
            more is given back at once, in place of when it is settled.
    """
    if not session:
        raise ValueError("a session has an id")
    ask = _priced(context, ask, partition, qos)
    with context.store.transaction(context.cluster) as now_ours:
        known = now_ours.entries([hold_key(session), release_key(session)])
        if release_key(session) in known:
            raise Refused("What was held for this was given back meanwhile. Ask for it anew.", reason="given-back")
        if known:
            return Decision(largest=ask)
        now = context.clock()
        expire_due(context, now_ours, now, ask.account)
        inside = open_slots(now_ours, [slot]).get(slot) if slot else None
        replaced, back = _replaced(now_ours, instead_of, now)
        asked = _Asked(context, now_ours, person, now, inside, replaced=replaced)
        start, end = int(now), int(now) + ask.seconds
        decision = asked.decide(ask, start, end)
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
            now_ours.append([*back, *asked.taken(session, ask, start, end), hold])
    return decision


def extend(context: LedgerContext, session: str, seconds: int, person: Person | None, extension: int | None) -> Decision:
    """Hold more for an open session, at the price it was admitted at."""
    if seconds <= 0:
        raise Refused("Ask for one second more or longer.", reason="bad-amount")
    with context.store.transaction(context.cluster) as now_ours:
        hold = _open_hold(now_ours, session)
        first, now = hold.entry, context.clock()
        gpus = first.gpus[0] if first.gpus else Ask("").gpus
        ask = Ask(first.account, gpus, seconds, first.factor, held=hold.seconds)
        if extension is not None and extension <= hold.extensions:
            return Decision(largest=ask)
        expire_due(context, now_ours, now, ask.account)
        asked = _Asked(context, now_ours, person or Person(first.user), now, slot_with(now_ours, session), session)
        decision = asked.decide(ask, hold.end, hold.end + seconds)
        if decision.granted:
            more = first.but(
                key=hold_key(session, hold.extensions + 1),
                amount=-ask.amount,
                at=now,
                start=int(hold.end),
                end=int(hold.end) + seconds,
                reason="held for the session's longer time limit",
                id=0,
            )
            now_ours.append([*asked.taken(session, ask, hold.end, hold.end + seconds), more])
    return decision


def undo_extension(context: LedgerContext, session: str, reason: str) -> bool:
    """Take a session's last extension back, as when Slurm refused it; return whether there was one."""
    with context.store.transaction(context.cluster) as now_ours:
        entries = {entry.key: entry for entry in now_ours.of_session(session)}
        if release_key(session) in entries:
            return False
        number = 1
        last = None
        while (found := entries.get(hold_key(session, number))) is not None:
            last = found if found.end > found.start else None  # what takes one back is about no time
            number += 1
        if last is None:
            return False
        back = last.but(
            key=hold_key(session, number), amount=-last.amount, at=context.clock(), end=last.start, reason=reason, id=0
        )
        now_ours.append([back])
        _return_extension(now_ours, session, context.clock())
        return True


def release(context: LedgerContext, session: str, reason: str, actor: str) -> bool:
    """Give a session's holds back whole; return whether there were any.

    Raises:
        StillRunning: by the last look at Slurm it has a job.
    """
    with context.store.transaction(context.cluster) as now_ours:
        hold = now_ours.open_holds([session]).get(session)
        if hold is None:
            return False
        jobs = [each for each in context.running() if named_session(each) == session and covers(hold, each)]
        if jobs:
            raise StillRunning(f"Job {jobs[0].shown_id} of this session has not ended. End it first.")
        now_ours.append([released(hold, context.clock(), reason, actor)])
        return_unused(context, now_ours, [session], context.clock())
    return True


def released(hold: OpenHold, at: float, reason: str, actor: str = "carme-hub") -> Entry:
    """Return the entry that gives all holds of a session back."""
    return hold.entry.but(
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
    asks: Sequence[Ask],
    partition: str,
    qos: str,
    *,
    slot: str = "",
    instead_of: str = "",
) -> list[Decision]:
    """Decide on several requests as if each were the only one; nothing is written."""
    with context.store.reading(context.cluster) as reads:
        now = context.clock()
        inside = open_slots(reads, [slot]).get(slot) if slot else None
        asked = _Asked(context, reads, person, now, inside, replaced=_replaced(reads, instead_of, now)[0])
        start = int(now)
        return [asked.decide(_priced(context, ask, partition, qos), start, start + ask.seconds) for ask in asks]


def standing(context: LedgerContext, person: Person, accounts: Iterable[str]) -> QuotaStatus:
    """Return balances, and what was taken of each rule with GPU time; nothing is written."""
    names = sorted(set(accounts))
    with context.store.reading(context.cluster) as reads:
        gathering, quotas = SnapshotReader(context, reads, person, context.clock()), context.policy().quotas
        rules = {(one.quota.id, one.subject): one for name in names or [""] for one in applying(quotas, person, name)}
        limits = [
            Limit(one, gathering.taken(one), one.quota.gpu_time)
            for one in rules.values()
            if one.quota.gpu_time is not None
        ]
        return QuotaStatus(gathering.balances(names), tuple(rules.values()), tuple(limits))


class _Asked:
    """Decides on what one person asks at one moment. What several requests need is read once.

    Args:
        slot: the reservation in which it is to be, None for none. extends: the session that asks for more.
        replaced: the session in place of which it is to start.
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
        self._books, self._reads, self._person, self._now, self._slot = context, reads, person, now, slot
        self._extends, self._replaced = extends, replaced
        self._gathered: dict[tuple[ReleasedHold, float], SnapshotReader] = {}
        self._facts: dict[tuple[str, ReleasedHold], Facts] = {}

    def decide(self, ask: Ask, start: float, end: float) -> Decision:
        """Decide on GPUs from ``start`` to ``end``."""
        policy, freed = self._books.policy(), self._freed(ask, start, end)
        gathering = self._gathering(freed, self._now)
        applied = applying(policy.quotas, self._person, ask.account)
        if (key := (ask.account, freed)) not in self._facts:
            self._facts[key] = gathering.facts(applied, [ask.account])
        if self._slot is not None and freed.amount and freed.amount == ask.amount:
            applied = tuple(self._promised(gathering, one, self._slot) for one in applied)
        decision = decide(applied, ask, self._facts[key], zone=policy.zone)
        lasting = about_time(one for one in applied if one.quota.in_force(self._now))
        if not decision.granted or not gathering.fills_later(lasting):
            return decision  # windows to come are empty, but for what counts in today's as well
        for at in moments(lasting, self._now, end, policy.zone)[1:]:
            facts = self._gathering(freed, at).facts(lasting, [ask.account])
            later = decide(lasting, ask, facts, zone=policy.zone)
            if not later.granted:
                return later
        return decision

    def taken(self, session: str, ask: Ask, start: float, end: float) -> list[Entry]:
        """Return the entry by which a session takes over what the slot holds for it, none where that is nothing."""
        freed = self._freed(ask, start, end)
        return [take_over(self._slot, session, freed.amount, self._now)] if self._slot and freed.amount else []

    def _freed(self, ask: Ask, start: float, end: float) -> ReleasedHold:
        """Return what the slot holds for a request: for the time within it, and no more than is there."""
        slot = self._slot
        if slot is None or slot.entry.account != ask.account:
            return NOTHING_FREED
        return ReleasedHold(slot.id, min(slot.amount, slot.within(ask.gpus, ask.factor, start, end)))

    def _promised(self, gathering: SnapshotReader, one: AppliedQuota, slot: OpenSlot) -> AppliedQuota:
        """Return a rule without what was asked when the slot was booked: of those for whom that counts, GPU time."""
        quota = replace(one.quota, needs_grant=False)
        if not quota.soft and gathering.counts(one, slot.entry.account, slot.entry.user):
            quota = replace(quota, gpu_time=None)
        return replace(one, quota=quota)

    def _gathering(self, freed: ReleasedHold, at: float) -> SnapshotReader:
        key = (freed, at)
        if key not in self._gathered:
            self._gathered[key] = SnapshotReader(
                *(self._books, self._reads, self._person, self._now),
                at=at,
                freed=freed,
                extends=self._extends,
                replaced=self._replaced,
            )
        return self._gathered[key]


def _replaced(reads: LedgerReads, session: str, now: float) -> tuple[ReplacedSession, list[Entry]]:
    """Return what comes back of a session that has ended and is not settled yet, and the entry that gives it back.

    What it may be charged stays held: all the time from when it was admitted until now. What it took over from a
    booking goes back to that when it is settled.
    """
    hold = reads.open_holds([session]).get(session) if session else None
    if hold is None:
        return NOTHING_REPLACED, []
    first, end = hold.entry, int(now) + LATE
    kept = sum(each.count for each in first.gpus) * first.factor * (end - int(first.start))
    back = max(0, hold.amount - kept) if slot_with(reads, session) is None else 0
    about = {"key": hold_key(session, hold.extensions + 1), "amount": back, "at": now, "start": end, "end": end}
    entry = first.but(**about, reason="another session goes on in its place", id=0)
    return ReplacedSession(session, first.account, back), [entry] if back else []


def _return_extension(writes: LedgerWrites, session: str, now: float) -> None:
    """Give a reservation back what a session took over for more time than it holds now."""
    slot, hold = slot_with(writes, session), writes.open_holds([session]).get(session)
    if slot is None or hold is None or not hold.entry.gpus:
        return
    needs = slot.within(hold.entry.gpus[0], hold.entry.factor, hold.entry.start, hold.end)
    if (back := slot.back(session, needs)) > 0:
        writes.append([slot.more(back, now, f"session {session} does not need it", session=session)])


def _priced(context: LedgerContext, ask: Ask, partition: str, qos: str) -> Ask:
    return replace(ask, factor=context.factor(ask.gpus.type, partition, qos)) if ask.gpus else ask


def _open_hold(writes: LedgerWrites, session: str) -> OpenHold:
    hold = writes.open_holds([session]).get(session)
    if hold is None:
        raise Unknown("This session holds no GPU time: it is over, or was never admitted.")
    return hold
