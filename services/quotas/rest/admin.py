"""REST operations for administrators and monitoring: anomalies, reconciliation, policy, settlement, metrics, health."""

from __future__ import annotations

import asyncio
from typing import Any

import yaml

from carme_hub.domain.quotas.policy import dump_policy, parse_policy
from carme_hub.services.quotas.application import policies
from carme_hub.services.quotas.application.metrics import metrics
from carme_hub.services.quotas.application.settlement import RECONCILED
from carme_hub.services.quotas.rest import models, models_replay, queries
from carme_hub.services.quotas.rest.base import Call, Text, Unprocessable
from carme_hub.store.ledger.writes import Anomaly, LedgerReads, Note

_DAY = 86_400
#: The longest time that one call replays or reconciles, in days.
MAX_DAYS = 400


async def anomalies(call: Call) -> models.AnomaliesOut:
    """Return open or decided anomalies."""
    query: queries.AnomaliesQuery = call.query
    found = await call.service.ledger.anomalies(
        settled=query.settled == "true", before=int(query.cursor or 0), most=query.limit + 1
    )
    more = str(found[query.limit - 1].id) if len(found) > query.limit else ""
    return models.AnomaliesOut(anomalies=[_anomaly(each) for each in found[: query.limit]], next=more)


async def decide(call: Call) -> models.AnomalyOut:
    """Charge for an anomaly, or not."""
    body: models.SettleIn = call.body
    id = int(call.path_parameters["id"])
    found = await call.read(lambda reads: reads.anomaly(id))
    seconds = None
    if body.decision == "charge-seconds":
        seconds = body.seconds
    elif body.decision == "charge" and found is not None:
        start, end = int(found.seen.get("start") or 0), int(found.seen.get("end") or 0)
        if not 0 < start <= end:
            raise Unprocessable("Accounting has no valid time for this job. Say how many seconds to charge.")
        seconds = end - start
    await call.service.ledger.decide_anomaly(id, actor=call.visitor.actor, decision=body.reason, seconds=seconds)
    return _anomaly(await call.read(lambda reads: reads.anomaly(id)))


def _anomaly(each: Anomaly) -> models.AnomalyOut:
    return models.AnomalyOut(
        id=each.id,
        kind=each.kind,
        job_id=each.job_id,
        account=each.account,
        user=each.user,
        found=int(each.found),
        seen=dict(each.seen),
        settled=int(each.settled),
        settled_by=each.settled_by,
        decision=each.decision,
    )


# -- ledger and Slurm -------------------------------------------------------------------------------------------------


async def reconciliation(call: Call) -> models.ReconciliationOut:
    """Return the last reconciliation with Slurm's accounting."""
    note = await call.service.ledger.note(RECONCILED)
    return _reconciliation(note) if note else models.ReconciliationOut(**_NEVER)


async def reconcile(call: Call) -> models.ReconciliationOut:
    """Reconcile now."""
    body: models.ReconcileIn = call.body
    now = int(call.service.ledger.context.clock())
    end = body.end or now
    start = body.start or end - call.service.settings.full_days * _DAY
    _check_span(start, end)
    await call.service.settlement.settle()
    await call.service.settlement.reconcile(start, end, actor=call.visitor.actor)
    note = await call.service.ledger.note(RECONCILED)
    return _reconciliation(note)


def _reconciliation(note: Note) -> models.ReconciliationOut:
    return models.ReconciliationOut(**{**_NEVER, **note.value, "at": int(note.at)})


_NEVER: dict[str, Any] = {
    **dict.fromkeys(("at", "start", "end", "jobs", "ledger", "slurm", "difference"), 0),
    **{name: [] for name in ("missing", "extra", "changed", "waiting", "decided")},
    "counts": {},
}


async def settle(call: Call) -> models.SettledOut:
    """Settle new records of Slurm's accounting now."""
    days = call.body.days
    done = await call.service.settlement.settle(days=days or None)
    names = ("charged", "refunded", "released", "expired", "flagged", "waiting")
    return models.SettledOut(**{name: len(getattr(done, name)) for name in names})


# -- the policy -------------------------------------------------------------------------------------------------------


async def policy(call: Call) -> models.PolicyOut:
    """Return the policy in force."""
    found = await asyncio.to_thread(policies.current_policy, call.service)
    return models.PolicyOut(
        policy=dump_policy(call.service.policy()), stamp=found.stamp, problem=found.problem, fixed=found.fixed
    )


async def set_policy(call: Call) -> models.PolicyOut:
    """Put a policy in force, and add it to the history."""
    body: models.PolicyIn = call.body
    text = yaml.safe_dump(body.policy, sort_keys=False, allow_unicode=True)
    if len(text) > policies.MAX_LENGTH:
        raise Unprocessable(f"A policy has at most {policies.MAX_LENGTH:,} characters.")
    await policies.activate(call.service, text, stamp=body.stamp, actor=call.visitor.actor, reason=body.reason)
    return await policy(call)


async def replay(call: Call) -> models_replay.ReplayOut:
    """Replay the jobs between two times under a policy; nothing is written."""
    body: models_replay.ReplayIn = call.body
    tried = parse_policy(body.policy)
    now = int(call.service.ledger.context.clock())
    _check_span(body.start, min(body.end, now))
    outcome = await policies.try_policy(call.service, tried, body.start, min(body.end, now))
    found, total = outcome.replay, outcome.replay.total
    return models_replay.ReplayOut(
        jobs=total.jobs,
        refused=total.refused,
        amount=total.before,
        amount_refused=total.refused_amount,
        rules=dict(found.rules),
        counted_from=int(outcome.use_since),
        known_from=int(outcome.known),
        missing=outcome.missing,
        rows=[
            models_replay.ReplayRow(
                user=line.user,
                account=line.account,
                jobs=line.jobs,
                refused=line.refused,
                soft=line.soft,
                amount=line.before,
                amount_refused=line.refused_amount,
                first=line.first,
            )
            for line in found.lines
        ],
    )


def _check_span(start: int, end: int) -> None:
    if start >= end:
        raise Unprocessable("start must be before end, and not in the future. Times are UTC epoch seconds.")
    if end - start > MAX_DAYS * _DAY:
        raise Unprocessable(f"One call covers at most {MAX_DAYS} days. Take a later start.")


# -- monitoring -------------------------------------------------------------------------------------------------------


async def health(call: Call) -> models.HealthOut:
    """Return whether the service settles, and the age of the last settlement."""
    service = call.service
    last = await service.ledger.last_settled()
    age = max(0, int(service.ledger.context.clock() - last)) if last else None
    return models.HealthOut(settling=age is not None and age <= service.settings.fresh_for, age=age)


async def prometheus(call: Call) -> Text:
    """Return metrics for Prometheus."""
    context = call.service.ledger.context

    def ask(reads: LedgerReads) -> str:
        return metrics(reads, context.clock()).text()

    return Text("text/plain; version=0.0.4; charset=utf-8", await call.read(ask))
