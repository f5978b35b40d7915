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

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from carme_hub.accounting.context import LedgerContext
from carme_hub.accounting.credit_expiry import Live, expire_due, live_credits
from carme_hub.accounting.usage_snapshot import NOTHING_FREED, ReleasedHold, SnapshotReader, about_time, moments
from carme_hub.domain.calendar.reservations import Reservation
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import Entry, Kind, price, release_key, slot_key
from carme_hub.domain.quotas.decision import Decision, decide
from carme_hub.domain.quotas.rules import Ask, Person, applying
from carme_hub.errors import Refused
from carme_hub.store.ledger.slots import ALSO, OpenSlot, new_slot, open_slots, rate_of
from carme_hub.store.ledger.writes import LedgerReads, LedgerWrites

#: Seconds of a slot's GPUs below which nothing is written for them.
SMALL = 60
#: What is not needed any more comes back in this many parts at most: the ledger only grows, and is looked at each
#: half minute.
PARTS = 8


class SlotClosed(Refused):
    """The reservation's GPU time has been given back already."""

    reason = "over"


@dataclass(frozen=True, slots=True)
class Slot:
    """A reservation as the ledger sees it. Times are UTC epoch seconds.

    ``also``: GPUs of other types that go with its whole nodes.
    """

    id: str
    user: str
    account: str
    gpus: Gpus
    start: int
    end: int
    title: str
    also: tuple[Gpus, ...] = ()

    def parts(self, factor: Callable[[str], int]) -> tuple[tuple[Gpus, int], ...]:
        """Return all its GPUs, its own type first, and what each costs."""
        return tuple((gpus, factor(gpus.type)) for gpus in (self.gpus, *self.also))


def slot_of(reservation: Reservation) -> Slot:
    """Return what the ledger needs to know of a reservation."""
    period, own = reservation.period, Gpus(reservation.need.type, reservation.own)
    also = tuple(Gpus(type, count) for type, count in reservation.by_type.items() if type != own.type)
    whose = (reservation.id, reservation.owner, reservation.account)
    return Slot(*whose, own, period.start, period.end, reservation.title, also)


def price_of(context: LedgerContext, slot: Slot) -> int:
    """Return what the whole slot costs now, in milli-GPU-seconds."""
    return rate_of(slot.parts(_usual(context))) * (slot.end - slot.start)


def holding(reads: LedgerReads) -> dict[str, int]:
    """Return the ids of all reservations with an open hold, and what each holds (milli-GPU-seconds)."""
    return {id: held.amount for id, held in open_slots(reads).items()}


# -- booking ----------------------------------------------------------------------------------------------------------


def hold(context: LedgerContext, writes: LedgerWrites, slot: Slot, person: Person, actor: str) -> Decision:
    """Decide by the rules on GPU time in the windows of the slot's time, and hold its whole price; see ``hold_all``."""
    return hold_all(context, writes, [slot], person, actor)


def hold_all(context: LedgerContext, writes: LedgerWrites, slots: Sequence[Slot], person: Person, actor: str) -> Decision:
    """Hold for all times of a booking, each decided beside those before it; what refuses one of them refuses all.

    A slot that holds already is granted as it is; where one is refused nothing is written.

    Args:
        slots: at least one; all of one user and account. person: that user, with groups and roles. actor: who books.

    Raises:
        Over: one was given back before; it takes a new reservation.
    """
    if len({(slot.user, slot.account) for slot in slots}) != 1:
        raise ValueError("the times of a booking are one user's, and one account pays for them")
    there = open_slots(writes, [slot.id for slot in slots])
    over = writes.entries([release_key(slot.id) for slot in slots])
    now, new, rules = context.clock(), list[Entry](), None
    for slot in slots:
        parts = slot.parts(_usual(context))
        ask = _ask(slot, parts)
        decision = Decision(largest=ask)
        if not slot.gpus or slot.id in there:
            continue
        if release_key(slot.id) in over:
            raise SlotClosed("This reservation is over. Book a new one.")
        rules = rules or _Deciding(context, writes, person, slot.account, now)
        decision = rules.decide(ask, slot)
        if not decision.granted:
            return decision
        new += [
            Entry(
                key=slot_key(slot.id, number, ALSO if number else ""),
                kind=Kind.HOLD,
                cluster=context.cluster,
                account=slot.account,
                amount=-price(gpus, ask.seconds, factor),
                at=now,
                user=slot.user,
                session=slot.id,
                start=slot.start,
                end=slot.end,
                gpus=(gpus,),
                factor=factor,
                reason=f"held for the booking “{slot.title}”",
                actor=actor,
            )
            for number, (gpus, factor) in enumerate(parts)
        ]
        rules.count(slot, ask.amount)
    writes.append(new)
    return decision


