"""GPU time of a reservation: held when it is booked, handed to the sessions in it, and given back at its end.

A reservation (here a *slot*) holds GPUs × its time × price from when it is confirmed; whether that may be is decided by
the rules on GPU time in the windows of its own time. A session that starts in it takes over what it holds for the time
within the slot, in the transaction in which it is admitted; what it did not use of that goes back in the transaction in
which its own hold is released. So what a slot, its sessions and their charges come to together never grows after it was
decided, and nobody else can take it in between.

Every function takes the open transaction, so that a booking and its hold are one commit. Only ``hold`` and ``change``
add to what was decided, and ask the rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from carme_hub.domain.ledger import ONE, RULES, Entry, Kind, price, release_key, slot_charge_key, slot_key
from carme_hub.domain.periods import Period
from carme_hub.domain.quota_sentences import gpu_hours, hours
from carme_hub.domain.quotas import Ask, Decision, Person, applying, decide
from carme_hub.domain.reservations import Reservation
from carme_hub.domain.resources import Gpus
from carme_hub.domain.usage import Usage
from carme_hub.domain.windows import overlap
from carme_hub.errors import Refused
from carme_hub.store.ledger import LedgerReads, LedgerWrites
from carme_hub.store.ledger_slots import OpenSlot, open_slots

from .books import Books
from .credits import expire_due, live_credits
from .facts import NOTHING_FREED, Freed, Gathering, about_time, moments

#: Seconds of a slot's GPUs below which nothing is written for them.
SMALL = 60
#: Seconds after a slot's end from which Slurm's accounting is taken to know of all jobs that ran in it.
LATE = 60
#: What is not needed any more comes back in this many parts at most: the ledger only grows, and is looked at each
#: half minute.
PARTS = 8


class Over(Refused):
    """The reservation's GPU time has been given back already."""

    reason = "over"


@dataclass(frozen=True, slots=True)
class Slot:
    """A reservation as the ledger sees it. Times are UTC epoch seconds."""

    id: str
    user: str
    account: str
    gpus: Gpus
    start: int
    end: int
    title: str


def slot_of(reservation: Reservation) -> Slot:
    """Return what the ledger needs to know of a reservation."""
    period, gpus = reservation.period, Gpus(reservation.need.type, reservation.gpus)
    whose = (reservation.id, reservation.owner, reservation.account)
    return Slot(*whose, gpus, period.start, period.end, reservation.title)


def price_of(books: Books, slot: Slot) -> int:
    """Return what the whole slot costs now, in milli-GPU-seconds."""
    return price(slot.gpus, slot.end - slot.start, books.factor(slot.gpus.type, "", ""))


def holding(reads: LedgerReads) -> dict[str, int]:
    """Return the ids of all reservations with an open hold, and what each holds (milli-GPU-seconds)."""
    return {id: held.amount for id, held in open_slots(reads).items()}


# -- booking ----------------------------------------------------------------------------------------------------------


def hold(books: Books, writes: LedgerWrites, slot: Slot, person: Person, actor: str) -> Decision:
    """Decide by the rules on GPU time in the windows of the slot's time, and hold its whole price.

    A slot that holds already is granted as it is; of one that is refused nothing is written.

    Args:
        person: the slot's user, with groups and roles. actor: who books it.

    Raises:
        Over: it was given back before; it takes a new reservation.
    """
    factor = books.factor(slot.gpus.type, "", "")
    ask = Ask(slot.account, slot.gpus, slot.end - slot.start, factor)
    if not slot.gpus or open_slots(writes, [slot.id]):
        return Decision(largest=ask)
    if writes.entries([release_key(slot.id)]):
        raise Over("This reservation is over. Book a new one.")
    now = books.clock()
    decision = _decide(books, writes, slot, person, ask, now)
    if decision.granted:
        held = Entry(
            key=slot_key(slot.id),
            kind=Kind.HOLD,
            cluster=books.cluster,
            account=slot.account,
            amount=-ask.amount,
            at=now,
            user=slot.user,
            session=slot.id,
            start=slot.start,
            end=slot.end,
            gpus=(slot.gpus,),
            factor=factor,
            reason=f"held for the booking “{slot.title}”",
            actor=actor,
        )
        writes.append([held])
    return decision


