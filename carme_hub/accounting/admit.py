"""Ask, and hold: every rule that applies is checked and the hold is written in one write transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from carme_hub.domain.ledger import Balance, Entry, Kind, hold_key, release_key
from carme_hub.domain.quotas import Applied, Ask, Decision, Person, Who, applying, decide
from carme_hub.errors import Refused
from carme_hub.store.ledger import LedgerReads, LedgerWrites, OpenHold

from .books import Books, Unknown, covers, named_session
from .credits import expire_due
from .facts import Gathering, Taken

#: What a statement says of a hold.
HELD = "held until the session is over"


class StillRunning(Refused):
    """A hold cannot be given back while its session has a job."""

    reason = "still-running"


@dataclass(frozen=True, slots=True)
class Limit:
    """One rule with GPU time as it stands for a person: what was taken, and of how much (milli-GPU-seconds)."""

    rule: Applied
    taken: Taken
    limit: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a person stands: balances by account, all rules that apply, and those with GPU time as they stand."""

    balances: dict[str, Balance]
    rules: tuple[Applied, ...]
    limits: tuple[Limit, ...]

    def of(self, account: str) -> Standing:
        """Return what of it counts for one account: its own rules and those about the person, and its balance."""

        def counts(one: Applied) -> bool:
            return one.quota.who is not Who.ACCOUNT or one.subject == account

        return Standing(
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
    books: Books, session: str, person: Person, ask: Ask, partition: str, qos: str, reason: str = HELD
) -> Decision:
    """Decide on a new session and hold what it may use; asked again for the same session, it is granted."""
    if not session:
        raise ValueError("a session has an id")
    ask = _priced(books, ask, partition, qos)
    with books.store.transaction(books.cluster) as now_ours:
        if now_ours.entries([hold_key(session)]):
            return Decision(largest=ask)
        now = books.clock()
        expire_due(books, now_ours, now, ask.account)
        decision = _decide(books, now_ours, person, ask, now)
        if decision.granted:
            hold = Entry(
                key=hold_key(session),
                kind=Kind.HOLD,
                cluster=books.cluster,
                account=ask.account,
                amount=-ask.amount,
                at=now,
                user=person.user,
                session=session,
                start=int(now),
                end=int(now) + ask.seconds,
                gpus=(ask.gpus,) if ask.gpus else (),
                factor=ask.factor,
                partition=partition,
                qos=qos,
                reason=reason,
            )
            now_ours.append([hold])
    return decision


def extend(books: Books, session: str, seconds: int, person: Person | None, extension: int | None) -> Decision:
    """Hold more for an open session, at the price it was admitted at."""
    if seconds <= 0:
        raise Refused("Ask for one second more or longer.", reason="bad-amount")
    with books.store.transaction(books.cluster) as now_ours:
        hold = _open_hold(now_ours, session)
        first, now = hold.entry, books.clock()
        gpus = first.gpus[0] if first.gpus else Ask("").gpus
        ask = Ask(first.account, gpus, seconds, first.factor, held=hold.seconds)
        if extension is not None and extension <= hold.extensions:
            return Decision(largest=ask)
        expire_due(books, now_ours, now, ask.account)
        decision = _decide(books, now_ours, person or Person(first.user), ask, now)
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
            now_ours.append([more])
    return decision


def undo_extension(books: Books, session: str, reason: str) -> bool:
    """Take a session's last extension back, as when Slurm refused it; return whether there was one."""
    with books.store.transaction(books.cluster) as now_ours:
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
            key=hold_key(session, number), amount=-last.amount, at=books.clock(), end=last.start, reason=reason, id=0
        )
        now_ours.append([back])
        return True


def release(books: Books, session: str, reason: str, actor: str) -> bool:
    """Give a session's holds back whole; return whether there were any.

    Raises:
        StillRunning: by the last look at Slurm it has a job.
    """
    with books.store.transaction(books.cluster) as now_ours:
        hold = now_ours.open_holds([session]).get(session)
        if hold is None:
            return False
        jobs = [each for each in books.running() if named_session(each) == session and covers(hold, each)]
        if jobs:
            raise StillRunning(f"Job {jobs[0].shown_id} of this session has not ended. End it first.")
        now_ours.append([released(hold, books.clock(), reason, actor)])
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


def preview(books: Books, person: Person, asks: Sequence[Ask], partition: str, qos: str) -> list[Decision]:
    """Decide on several requests as if each were the only one; nothing is written."""
    with books.store.reading(books.cluster) as reads:
        now = books.clock()
        gathering = Gathering(books, reads, person, now)
        zone, quotas = books.policy().zone, books.policy().quotas
        found, facts = [], {}
        for ask in asks:
            applied = applying(quotas, person, ask.account)
            if ask.account not in facts:
                facts[ask.account] = gathering.facts(applied, [ask.account])
            found.append(decide(applied, _priced(books, ask, partition, qos), facts[ask.account], zone=zone))
    return found


def standing(books: Books, person: Person, accounts: Iterable[str]) -> Standing:
    """Return balances, and what was taken of each rule with GPU time; nothing is written."""
    names = sorted(set(accounts))
    with books.store.reading(books.cluster) as reads:
        gathering, quotas = Gathering(books, reads, person, books.clock()), books.policy().quotas
        rules = {(one.quota.id, one.subject): one for name in names or [""] for one in applying(quotas, person, name)}
        limits = [
            Limit(one, gathering.taken(one), one.quota.gpu_time)
            for one in rules.values()
            if one.quota.gpu_time is not None
        ]
        return Standing(gathering.balances(names), tuple(rules.values()), tuple(limits))


def _decide(books: Books, reads: LedgerReads, person: Person, ask: Ask, now: float) -> Decision:
    policy = books.policy()
    applied = applying(policy.quotas, person, ask.account)
    facts = Gathering(books, reads, person, now).facts(applied, [ask.account])
    return decide(applied, ask, facts, zone=policy.zone)


def _priced(books: Books, ask: Ask, partition: str, qos: str) -> Ask:
    return replace(ask, factor=books.factor(ask.gpus.type, partition, qos)) if ask.gpus else ask


def _open_hold(writes: LedgerWrites, session: str) -> OpenHold:
    hold = writes.open_holds([session]).get(session)
    if hold is None:
        raise Unknown("This session holds no GPU time: it is over, or was never admitted.")
    return hold
