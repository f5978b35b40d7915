"""Audit records of what people wrote to the ledger, made from committed transactions: who, for whom, why.

The quotas service writes them to the audit log. What rules write is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from carme_hub.domain.ledger.entries import GPU_HOUR, SYSTEM_ACTOR, Entry, Kind, charge_key
from carme_hub.store.ledger.writes import Anomaly, CommittedChanges, Note

from .requests import NOTE as REQUEST
from .requests import OPEN
from .slurm_limits import MIRRORED

#: Name of the ledger's notes with policies that were put in force: the text and the reason of each.
POLICY_NOTE = "policy"
_TRANSFER = "transfer:"
#: Action by name of a note, where the two differ.
_ACTIONS = {"reconciled": "reconciliation"}
_MAX_LENGTH = 500


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One action of a person. ``details``: what is known of it, as plain texts, none of them empty."""

    action: str
    actor: str
    details: Mapping[str, str]


def audit_records(done: CommittedChanges) -> list[AuditRecord]:
    """Return the actions of people in one transaction: a transfer is one action, although it has two entries."""
    decided = [_decision_record(each, done) for each in done.decided if each.settled_by != SYSTEM_ACTOR]
    noted = [_note_record(each) for each in done.notes if each.actor != SYSTEM_ACTOR]
    # A grant for a request, and a charge for an anomaly, belong to the record of the decision.
    told = [each for each in noted if each.action != "mirror" or "limits" in each.details]
    return decided or told or list(_entry_records([each for each in done.entries if each.actor != SYSTEM_ACTOR]))


def _decision_record(found: Anomaly, done: CommittedChanges) -> AuditRecord:
    # The anomaly's charge; of a changed record, the new charge and what the first account gets back.
    keys = {charge_key(found.cluster, found.job_id, found.submitted), found.key, f"{found.key}:back"}
    amounts = [entry.amount for entry in done.entries if entry.key in keys]
    return _record(
        "anomalies/{id}/decision",
        *(found.settled_by, found.account, found.user, found.decision),
        id=str(found.id),
        decision="charge" if amounts else "ignore",
        gpu_hours=_hours(-sum(amounts)) if amounts else "",
    )


def _note_record(note: Note) -> AuditRecord:
    value = note.value if isinstance(note.value, dict) else {}
    if note.name == MIRRORED:
        return _record("mirror", note.actor, limits="; ".join(value.get("changed", ())))
    if note.name != REQUEST:
        return _record(_ACTIONS.get(note.name, note.name), note.actor, reason=str(value.get("reason", "")))
    about = {"account": value["account"], "user": value["user"], "id": value["id"]}
    if value["state"] == OPEN:
        return _record("requests", note.actor, gpu_hours=_hours(value["amount"]), reason=value["reason"], **about)
    given = _hours(value["granted"]) if value["granted"] else ""
    return _record(
        "requests/{id}/decision",
        note.actor,
        decision=value["state"],
        reason=value["answer"],
        gpu_hours=given,
        **about,
    )


def _entry_records(entries: list[Entry]) -> Iterator[AuditRecord]:
    given = {entry.key: entry for entry in entries}
    for entry in entries:
        out = given.get(f"{entry.key.removesuffix(':in')}:out")
        if not entry.key.startswith(_TRANSFER):
            way = ("add" if entry.amount > 0 else "take") if entry.kind is Kind.CORRECTION else ""
            hours = _hours(abs(entry.amount))
            yield _record(f"{entry.kind.value}s", *_who(entry), gpu_hours=hours, direction=way, id=entry.session)
        elif out is not None and entry.key.endswith(":in"):
            yield _record("transfers", *_who(out), target=entry.account, gpu_hours=_hours(entry.amount))


def _who(entry: Entry) -> tuple[str, str, str, str]:
    return entry.actor, entry.account, entry.user, entry.reason


def _record(action: str, actor: str, account: str = "", user: str = "", reason: str = "", **more: str) -> AuditRecord:
    details = {"account": account, "user": user, "reason": reason, **more}
    return AuditRecord(action, actor, {name: str(said)[:_MAX_LENGTH] for name, said in details.items() if said})


def _hours(amount: int) -> str:
    """Return an amount in GPU-hours; an amount that was entered in GPU-hours stays exact."""
    return f"{round(Decimal(amount) / GPU_HOUR, 6).normalize():f}"