def change(books: Books, writes: LedgerWrites, slot: Slot, person: Person, actor: str) -> Decision:
    """Hold for the slot at its new time or size, at the price at which it was booked; where refused, all stays.

    What lies within its old time and needs no more is granted whatever the rules say by now.
    """
    held = open_slots(writes, [slot.id]).get(slot.id)
    if held is None:
        return hold(books, writes, slot, person, actor)
    before = held.entry
    factor = before.factor if slot.gpus.type == held.gpus.type else books.factor(slot.gpus.type, "", "")
    whole = price(slot.gpus, slot.end - slot.start, factor)
    wanted = max(0, held.amount + whole - held.whole)  # what sessions have taken over, or came back, stays so
    ask = Ask(slot.account, slot.gpus, slot.end - slot.start, factor)
    if (slot.gpus, slot.start, slot.end) == (held.gpus, before.start, before.end):
        return Decision(largest=ask)
    decision, now = Decision(largest=ask), books.clock()
    if wanted > held.amount or slot.start < before.start or slot.end > before.end:
        if rate := price(slot.gpus, 1, factor):
            ask = replace(ask, seconds=-(-wanted // rate))
        decision = _decide(books, writes, slot, person, ask, now, Freed(slot.id, held.amount))
    if decision.granted:
        new = held.more(wanted - held.amount, now, f"the booking “{slot.title}” was changed", actor=actor)
        writes.append([new.but(start=slot.start, end=slot.end, gpus=(slot.gpus,), factor=factor)])
    return decision


def give_back(books: Books, writes: LedgerWrites, slot: Slot, reason: str, actor: str) -> bool:
    """Give back all that a slot holds: it will not be. Return whether it held anything."""
    held = open_slots(writes, [slot.id]).get(slot.id)
    if held is None:
        return False
    writes.append([_released(held, books.clock(), reason, actor)])
    return True


def _decide(
    books: Books,
    writes: LedgerWrites,
    slot: Slot,
    person: Person,
    ask: Ask,
    now: float,
    freed: Freed = NOTHING_FREED,
) -> Decision:
    """Decide in each window that the slot's time lies in; the first that refuses says why."""
    expire_due(books, writes, now, slot.account)
    policy = books.policy()
    applied = about_time(applying(policy.quotas, person, slot.account))
    # A credit that expires before its end would leave it unpaid.
    lost = live_credits(writes, slot.account, now, slot.end, without=freed.slot)
    decision = Decision(largest=ask)
    for at in moments(applied, max(now, slot.start), slot.end, policy.zone):
        facts = Gathering(books, writes, person, now, at=at, freed=freed).facts(applied, [slot.account])
        facts = replace(facts, left={account: left - lost for account, left in facts.left.items()})
        decision = decide(applied, ask, facts, zone=policy.zone)
        if not decision.granted:
            break
    return decision


# -- sessions in it ---------------------------------------------------------------------------------------------------


def take_over(held: OpenSlot, session: str, amount: int, now: float) -> Entry:
    """Return the entry by which a session takes over so much of what a slot holds."""
    return held.more(-amount, now, f"taken over by session {session}", session=session)


def slot_with(reads: LedgerReads, session: str) -> OpenSlot | None:
    """Return the open slot of which a session has taken something over."""
    return next((held for held in open_slots(reads).values() if session in held.taken), None)


def return_unused(books: Books, writes: LedgerWrites, sessions: Collection[str], now: float) -> None:
    """Give slots that are still open what these sessions took over and did not use; their holds were just released."""
    for slot in open_slots(writes).values():
        held = slot
        for session in sorted(held.taken.keys() & set(sessions)):
            used = -sum(entry.amount for entry in writes.of_session(session) if entry.kind is Kind.CHARGE)
            account = held.entry.account
            expire_due(books, writes, now, account)
            back = held.back(session, used)
            if lost := live_credits(writes, account, now, held.entry.end):
                # It was paid from a credit that the slot may outlive, and what lasts may have gone to somebody else.
                back = min(back, writes.balance(account).left - lost)
            if back > 0:
                entry = held.more(back, now, f"session {session} did not use it", session=session)
                held = held.after(entry)
                writes.append([entry])


def level(
    books: Books,  # noqa: ARG001
    writes: LedgerWrites,
    slot: Slot,
    now: float,
    inside: Collection[str],
    *,
    booked: bool = False,
    by_hand: int = 0,
) -> int:
    """Lower what a slot holds to what it can still need; return what it holds now (milli-GPU-seconds).

    Sessions in it that took nothing over when they were admitted do so now. Of the rest, where use is charged, the time
    that has passed is not needed any more; where all booked time is, what jobs without a session have used. It is given
    back in ``PARTS`` parts at most, so that a pass each half minute writes next to nothing.

    Args:
        inside: ids of the open sessions in it. booked: whether booked time is charged in place of used time.
        by_hand: GPU-seconds of jobs in it that are of no session.
    """
    held = open_slots(writes, [slot.id]).get(slot.id)
    if held is None:
        return 0
    mine = {
        id: hold
        for id, hold in sorted(writes.open_holds(inside).items())
        if hold.entry.account == held.entry.account and hold.entry.gpus
    }
    written = []
    for id, hold in mine.items():
        all_of_it = held.within(hold.entry.gpus[0], hold.entry.factor, hold.entry.start, hold.end)
        more = min(all_of_it - held.taken.get(id, 0), held.amount)
        if more >= SMALL * held.rate:
            written.append(take_over(held, id, more, now))
            held = held.after(written[-1])
    if booked:
        needed = held.whole - sum(held.taken.values()) - by_hand * held.entry.factor
    else:
        theirs = (held.within(hold.entry.gpus[0], hold.entry.factor, now, hold.end) for hold in mine.values())
        needed = held.within(held.gpus, held.entry.factor, now, held.entry.end) - sum(theirs)
    spare = held.amount - max(0, needed)
    if held.amount and spare >= max(SMALL * held.rate, held.whole // PARTS):
        written.append(held.more(-spare, now, f"not needed any more for the booking “{slot.title}”"))
        held = held.after(written[-1])
    writes.append(written)
    return held.amount


# -- its end ----------------------------------------------------------------------------------------------------------


def settle_slot(
    books: Books, writes: LedgerWrites, slot: Slot, now: float, *, ended: int, booked: bool, used: int
) -> bool:
    """Charge what was booked and not used, and give the rest back; return whether that is done. Again, it is nothing.

    Where booked time is charged, it waits until accounting knows of the jobs in it, and for sessions in it that are not
    settled yet, up to the grace time after the slot's end: until then is asked again. Never more is charged than the
    slot still holds, so no budget is overrun.

    Args:
        ended: when it was over, epoch seconds. booked: whether booked time is charged in place of used time.
        used: GPU-seconds of all jobs in it, ``used_inside``.
    """
    held = open_slots(writes, [slot.id]).get(slot.id)
    if held is None:
        return True
    took = [session for session, amount in held.taken.items() if amount > 0]
    if booked and (now < ended + LATE or (now < ended + books.grace and writes.open_holds(took))):
        return False
    length = max(0, min(ended, slot.end) - slot.start)
    seconds = max(0, held.gpus.count * length - used)
    entries = [_released(held, now, "the reservation is over", RULES)]
    if booked and (amount := min(seconds * held.entry.factor, held.amount)):
        # It lies at one moment: it has no rate, and counts in the window in which the slot was over.
        unused = hours(amount // held.entry.factor * ONE)
        reason = f"booked and not used: {unused} of {gpu_hours(held.gpus.count * length * ONE)} of “{slot.title}”"
        charge = {"key": slot_charge_key(slot.id), "kind": Kind.CHARGE, "amount": -amount, "start": ended, "end": ended}
        entries.insert(0, held.entry.but(**charge, at=now, reason=reason, actor=RULES, id=0))
    writes.append(entries)
    return True


def used_inside(usages: Iterable[Usage], names: Collection[str], period: Period) -> int:
    """Return the GPU-seconds that jobs in reservations of these names had within a period; what runs, up to its end."""
    wanted, during = set(names), (float(period.start), float(period.end))
    return sum(
        sum(gpus.whole for gpus in usage.gpus) * int(overlap(usage.start, usage.end or period.end, during))
        for usage in usages
        if usage.start and not wanted.isdisjoint(usage.reservation.split(","))
    )


def _released(held: OpenSlot, now: float, reason: str, actor: str) -> Entry:
    key = release_key(held.id)
    return held.entry.but(key=key, kind=Kind.RELEASE, amount=held.amount, at=now, reason=reason, actor=actor, id=0)
