"""Settlement: charge the use in Slurm's accounting, refund by the rules, and release holds. It is idempotent.

The quotas service runs it each minute. Jobs are settled in batches, each in a transaction of its own, so that no start
waits for long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from carme_hub.accounting.anomalies import detection
from carme_hub.accounting.slots.holds import return_unused
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.ledger.entries import SYSTEM_ACTOR, Entry, Kind, charge_key, refund_key
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.sessions.session import MAINTENANCE_STOP, Session, SessionState
from carme_hub.store.ledger.writes import Anomaly, LedgerReads, LedgerWrites, OpenHold

from .admission import release_entry
from .context import SETTLING_DELAY, UNWRITTEN_TIMEOUT, LedgerContext, covers, named_session
from .credit_expiry import expire_all

#: Name of the note of the last settlement.
SETTLED = "settled"
#: Incarnations that are settled in one transaction.
BATCH_SIZE = 300
#: Seconds by which the clocks of hub and Slurm may differ.
SKEW = 60

_REFUNDED_STATES = {
    "NODE_FAIL": ("node-failure", "a node failed"),
    "BOOT_FAIL": ("node-failure", "a node did not start"),
    "PREEMPTED": ("preemption", "the job was preempted"),
}
#: States of an incarnation after which the job may have another one.
_REQUEUED_STATES = {"REQUEUED", "RESIZING", *_REFUNDED_STATES}


@dataclass(slots=True)
class SettlementResult:
    """What one settlement wrote.

    Attributes:
        waiting: keys of charges left for the next settlement: it is not known yet whether the session became usable.
        forgotten: (job id, submitted) of records without an end whose job does not run; they do not count as use.
    """

    charged: list[Entry] = field(default_factory=list)
    refunded: list[Entry] = field(default_factory=list)
    released: list[Entry] = field(default_factory=list)
    expired: list[Entry] = field(default_factory=list)
    flagged: list[Anomaly] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    forgotten: set[tuple[int, float]] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.charged or self.refunded or self.released or self.expired or self.flagged)


def settle(
    context: LedgerContext,
    usages: Iterable[Usage],
    sessions: Iterable[Session],
    *,
    live: Collection[int] | None = None,
    since: float = 0.0,
) -> SettlementResult:
    """Settle the records of Slurm's accounting.

    Args:
        usages: every incarnation with GPUs since ``since``, of everybody, open ones too.
        sessions: rows of the sessions that these jobs name, and of all sessions with a hold.
        live: job ids that the controller knows, None if it did not answer.
    """
    rows = {session.id: session for session in sessions}
    by_group: dict[object, list[Usage]] = {}
    for usage in usages:
        by_group.setdefault(usage.job_id, []).append(usage)
    named = {id for group in by_group.values() for usage in group if (id := _session_of(usage, rows))}
    result = SettlementResult()
    for part in _batches(by_group.values()):
        with context.store.transaction(context.cluster) as writes:
            _Settlement(context, writes, rows, live, result).jobs(part)
    with context.store.transaction(context.cluster) as writes:
        _Settlement(context, writes, rows, live, result).without_jobs(named, since)
    result.expired = expire_all(context)
    with context.store.transaction(context.cluster) as writes:
        writes.replace_note(SETTLED, {"since": since, "waiting": len(result.waiting)}, context.clock())
    return result


class _Settlement:
    """The part of a settlement in one transaction."""

    def __init__(
        self,
        context: LedgerContext,
        writes: LedgerWrites,
        rows: Mapping[str, Session],
        live: Collection[int] | None,
        result: SettlementResult,
    ) -> None:
        self._context, self._writes, self._rows, self._live, self._result = context, writes, rows, live, result
        self._now = context.clock()
        self._holds = writes.open_holds()
        self._decided: set[str] = set()  # keys of anomalies on which a person decided
        self._runaways = {each.key: each.id for each in writes.anomalies(kind=detection.RUNAWAY)}

    def jobs(self, groups: Sequence[Sequence[Usage]]) -> None:
        """Settle all incarnations of some job ids."""
        charges: dict[int, list[Entry]] = {}
        ids = {group[0].job_id for group in groups}
        self._decided = {each.key for each in self._writes.anomalies_of_jobs(ids) if each.by_person}
        for charge in self._writes.charges(ids):
            charges.setdefault(charge.job_id, []).append(charge)
        entries: list[Entry] = []
        for group in groups:
            entries += self._group(group, {int(each.submitted): each for each in charges.get(group[0].job_id, ())})
        for entry in self._append(entries):
            kept = {Kind.CHARGE: self._result.charged, Kind.RELEASE: self._result.released}
            kept.get(entry.kind, self._result.refunded).append(entry)

    def without_jobs(self, named: Collection[str], since: float) -> None:
        """Release holds of sessions without a job in these records; record an anomaly for those that did run."""
        for id, hold in self._holds.items():
            session = self._rows.get(id)
            if id in named or not self._may_be_over(session, hold):
                continue
            why = self._release_reason(session, hold, since)
            if why:
                self._result.released += self._append([release_entry(hold, self._now, why)])

    def _append(self, entries: Sequence[Entry]) -> list[Entry]:
        """Write entries; what released sessions did not use of a reservation's hold returns to the reservation."""
        written = self._writes.append(entries)
        if over := [entry.session for entry in written if entry.kind is Kind.RELEASE]:
            return_unused(self._context, self._writes, over, self._now)
        return written

    def _group(self, group: Sequence[Usage], charges: Mapping[int, Entry]) -> list[Entry]:
        entries: list[Entry] = []
        settled = True  # nothing of this job remains to be charged
        for usage in group:
            if self._is_forgotten(usage, group):
                self._result.forgotten.add((usage.job_id, usage.submitted))
            session = self._session(usage)
            charge = charges.get(int(usage.submitted))
            if charge is not None:
                if detection.is_ended(usage) and detection.is_changed(usage, charge) and not self._is_decided(usage):
                    self._flag(detection.CHANGED, usage, charge)
                continue
            others = [(u.start, u.end) for u in group if u is not usage]
            here = {int(each.submitted) for each in group}
            others += [(each.start, each.end) for at, each in charges.items() if at not in here]
            wrong = detection.anomaly_kind(usage, others, now=self._now, grace=self._context.grace, live=self._live)
            if wrong:
                self._flag(wrong, usage)
                settled = settled and self._is_decided(usage)
            elif detection.is_open(usage):
                settled = settled and self._is_phantom(usage, session)
            # A person's decision stays, also when accounting is corrected later.
            elif detection.is_ended(usage) and not self._is_decided(usage):
                if self._is_start_unknown(usage, session):
                    self._result.waiting.append(charge_key(self._context.cluster, usage.job_id, usage.submitted))
                    settled = False
                else:
                    entries += self._charge(usage, session)
        session = self._session(group[0])
        hold = self._holds.get(session.id) if session else None
        if settled and session and hold and self._is_over(group, session):
            entries.append(release_entry(hold, self._now, "the session is over"))
        return entries

    def _charge(self, usage: Usage, session: Session | None) -> list[Entry]:
        hold = self._holds.get(session.id) if session else None
        charge = charge_of(self._context, usage, session.id if session else "", hold, self._now)
        runaway = self._runaways.get(
            detection.anomaly_key(detection.RUNAWAY, charge.cluster, usage.job_id, usage.submitted)
        )
        if runaway:
            self._writes.settle_anomaly(runaway, self._now, SYSTEM_ACTOR, "accounting has the end now; charged")
        why = self._refund(usage, session)
        if not why:
            return [charge]
        key = refund_key(self._context.cluster, usage.job_id, usage.submitted)
        return [charge, charge.replace(key=key, kind=Kind.CORRECTION, amount=-charge.amount, reason=f"refunded: {why}")]

    def _refund(self, usage: Usage, session: Session | None) -> str:
        rules = self._context.policy().refunded
        rule, why = _REFUNDED_STATES.get(usage.state.split(" ")[0], ("", ""))
        if rule in rules:
            return why
        # The job id is compared, too: anybody can give another job the name of a session that failed.
        if session is None or session.job_id != usage.job_id:
            return ""
        if not session.started and "start-failed" in rules:
            return "the session never became usable"
        stopped = "maintenance" in rules and _stopped_for_maintenance(usage, session)
        return "its user stopped it for maintenance of the node" if stopped else ""

    def _session(self, usage: Usage) -> Session | None:
        session = self._rows.get(named_session(usage))
        if session is None or session.cluster != self._context.cluster or session.user != usage.user:
            return None
        return session

    def _is_start_unknown(self, usage: Usage, session: Session | None) -> bool:
        """Return whether it is not known yet if the session became usable."""
        if session is None or session.started or session.state is SessionState.ENDED:
            return False
        return usage.phase is Phase.TERMINAL and self._now < usage.end + SETTLING_DELAY

    def _is_over(self, group: Sequence[Usage], session: Session) -> bool:
        if session.job_id and session.job_id != group[0].job_id:
            return False  # another job of this user has the session's name
        newest = max(group, key=lambda usage: usage.submitted)
        # A requeued job may have a record or not, so only the hub knows that no incarnation follows.
        may_come_back = newest.state.split(" ")[0] in _REQUEUED_STATES
        return session.state is SessionState.ENDED or (newest.phase is Phase.TERMINAL and not may_come_back)

    def _is_forgotten(self, usage: Usage, group: Sequence[Usage]) -> bool:
        """Return whether a record without an end belongs to a job that does not run."""
        if not detection.is_open(usage):
            return False
        if any(usage.submitted < each.submitted for each in group):
            return True  # its job id was reused, or it has a later incarnation
        if self._live is not None:
            return detection.is_runaway(usage, self._live, now=self._now, grace=self._context.grace)
        key = detection.anomaly_key(detection.RUNAWAY, self._context.cluster, usage.job_id, usage.submitted)
        return key in self._runaways or key in self._decided

    def _is_phantom(self, usage: Usage, session: Session | None) -> bool:
        """Return whether accounting has a job as pending that was proved to be gone."""
        return not usage.start and session is not None and session.state is SessionState.ENDED

    def _is_decided(self, usage: Usage) -> bool:
        kinds = (detection.NEGATIVE, detection.LONG, detection.RUNAWAY, detection.REUSED)
        keys = [detection.anomaly_key(kind, self._context.cluster, usage.job_id, usage.submitted) for kind in kinds]
        return not self._decided.isdisjoint(keys)

    def _flag(self, kind: str, usage: Usage, charge: Entry | None = None) -> None:
        session = self._session(usage)
        id = session.id if session else ""
        rate = _rate_of(self._context, usage, self._holds.get(id))
        found = detection.anomaly(kind, self._context.cluster, usage, id, self._now, rate, charge)
        self._result.flagged += self._writes.add_anomalies([found])

    def _may_be_over(self, session: Session | None, hold: OpenHold) -> bool:
        if session is not None:
            return session.state is SessionState.ENDED
        # No row was ever written: the hub ended between the hold and the row.
        return hold.job_id is None and hold.entry.at < self._now - UNWRITTEN_TIMEOUT

    def _release_reason(self, session: Session | None, hold: OpenHold, since: float) -> str:
        """Return the reason to release a hold, "" if it must stay."""
        if session is None or not session.job_id:
            return "the session never got a job"
        if not hold.entry.gpus:
            return "the session is over"
        anomalies = self._session_anomalies(session)
        if not all(each.settled for each in anomalies):
            return ""
        if any(entry.kind is Kind.CHARGE for entry in self._writes.of_session(session.id)):
            return "the session is over"
        if session.ended > self._now - (self._context.grace if session.started else SETTLING_DELAY):
            return ""  # accounting may not have the job yet
        if anomalies:  # a person has settled all of them, so no later record of this job is charged
            return "the session is over, and a person decided on its records"
        if not session.started:
            return "the session's job never started"
        if session.created < since:
            return ""
        missing = detection.missing(self._context.cluster, hold.entry, session.job_id, self._now)
        self._result.flagged += self._writes.add_anomalies([missing])
        return ""

    def _session_anomalies(self, session: Session) -> list[Anomaly]:
        """Return the anomalies of a session's job, open or settled, without changed records, which were charged."""
        found = self._writes.anomalies_of_jobs([session.job_id])
        return [each for each in found if each.seen.get("session") == session.id and each.kind != detection.CHANGED]


