"""Decisions of people on anomalies: charge for so many seconds, or nothing."""

from __future__ import annotations

from carme_hub.accounting.anomalies import detection
from carme_hub.accounting.context import LedgerContext, Unknown
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import Entry, Kind, charge_key, refund_key
from carme_hub.errors import Refused
from carme_hub.store.ledger.rows import gpus_of
from carme_hub.store.ledger.writes import Anomaly, LedgerWrites


def decide_anomaly(context: LedgerContext, id: int, actor: str, decision: str, seconds: int | None) -> Entry | None:
    """Settle an anomaly and return the charge or correction for it.

    Args:
        seconds: for how long the GPUs are charged in all; None = nothing is charged, or what was charged stays.

    Raises:
        Unknown: there is no such anomaly.
        Refused: somebody has decided already, or accounting has no job to charge.
    """
    if not decision.strip():
        raise Refused(
            "Give a reason: the statement and the queue's history show it with the decision.", reason="no-reason"
        )
    if seconds is not None and seconds < 0:
        raise Refused("The charged time must be zero seconds or more.", reason="bad-amount")
    with context.store.transaction(context.cluster) as writes:
        found = writes.anomaly(id)
        if found is None:
            raise Unknown(f"There is no anomaly {id}.")
        now = context.clock()
        if not writes.settle_anomaly(id, now, actor, decision):
            raise Refused(f"{found.settled_by} has decided on this already: {found.decision}", reason="decided")
        if seconds is None:
            return None
        entry = _entry(context, writes, found, actor, decision, seconds, now)
        entries = [entry] if found.kind != detection.CHANGED else _corrections(writes, found, entry)
        written = writes.append(entries)
        return written[-1] if written else None


def _entry(
    context: LedgerContext, writes: LedgerWrites, found: Anomaly, actor: str, decision: str, seconds: int, now: float
) -> Entry:
    if not found.submitted:
        raise Refused(
            "Accounting has no job for this anomaly. To charge it, write a correction for its account.",
            reason="nothing-to-charge",
        )
    seen, gpus = found.seen, gpus_of(found.seen["gpus"])
    rate, factor = _price(context, writes, found, gpus)
    return Entry(
        key=charge_key(context.cluster, found.job_id, found.submitted),
        kind=Kind.CHARGE,
        cluster=context.cluster,
        account=found.account,
        amount=-seconds * rate,
        at=now,
        user=found.user,
        session=seen["session"],
        job_id=found.job_id,
        submitted=found.submitted,
        start=seen["start"],
        end=seen["start"] + seconds,
        gpus=gpus,
        factor=factor,
        partition=seen["partition"],
        qos=seen["qos"],
        nodes=seen["nodes"],
        reason=f"job {seen['job']}: {decision}",
        actor=actor,
    )


def _price(context: LedgerContext, writes: LedgerWrites, found: Anomaly, gpus: tuple[Gpus, ...]) -> tuple[int, int]:
    """Return rate and factor: of the written charge, or those in force when the anomaly was recorded."""
    seen = found.seen
    if found.kind == detection.CHANGED:
        charge = _charge(writes, found)
        if charge.gpus == gpus and charge.end > charge.start:
            return -charge.amount // int(charge.end - charge.start), charge.factor
        if charge.factor and {each.type for each in charge.gpus} == {each.type for each in gpus}:
            return sum(each.count for each in gpus) * charge.factor, charge.factor
    elif "rate" in seen:
        return int(seen["rate"]), int(seen["factor"])
    # Anomalies of early releases have no price: for a session's job its hold has it, for other jobs it is today's.
    hold = writes.open_holds([seen["session"]]).get(seen["session"]) if seen["session"] else None
    ours = hold is not None and hold.user == found.user and hold.job_id in (None, 0, found.job_id)
    return context.admitted_rate(hold.entry if hold and ours else None, gpus, seen["partition"], seen["qos"])


def _corrections(writes: LedgerWrites, found: Anomaly, entry: Entry) -> list[Entry]:
    """Return the corrections from the written charge to the decided one.

    They have one time and no length: a difference has no rate, and counts in the window in which the job ended. They
    name no job, so that the job's refund stays the only correction that does. What was refunded is not refunded again.
    """
    charge = _charge(writes, found)
    refund = writes.entries([refund_key(found.cluster, found.job_id, found.submitted)]).values()
    given_back = sum(each.amount for each in refund)
    paid = charge.amount + given_back
    key = f"{detection.CHANGED}:{found.cluster}:{found.job_id}:{found.submitted}"
    moment = int(found.seen["charged"]["end"])
    put_right = entry.replace(key=key, kind=Kind.CORRECTION, job_id=0, submitted=0, start=moment, end=moment)
    if (charge.account, charge.user) == (found.account, found.user):
        return [put_right.replace(amount=min(entry.amount - charge.amount, -paid))]
    # It was another account's or user's use: the first one gets back exactly what it paid.
    back = put_right.replace(key=f"{key}:back", account=charge.account, user=charge.user, amount=-paid)
    back = back.replace(gpus=charge.gpus, factor=charge.factor, partition=charge.partition, qos=charge.qos)
    return [back, put_right.replace(amount=min(0, entry.amount + given_back))]


def _charge(writes: LedgerWrites, found: Anomaly) -> Entry:
    return writes.entries([charge_key(found.cluster, found.job_id, found.submitted)]).popitem()[1]
