"""Settlement of slots: release time in which a slot was not usable, and charge booked time that was not used.

The reservations service calls it at a slot's end. Each GPU type of a slot is settled by itself: an hour of one does not
pay for an hour of another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from carme_hub.accounting.context import LedgerContext
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import ONE, SYSTEM_ACTOR, Entry, Kind, slot_charge_key
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.windows import overlap
from carme_hub.domain.wording import gpu_hours, hours
from carme_hub.store.ledger.slots import OpenSlot, open_slots
from carme_hub.store.ledger.writes import LedgerWrites

from .holds import MIN_SECONDS, Slot

#: Seconds after a slot's end after which Slurm's accounting has all jobs that ran in it.
ACCOUNTING_DELAY = 60
#: Takes the place of a session's id in the key of entries for unusable time.
UNUSABLE = "lapsed"


def return_unusable(writes: LedgerWrites, slot: Slot, now: float, gpu_seconds: int, least: int = 0) -> int:
    """Release the price of time in which Slurm did not have a slot; return the sum of all such releases.

    That time counts neither as used nor as booked and not used.

    Args:
        gpu_seconds: to add to what was written before, of GPUs of all types. least: GPU-seconds that must have been
            written before; what is missing is written now.
    """
    held = open_slots(writes, [slot.id]).get(slot.id)
    if held is None:
        return 0
    before, count = held.taken.get(UNUSABLE, 0), held.count
    amount = min(gpu_seconds * held.rate // count + max(0, least * held.rate // count - before), held.amount)
    if amount:
        writes.append([held.change(-amount, now, f"nobody could use the booking “{slot.title}”", session=UNUSABLE)])
    return before + amount


def settle_slot(
    context: LedgerContext,
    writes: LedgerWrites,
    slot: Slot,
    now: float,
    *,
    ended: int,
    booked: bool,
    used: Mapping[str, int],
) -> bool:
    """Charge what was booked and not used, and release the rest; return whether that is done. It is idempotent.

    If booked time is charged, this waits until accounting has the jobs in the slot, and for sessions in it that are not
    settled yet, up to the grace time after the slot's end; until then it returns False. It never charges more than the
    slot still holds, so no budget is exceeded.

    Args:
        ended: when it ended, epoch seconds. booked: whether booked time is charged in place of used time.
        used: GPU-seconds of all jobs in it by GPU type, from ``used_inside``.
    """
    held = open_slots(writes, [slot.id]).get(slot.id)
    if held is None:
        return True
    took = [session for session, amount in held.taken.items() if amount > 0]
    if booked and (now < ended + ACCOUNTING_DELAY or (now < ended + context.grace and writes.open_holds(took))):
        return False
    length = max(0, min(ended, slot.end) - slot.start)
    entries, left = list[Entry](), held.amount
    for gpus, factor, seconds in _unused(held, length, used) if booked else ():
        if not (amount := min(seconds * factor, left)):
            continue
        left -= amount
        unused = f"{hours(amount // factor * ONE)} of {gpu_hours(gpus.count * length * ONE)}"
        # The charge has one time and no length: it has no rate, and counts in the window in which the slot ended.
        charge = held.entry.replace(
            key=slot_charge_key(slot.id, gpus.type if gpus.type != held.gpus.type else ""),
            kind=Kind.CHARGE,
            amount=-amount,
            at=now,
            start=ended,
            end=ended,
            gpus=(gpus,),
            factor=factor,
            reason=f"booked and not used: {unused} of “{slot.title}”{f', {gpus.type}' if held.also else ''}",
            actor=SYSTEM_ACTOR,
            id=0,
        )
        entries.append(charge)
    writes.append([*entries, held.release(now, "the reservation is over")])
    return True


def _unused(held: OpenSlot, length: int, used: Mapping[str, int]) -> Iterator[tuple[Gpus, int, int]]:
    """Yield the GPUs of each type of a slot, their factor, and the GPU-seconds in which they were not used.

    Use of types that the slot does not have counts for its types in order: Slurm may not report the type.
    """
    lapsed, rate = held.taken.get(UNUSABLE, 0), held.rate or 1
    if lapsed + MIN_SECONDS * rate >= length * rate:
        return  # a slot that was usable for less than a minute counts as unusable
    other = sum(used.values()) - sum(used.get(gpus.type, 0) for gpus, _ in held.parts)
    for gpus, factor in held.parts:
        seconds = max(0, gpus.count * length - gpus.count * lapsed // rate - used.get(gpus.type, 0))
        theirs = min(seconds, other)
        other -= theirs
        yield gpus, factor, seconds - theirs


def used_inside(usages: Iterable[Usage], names: Collection[str], period: Period) -> dict[str, int]:
    """Return the GPU-seconds by type of jobs in these reservations within a period; running jobs count to its end."""
    wanted, during, found = set(names), (float(period.start), float(period.end)), dict[str, int]()
    for usage in usages:
        if usage.start and not wanted.isdisjoint(usage.reservation.split(",")):
            seconds = int(overlap(usage.start, usage.end or period.end, during))
            for gpus in usage.gpus:
                found[gpus.type] = found.get(gpus.type, 0) + gpus.whole * seconds
    return found
