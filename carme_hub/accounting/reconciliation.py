"""Reconciliation of the ledger with Slurm's accounting: compare them, compute all charges again, and do it each night.

The quotas service runs it nightly; ``carme-hub quotas reconcile`` runs it on demand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from carme_hub.accounting.anomalies import detection
from carme_hub.domain.ledger.entries import Entry, charge_key
from carme_hub.domain.ledger.usage import Usage
from carme_hub.store.ledger.writes import LedgerReads, Note

from .context import LedgerContext, named_session
from .settlement import charge_of

#: Name of the note of the last nightly reconciliation: written at its start; ``done`` is when it ended, 0 before.
NIGHTLY = "nightly"
#: Seconds after which a nightly reconciliation that is not done counts as failed, and is started again.
RETRY_AFTER = 3600
_DAY = 86_400
_PAGE = 5000


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Both sides for what ended from ``start`` to before ``end``. Integers of GPU-seconds, without prices.

    Attributes:
        jobs: incarnations that Slurm has.
        missing: keys of charges that are not in the ledger. extra: keys of charges without a record in Slurm.
        changed: keys of charges that differ from the record. waiting: keys with an open anomaly; they are in no sum.
        decided: keys with an anomaly that a person decided on; they are in no sum either.
    """

    start: float
    end: float
    jobs: int
    ledger: int
    slurm: int
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    decided: tuple[str, ...] = ()

    @property
    def difference(self) -> int:
        """Return Slurm's GPU-seconds less the ledger's; 0 when they agree."""
        return self.slurm - self.ledger


def reconcile(context: LedgerContext, usages: Iterable[Usage], start: float, end: float) -> Reconciliation:
    """Compare the ledger with Slurm's records; write nothing.

    Args:
        usages: every incarnation with GPUs that ended in that time, from ``sacct -D``.
    """
    records = {
        _key(context, usage): usage for usage in usages if detection.is_ended(usage) and start <= usage.end < end
    }
    with context.store.reading(context.cluster) as reads:
        charges = _charges(reads, start, end)
        charges.update(reads.entries([key for key in records if key not in charges]))
        waiting, decided = _anomaly_keys(reads, charges, records)
    excluded = waiting | decided
    missing = {key for key in records if key not in charges} - excluded
    extra = {key for key in charges if key not in records} - excluded
    changed = {key for key in records.keys() & charges if detection.is_changed(records[key], charges[key])} - excluded
    return Reconciliation(
        start,
        end,
        len(records),
        ledger=sum(_gpu_seconds(each.gpus, each) for key, each in charges.items() if key not in excluded),
        slurm=sum(_gpu_seconds(each.gpus, each) for key, each in records.items() if key not in excluded),
        missing=tuple(sorted(missing)),
        extra=tuple(sorted(extra)),
        changed=tuple(sorted(changed)),
        waiting=tuple(sorted(waiting)),
        decided=tuple(sorted(decided)),
    )


def rebuild(context: LedgerContext, usages: Iterable[Usage]) -> list[Entry]:
    """Return the charge of every ended incarnation in accounting, computed again; write and look up nothing.

    Prices are today's, and the session is the one that the job's name says.
    """
    now = context.clock()
    return [charge_of(context, usage, named_session(usage), None, now) for usage in usages if detection.is_ended(usage)]


# -- the nightly reconciliation ---------------------------------------------------------------------------------------


def last_due(now: float, hour: int, zone: str) -> float:
    """Return the last time, up to now, at which clocks of the zone showed this hour.

    If clocks skip the hour, it is the time at which they do; of an hour that comes twice, the first counts.
    """
    local, found = datetime.fromtimestamp(now, ZoneInfo(zone)), now
    for back in range(3):
        day = local.date() - timedelta(days=back)
        found = datetime(day.year, day.month, day.day, hour, tzinfo=ZoneInfo(zone)).timestamp()
        if found <= now:
            break
    return found


def begin_nightly(context: LedgerContext, hour: int) -> float:
    """Claim the nightly reconciliation that is due, and return its start; 0 if none is due, or another service has it.

    The claim is a note, so neither a restart nor a second service repeats it; one that has not ended within
    ``RETRY_AFTER`` seconds has failed, or its service has died.
    """
    now = context.clock()
    due = last_due(now, hour, context.policy().zone)
    with context.store.reading(context.cluster) as reads:
        if not _is_due(reads.note(NIGHTLY), due, now):
            return 0.0
    with context.store.transaction(context.cluster) as writes:
        if not _is_due(writes.note(NIGHTLY), due, now):
            return 0.0
        writes.replace_note(NIGHTLY, {"done": 0}, now)
    return now


def end_nightly(context: LedgerContext, began: float) -> None:
    """Record that the nightly reconciliation which began at ``began`` is done, unless another has begun since."""
    with context.store.transaction(context.cluster) as writes:
        last = writes.note(NIGHTLY)
        if last is not None and last.at == began:
            writes.replace_note(NIGHTLY, {"done": int(context.clock())}, began)


def _is_due(last: Note | None, due: float, now: float) -> bool:
    # A wrong clock wrote a note that is days ahead; without this check there would be no reconciliation until then.
    if last is None or last.at < due or last.at > now + _DAY:
        return True
    return not last.value["done"] and last.at <= now - RETRY_AFTER


def _charges(reads: LedgerReads, start: float, end: float) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    after = 0
    while page := reads.charges_ended(start, end, after, _PAGE):
        found.update((each.key, each) for each in page)
        after = page[-1].id
    return found


def _anomaly_keys(reads: LedgerReads, charges: Iterable[str], records: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the keys with an open anomaly, and those on which a person decided."""
    kinds = (detection.NEGATIVE, detection.LONG, detection.RUNAWAY, detection.REUSED, detection.CHANGED)
    keys = {f"{kind}:{key.partition(':')[2]}": key for key in {*charges, *records} for kind in kinds}
    found = reads.anomalies_of(keys)
    decided = {keys[name] for name, each in found.items() if each.by_person}
    # Anomalies that the rules settled are charged, and compared like any other record.
    return {keys[name] for name, each in found.items() if not each.settled} - decided, decided


def _key(context: LedgerContext, usage: Usage) -> str:
    return charge_key(context.cluster, usage.job_id, usage.submitted)


def _gpu_seconds(gpus: Iterable[object], time: Usage | Entry) -> int:
    return sum(each.count for each in gpus) * (int(time.end) - int(time.start))  # type: ignore[attr-defined]
