"""The ledger against Slurm's accounting: do they agree, could all charges be made anew, and is a full look due?"""

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

#: The note of the last full look: written when it began, with the time at which it was done, 0 before.
NIGHTLY = "nightly"
#: Seconds after which a full look that is not done is taken to have failed, and begun anew.
TRY_AGAIN = 3600
_DAY = 86_400
_PAGE = 5000


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Both sides for what ended from ``start`` to before ``end``. Integers of GPU-seconds, without prices.

    Attributes:
        jobs: incarnations that Slurm has.
        missing: keys of charges that are not in the ledger. extra: of those that Slurm has no record of.
        changed: of those that differ. waiting: of those that a person has yet to decide on; they are in no sum.
        decided: of those that a person decided on; they are in no sum either.
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
    """Compare; nothing is written.

    Args:
        usages: every incarnation with GPUs that ended in that time, from ``sacct -D``.
    """
    records = {_key(context, usage): usage for usage in usages if detection.is_ended(usage) and start <= usage.end < end}
    with context.store.reading(context.cluster) as reads:
        charges = _charges(reads, start, end)
        charges.update(reads.entries([key for key in records if key not in charges]))
        waiting, decided = _asked(reads, charges, records)
    aside = waiting | decided
    missing = {key for key in records if key not in charges} - aside
    extra = {key for key in charges if key not in records} - aside
    changed = {key for key in records.keys() & charges if detection.is_changed(records[key], charges[key])} - aside
    return Reconciliation(
        start,
        end,
        len(records),
        ledger=sum(_gpu_seconds(each.gpus, each) for key, each in charges.items() if key not in aside),
        slurm=sum(_gpu_seconds(each.gpus, each) for key, each in records.items() if key not in aside),
        missing=tuple(sorted(missing)),
        extra=tuple(sorted(extra)),
        changed=tuple(sorted(changed)),
        waiting=tuple(sorted(waiting)),
        decided=tuple(sorted(decided)),
    )


def rebuild(context: LedgerContext, usages: Iterable[Usage]) -> list[Entry]:
    """Return the charge for every ended incarnation as accounting has it, made anew; nothing is written or looked up.

    Prices are today's, and a job's name is taken at its word about its session.
    """
    now = context.clock()
    return [charge_of(context, usage, named_session(usage), None, now) for usage in usages if detection.is_ended(usage)]


# -- the full look of the night ---------------------------------------------------------------------------------------


def last_due(now: float, hour: int, zone: str) -> float:
    """Return the last moment, up to now, at which clocks of the zone showed this hour.

    Where clocks skip the hour it is the moment at which they jump; of one that comes twice, the first counts.
    """
    local, found = datetime.fromtimestamp(now, ZoneInfo(zone)), now
    for back in range(3):
        day = local.date() - timedelta(days=back)
        found = datetime(day.year, day.month, day.day, hour, tzinfo=ZoneInfo(zone)).timestamp()
        if found <= now:
            break
    return found


def begin_night(context: LedgerContext, hour: int) -> float:
    """Claim the full look that is due, and return when it began; 0 where it is not due, or somebody else does it.

    The claim is a note, so neither a restart nor a second service looks again; one that is not ended within
    ``TRY_AGAIN`` seconds has failed, or its service has died.
    """
    now = context.clock()
    due = last_due(now, hour, context.policy().zone)
    with context.store.reading(context.cluster) as reads:
        if not _is_due(reads.note(NIGHTLY), due, now):
            return 0.0
    with context.store.transaction(context.cluster) as writes:
        if not _is_due(writes.note(NIGHTLY), due, now):
            return 0.0
        writes.keep_note(NIGHTLY, {"done": 0}, now)
    return now


def end_night(context: LedgerContext, began: float) -> None:
    """Keep that the full look which began then is done, unless another was begun since."""
    with context.store.transaction(context.cluster) as writes:
        last = writes.note(NIGHTLY)
        if last is not None and last.at == began:
            writes.keep_note(NIGHTLY, {"done": int(context.clock())}, began)


def _is_due(last: Note | None, due: float, now: float) -> bool:
    # One that lies days ahead was written by a clock that was wrong: it would end the nights until then.
    if last is None or last.at < due or last.at > now + _DAY:
        return True
    return not last.value["done"] and last.at <= now - TRY_AGAIN


def _charges(reads: LedgerReads, start: float, end: float) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    after = 0
    while page := reads.charges_ended(start, end, after, _PAGE):
        found.update((each.key, each) for each in page)
        after = page[-1].id
    return found


def _asked(reads: LedgerReads, charges: Iterable[str], records: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the keys that wait for a person, and those on which one decided."""
    kinds = (detection.NEGATIVE, detection.LONG, detection.RUNAWAY, detection.REUSED, detection.CHANGED)
    keys = {f"{kind}:{key.partition(':')[2]}": key for key in {*charges, *records} for kind in kinds}
    found = reads.anomalies_of(keys)
    decided = {keys[name] for name, each in found.items() if each.by_person}
    # What the rules settled is charged, and compared like any other record.
    return {keys[name] for name, each in found.items() if not each.settled} - decided, decided


def _key(context: LedgerContext, usage: Usage) -> str:
    return charge_key(context.cluster, usage.job_id, usage.submitted)


def _gpu_seconds(gpus: Iterable[object], time: Usage | Entry) -> int:
    return sum(each.count for each in gpus) * (int(time.end) - int(time.start))  # type: ignore[attr-defined]
