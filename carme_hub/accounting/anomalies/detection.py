"""Detection of anomalies in Slurm's accounting: such records wait for a person and are not charged. Pure.

``settlement`` and ``reconciliation`` call it for each record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.ledger.entries import Entry
from carme_hub.domain.ledger.usage import Usage
from carme_hub.store.ledger.rows import gpus_text
from carme_hub.store.ledger.writes import Anomaly

NEGATIVE, LONG, RUNAWAY, REUSED, MISSING, CHANGED = "negative", "long", "runaway", "reused-id", "missing", "changed"


def is_ended(usage: Usage) -> bool:
    """Return whether this incarnation had GPUs and has ended. Accounting may know the state before the end."""
    return bool(usage.start and usage.end) and usage.phase not in (Phase.ACTIVE, Phase.ENDING)


def is_open(usage: Usage) -> bool:
    """Return whether this incarnation may still use GPUs."""
    if usage.end and usage.phase not in (Phase.ACTIVE, Phase.ENDING):
        return False
    return not (usage.phase is Phase.TERMINAL and not usage.start)


def anomaly_kind(
    usage: Usage,
    others: Iterable[tuple[float, float]],
    *,
    now: float,
    grace: int,
    live: Collection[int] | None,
) -> str:
    """Return the kind of the anomaly that a record shows, "" for none.

    Args:
        others: (start, end) of other incarnations of the same job id; the end is 0 for open ones.
        live: job ids that the controller knows; None = it was not asked, or did not answer.
    """
    if not usage.start:
        return ""
    if usage.end and usage.end < usage.start:
        return NEGATIVE
    end = usage.end or now
    if any(usage.start < (other or now) and start < end for start, other in others if start):
        return REUSED
    if not is_ended(usage):
        return RUNAWAY if live is not None and is_runaway(usage, live, now=now, grace=grace) else ""
    is_long = bool(usage.time_limit) and usage.end - usage.start > usage.time_limit + usage.suspended + grace
    return LONG if is_long or usage.end > now + grace else ""


def is_runaway(usage: Usage, live: Collection[int], *, now: float, grace: int) -> bool:
    """Return whether accounting says running, and the controller does not know the job although ``grace`` is over."""
    return is_open(usage) and bool(usage.start) and usage.job_id not in live and usage.start < now - grace


def is_changed(usage: Usage, charge: Entry) -> bool:
    """Return whether a record differs from its charge. Prices are not compared: they may have changed since."""
    return (int(usage.start), int(usage.end), usage.account, usage.user, gpus_text(usage.gpus)) != (
        int(charge.start),
        int(charge.end),
        charge.account,
        charge.user,
        gpus_text(charge.gpus),
    )


def anomaly_key(kind: str, cluster: str, job_id: int, submitted: float) -> str:
    """Return the key under which an anomaly is recorded once."""
    return f"{kind}:{cluster}:{job_id}:{submitted:.0f}"


def anomaly(
    kind: str,
    cluster: str,
    usage: Usage,
    session: str,
    now: float,
    price: tuple[int, int],
    charge: Entry | None = None,
) -> Anomaly:
    """Return an anomaly with what a person needs to decide on it.

    Args:
        price: milli-GPU-seconds per second, and the factor, in force now; prices may change until somebody decides.
    """
    seen: dict[str, Any] = {
        "job": usage.shown_id,
        "name": usage.name,
        "state": usage.state,
        "start": int(usage.start),
        "end": int(usage.end),
        "time_limit": usage.time_limit,
        "suspended": usage.suspended,
        "gpus": gpus_text(usage.gpus),
        "nodes": usage.nodes,
        "partition": usage.partition,
        "qos": usage.qos,
        "session": session,
        "rate": price[0],
        "factor": price[1],
    }
    if charge is not None:
        seen["charged"] = {"start": charge.start, "end": charge.end, "gpus": gpus_text(charge.gpus)}
        seen["charged"]["amount"] = charge.amount
    return Anomaly(
        key=anomaly_key(kind, cluster, usage.job_id, usage.submitted),
        kind=kind,
        cluster=cluster,
        found=now,
        job_id=usage.job_id,
        submitted=int(usage.submitted),
        account=usage.account,
        user=usage.user,
        seen=seen,
    )


def missing(cluster: str, hold: Entry, job_id: int, now: float) -> Anomaly:
    """Return the anomaly of a session that ran and has no job in accounting."""
    return Anomaly(
        key=f"{MISSING}:{cluster}:{hold.session}",
        kind=MISSING,
        cluster=cluster,
        found=now,
        job_id=job_id,
        account=hold.account,
        user=hold.user,
        seen={"session": hold.session, "gpus": gpus_text(hold.gpus), "held_from": int(hold.start)},
    )
