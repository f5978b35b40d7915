"""What people have written, told from what was committed: who, for whom, why. What rules write is no news."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from carme_hub.domain.ledger.entries import GPU_HOUR, RULES, Entry, Kind, charge_key
from carme_hub.store.ledger.writes import Anomaly, CommittedChanges, Note

from .requests import NOTE as REQUEST
from .requests import OPEN
from .slurm_limits import MIRRORED

#: Notes of the ledger: one for each policy that was put in force, with its text and the reason.
POLICY_NOTE = "policy"
_TRANSFER = "transfer:"
#: What a note of this name says that somebody did.
_ACTIONS = {"reconciled": "reconciliation"}
_LONGEST = 500


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One thing that a person wrote. ``details``: what is known of it, as plain texts, none of them empty."""

    action: str
    actor: str
    details: Mapping[str, str]


def by_people(done: CommittedChanges) -> list[AuditRecord]:
    """Return what people wrote in one transaction, as they would say it: a transfer is one thing, not two entries."""
    decided = [_decision(each, done) for each in done.decided if each.settled_by != RULES]
    noted = [_noted(each) for each in done.notes if each.actor != RULES]
    # What is granted for a request, or charged for an anomaly, is said with the decision.
    told = [each for each in noted if each.action != "mirror" or "limits" in each.details]
    return decided or told or list(_entries([each for each in done.entries if each.actor != RULES]))


def _decision(found: Anomaly, done: CommittedChanges) -> AuditRecord:
    # Its charge; or, of a changed record, what the one owes and what the other one gets back.
    keys = {charge_key(found.cluster, found.job_id, found.submitted), found.key, f"{found.key}:back"}
    amounts = [entry.amount for entry in done.entries if entry.key in keys]
    return _written(
        "anomalies/{id}/decision",
        *(found.settled_by, found.account, found.user, found.decision),
        id=str(found.id),
        decision="charge" if amounts else "ignore",
        gpu_hours=_hours(-sum(amounts)) if amounts else "",
    )


def _noted(note: Note) -> AuditRecord:
    value = note.value if isinstance(note.value, dict) else {}
    if note.name == MIRRORED:
        return _written("mirror", note.actor, limits="; ".join(value.get("changed", ())))
    if note.name != REQUEST:
        return _written(_ACTIONS.get(note.name, note.name), note.actor, reason=str(value.get("reason", "")))
    about = {"account": value["account"], "user": value["user"], "id": value["id"]}
    if value["state"] == OPEN:
        return _written("requests", note.actor, gpu_hours=_hours(value["amount"]), reason=value["reason"], **about)
    given = _hours(value["granted"]) if value["granted"] else ""
    return _written(
        "requests/{id}/decision",
        note.actor,
        decision=value["state"],
        reason=value["answer"],
        gpu_hours=given,
        **about,
    )


def _entries(entries: list[Entry]) -> Iterator[AuditRecord]:
    given = {entry.key: entry for entry in entries}
    for entry in entries:
        out = given.get(f"{entry.key.removesuffix(':in')}:out")
        if not entry.key.startswith(_TRANSFER):
            way = ("add" if entry.amount > 0 else "take") if entry.kind is Kind.CORRECTION else ""
            hours = _hours(abs(entry.amount))
            yield _written(f"{entry.kind.value}s", *_who(entry), gpu_hours=hours, direction=way, id=entry.session)
        elif out is not None and entry.key.endswith(":in"):
            yield _written("transfers", *_who(out), target=entry.account, gpu_hours=_hours(entry.amount))


def _who(entry: Entry) -> tuple[str, str, str, str]:
    return entry.actor, entry.account, entry.user, entry.reason


def _written(action: str, actor: str, account: str = "", user: str = "", reason: str = "", **more: str) -> AuditRecord:
    details = {"account": account, "user": user, "reason": reason, **more}
    return AuditRecord(action, actor, {name: str(said)[:_LONGEST] for name, said in details.items() if said})


def _hours(amount: int) -> str:
    """Return GPU-hours; an amount that was given in them is exact."""
    return f"{round(Decimal(amount) / GPU_HOUR, 6).normalize():f}"