def _stopped_for_maintenance(usage: Usage, session: Session) -> bool:
    """Return whether this incarnation ended because its user stopped it for maintenance."""
    at = session.cancel_wanted
    return session.cancel_reason.startswith(MAINTENANCE_STOP) and usage.start - SKEW <= at <= usage.end + SKEW


def charge_of(context: LedgerContext, usage: Usage, session: str, hold: OpenHold | None, at: float) -> Entry:
    """Return the charge of one ended incarnation: (end − start) × GPUs × factor, at the price of its admission."""
    rate, factor = _rate_of(context, usage, hold)
    start, end = int(usage.start), int(usage.end)
    return Entry(
        key=charge_key(context.cluster, usage.job_id, usage.submitted),
        kind=Kind.CHARGE,
        cluster=context.cluster,
        account=usage.account,
        amount=-(end - start) * rate,
        at=at,
        user=usage.user,
        session=session,
        job_id=usage.job_id,
        submitted=int(usage.submitted),
        start=start,
        end=end,
        gpus=usage.gpus,
        factor=factor,
        partition=usage.partition,
        qos=usage.qos,
        nodes=usage.nodes,
        reason=f"job {usage.shown_id}: {usage.state.lower().replace('_', ' ')}",
    )


def _rate_of(context: LedgerContext, usage: Usage, hold: OpenHold | None) -> tuple[int, int]:
    admitted = hold.entry if hold is not None and covers(hold, usage) else None
    return context.admitted_rate(admitted, usage.gpus, usage.partition, usage.qos)


def _session_of(usage: Usage, rows: Mapping[str, Session]) -> str:
    """Return the session whose job this is, "" for none. The name proves nothing, so user and job id must match."""
    session = rows.get(named_session(usage))
    if session is None or session.user != usage.user or session.job_id not in (0, usage.job_id):
        return ""
    return session.id


def sessions_wanted(reads: LedgerReads, usages: Iterable[Usage]) -> set[str]:
    """Return the UUIDs of the sessions whose rows ``settle`` needs."""
    return set(reads.open_holds()) | {named_session(usage) for usage in usages} - {""}


def _batches(groups: Iterable[list[Usage]]) -> Iterator[list[list[Usage]]]:
    part: list[list[Usage]] = []
    for group in groups:
        part.append(group)
        if sum(map(len, part)) >= BATCH_SIZE:
            yield part
            part = []
    if part:
        yield part
