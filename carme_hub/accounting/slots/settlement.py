"""What becomes of a slot's GPU time: time in which nobody could have it, and what was booked and not used.

Each GPU type of a slot is looked at by itself: an hour of one is not paid by an hour of another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from carme_hub.accounting.context import LedgerContext
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import ONE, RULES, Entry, Kind, slot_charge_key
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.windows import overlap
from carme_hub.domain.wording import gpu_hours, hours
from carme_hub.store.ledger.slots import OpenSlot, open_slots
from carme_hub.store.ledger.writes import LedgerWrites

from .holds import SMALL, Slot

#: Seconds after a slot's end from which Slurm's accounting is taken to know of all jobs that ran in it.
LATE = 60
#: Stands for a session in the key of what comes back since nobody could have used the slot.
LAPSED = "lapsed"


def lapse(writes: LedgerWrites, slot: Slot, now: float, gpu_seconds: int, least: int = 0) -> int:
    """Give back the price of time in which Slurm did not have a slot; return what all of that comes to by now.

    It counts for nothing then: neither as used nor as booked and not used.

    Args:
        gpu_seconds: more of it than was written before, of its GPUs of all types alike. least: how many were to be
            written before at least.
    """
    held = open_slots(writes, [slot.id]).get(slot.id)
    if held is None:
        return 0
    before, count = held.taken.get(LAPSED, 0), held.count
    amount = min(gpu_seconds * held.rate // count + max(0, least * held.rate // count - before), held.amount)
    if amount:
        writes.append([held.more(-amount, now, f"nobody could use the booking “{slot.title}”", session=LAPSED)])
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
    """Charge what was booked and not used, and give the rest back; return whether that is done. Again, it is nothing.

    Where booked time is charged, it waits until accounting knows of the jobs in it, and for sessions in it that are not
    settled yet, up to the grace time after the slot's end: until then is asked again. Never more is charged than the
    slot still holds, so no budget is overrun.

    Args:
        ended: when it was over, epoch seconds. booked: whether booked time is charged in place of used time.
        used: GPU-seconds of all jobs in it by GPU type, ``used_inside``.
    """
    held = open_slots(writes, [slot.id]).get(slot.id)
    if held is None:
        return True
    took = [session for session, amount in held.taken.items() if amount > 0]
    if booked and (now < ended + LATE or (now < ended + context.grace and writes.open_holds(took))):
        return False
    length = max(0, min(ended, slot.end) - slot.start)
    entries, left = list[Entry](), held.amount
    for gpus, factor, seconds in _unused(held, length, used) if booked else ():
        if not (amount := min(seconds * factor, left)):
            continue
        left -= amount
        unused = f"{hours(amount // factor * ONE)} of {gpu_hours(gpus.count * length * ONE)}"
        # It lies at one moment: it has no rate, and counts in the window in which the slot was over.
        charge = held.entry.but(
            key=slot_charge_key(slot.id, gpus.type if gpus.type != held.gpus.type else ""),
            kind=Kind.CHARGE,
            amount=-amount,
            at=now,
            start=ended,
            end=ended,
            gpus=(gpus,),
            factor=factor,
            reason=f"booked and not used: {unused} of “{slot.title}”{f', {gpus.type}' if held.also else ''}",
            actor=RULES,
            id=0,
        )
        entries.append(charge)
    writes.append([*entries, held.release(now, "the reservation is over")])
    return True


def _unused(held: OpenSlot, length: int, used: Mapping[str, int]) -> Iterator[tuple[Gpus, int, int]]:
    """Yield the GPUs of each type of a slot, their factor, and for how many GPU-seconds nobody had them.

    What was used of types that it does not have counts for its own type first: Slurm may not say of which it is.
    """
    lapsed, rate = held.taken.get(LAPSED, 0), held.rate or 1
    if lapsed + SMALL * rate >= length * rate:
        return  # what could be used for less than a minute could not be used
    other = sum(used.values()) - sum(used.get(gpus.type, 0) for gpus, _ in held.parts)
    for gpus, factor in held.parts:
        seconds = max(0, gpus.count * length - gpus.count * lapsed // rate - used.get(gpus.type, 0))
        theirs = min(seconds, other)
        other -= theirs
        yield gpus, factor, seconds - theirs


def used_inside(usages: Iterable[Usage], names: Collection[str], period: Period) -> dict[str, int]:
    """Return the GPU-seconds by type that jobs in these reservations had within a period; what runs, up to its end."""
    wanted, during, found = set(names), (float(period.start), float(period.end)), dict[str, int]()
    for usage in usages:
        if usage.start and not wanted.isdisjoint(usage.reservation.split(",")):
            seconds = int(overlap(usage.start, usage.end or period.end, during))
            for gpus in usage.gpus:
                found[gpus.type] = found.get(gpus.type, 0) + gpus.whole * seconds
    return found