def change(context: LedgerContext, writes: LedgerWrites, slot: Slot, person: Person, actor: str) -> Decision:
    """Hold for the slot at its new time or size, at the price at which it was booked; where refused, all stays.

    What lies within its old time and needs no more is granted whatever the rules say by now.
    """
    held = open_slots(writes, [slot.id]).get(slot.id)
    if held is None:
        return hold(context, writes, slot, person, actor)
    before, known = held.entry, {gpus.type: factor for gpus, factor in held.parts}
    usual = _usual(context)
    parts = slot.parts(lambda type: known[type] if type in known else usual(type))
    whole = rate_of(parts) * (slot.end - slot.start)
    wanted = max(0, held.amount + whole - held.whole)  # what sessions have taken over, or came back, stays so
    ask = _ask(slot, parts)
    if ({*parts}, slot.start, slot.end) == ({*held.parts}, before.start, before.end):
        return Decision(largest=ask)
    decision, now = Decision(largest=ask), context.clock()
    if wanted > held.amount or slot.start < before.start or slot.end > before.end:
        if rate := rate_of(parts):
            ask = replace(ask, seconds=-(-wanted // rate))
        freed = ReleasedHold(slot.id, held.amount)
        decision = _Deciding(context, writes, person, slot.account, now, freed).decide(ask, slot)
    if decision.granted:
        writes.append(_changed(held, slot, parts, wanted - held.amount, now, actor))
    return decision


def _changed(
    held: OpenSlot, slot: Slot, parts: Sequence[tuple[Gpus, int]], more: int, now: float, actor: str
) -> list[Entry]:
    """Return the entries by which a slot holds so much more, for its new time and these GPUs; its own type's is last.

    Of each other type is held more what its price is more.
    """
    reason, found = f"the booking “{slot.title}” was changed", list[Entry]()
    (own, own_factor), others = parts[0], {gpus.type: (gpus, factor) for gpus, factor in parts[1:]}
    before = {gpus.type: (gpus, factor) for gpus, factor in held.also}
    length = int(held.entry.end - held.entry.start)
    for type, (gpus, factor) in (before | others).items():
        start = slot.start if type in others else slot.end  # of what goes the time is none
        amount = price(gpus, slot.end - start, factor)
        amount -= rate_of([before[type]]) * length if type in before else 0
        if amount or before.get(type) != others.get(type):
            entry = held.more(amount, now, reason, session=ALSO, actor=actor)
            found.append(entry.but(start=start, end=slot.end, gpus=(gpus,), factor=factor))
            held, more = held.after(found[-1]), more - amount
    last = held.more(more, now, reason, actor=actor)
    return [*found, last.but(start=slot.start, end=slot.end, gpus=(own,), factor=own_factor)]


def _ask(slot: Slot, parts: Sequence[tuple[Gpus, int]]) -> Ask:
    """Return what the rules are asked for a slot with these GPUs."""
    return Ask(slot.account, slot.gpus, slot.end - slot.start, parts[0][1], also=rate_of(parts[1:]))


def _usual(context: LedgerContext) -> Callable[[str], int]:
    """Return what a GPU of a type costs now; nobody knows in which partition a slot is used."""
    return lambda type: context.factor(type, "", "")


def give_back(context: LedgerContext, writes: LedgerWrites, slot: Slot, reason: str, actor: str) -> bool:
    """Give back all that a slot holds: it will not be. Return whether it held anything."""
    held = open_slots(writes, [slot.id]).get(slot.id)
    if held is None:
        return False
    writes.append([held.release(context.clock(), reason, actor)])
    return True


class _Deciding:
    """The rules on GPU time of one person and account; what they need of the ledger is read once for many slots."""

    def __init__(
        self,
        context: LedgerContext,
        writes: LedgerWrites,
        person: Person,
        account: str,
        now: float,
        freed: ReleasedHold = NOTHING_FREED,
    ) -> None:
        expire_due(context, writes, now, account)
        policy = context.policy()
        self._applied = about_time(applying(policy.quotas, person, account))
        self._zone, self._now = policy.zone, now
        self._live = Live(writes, account, now, without=freed.slot)
        self._gathering = SnapshotReader(context, writes, person, now, freed=freed)

    def decide(self, ask: Ask, slot: Slot) -> Decision:
        """Decide in each window that the slot's time lies in; the first that refuses says why."""
        # A credit that expires before its end would leave it unpaid.
        lost = self._live.until(slot.end)
        decision = Decision(largest=ask)
        for at in moments(self._applied, max(self._now, slot.start), slot.end, self._zone):
            self._gathering.go_to(at)
            facts = self._gathering.facts(self._applied, [slot.account])
            facts = replace(facts, left={account: left - lost for account, left in facts.left.items()})
            decision = decide(self._applied, ask, facts, zone=self._zone)
            if not decision.granted:
                break
        return decision

    def count(self, slot: Slot, amount: int) -> None:
        """Count what is held for a slot from here on."""
        self._live.count(slot.end, amount)
        self._gathering.count(new_slot(slot.account, slot.user, slot.id, amount, slot.start, slot.end))


# -- sessions in it ---------------------------------------------------------------------------------------------------


def take_over(held: OpenSlot, session: str, amount: int, now: float) -> Entry:
    """Return the entry by which a session takes over so much of what a slot holds."""
    return held.more(-amount, now, f"taken over by session {session}", session=session)


def slot_with(reads: LedgerReads, session: str) -> OpenSlot | None:
    """Return the open slot of which a session has taken something over."""
    return next((held for held in open_slots(reads).values() if session in held.taken), None)


def return_unused(context: LedgerContext, writes: LedgerWrites, sessions: Collection[str], now: float) -> None:
    """Give slots that are still open what these sessions took over and did not use; their holds were just released."""
    for slot in open_slots(writes).values():
        held = slot
        for session in sorted(held.taken.keys() & set(sessions)):
            used = -sum(entry.amount for entry in writes.of_session(session) if entry.kind is Kind.CHARGE)
            account = held.entry.account
            expire_due(context, writes, now, account)
            back = held.back(session, used)
            if lost := live_credits(writes, account, now, held.entry.end):
                # It was paid from a credit that the slot may outlive, and what lasts may have gone to somebody else.
                back = min(back, writes.balance(account).left - lost)
            if back > 0:
                entry = held.more(back, now, f"session {session} did not use it", session=session)
                held = held.after(entry)
                writes.append([entry])


def level(
    context: LedgerContext,  # noqa: ARG001
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
        # Nobody has told of which type those jobs' GPUs are.
        needed = held.whole - sum(held.taken.values()) - by_hand * min(factor for _, factor in held.parts)
    else:
        theirs = (held.within(hold.entry.gpus[0], hold.entry.factor, now, hold.end) for hold in mine.values())
        needed = held.left(now) - sum(theirs)
    spare = held.amount - max(0, needed)
    if held.amount and spare >= max(SMALL * held.rate, held.whole // PARTS):
        written.append(held.more(-spare, now, f"not needed any more for the booking “{slot.title}”"))
        held = held.after(written[-1])
    writes.append(written)
    return held.amount
