"""Holds of reservations: written when a reservation is booked, taken over by sessions in it, and released.

A reservation (here a *slot*) holds GPUs × its time × price from when it is confirmed, if the rules on GPU time allow it
in the windows of its own time. A session that starts in it takes over what the slot holds for its time, in the
transaction of its admission; what the session did not use returns to the slot in the transaction that releases the
session's hold. So the sum of a slot, its sessions and their charges never grows after the decision, and nobody else can
take the GPU time in between.

Every function takes the open transaction, so that a booking and its hold are one commit. Only ``hold`` and ``change``
hold more than was decided, and check the rules. The reservations service calls them
(``services/reservations/application/ledger.py``); admission and settlement call those on sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from carme_hub.accounting.context import LedgerContext
from carme_hub.accounting.credit_expiry import LiveCredits, expire_due, live_credits
from carme_hub.accounting.usage_snapshot import (
    NOTHING_FREED,
    ReleasedHold,
    SnapshotReader,
    gpu_time_rules,
    window_moments,
)
from carme_hub.domain.calendar.reservations import Reservation
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import Entry, Kind, price, release_key, slot_key
from carme_hub.domain.quotas.decision import Decision, decide
from carme_hub.domain.quotas.policy_rules import PolicyRequest, with_rules
from carme_hub.domain.quotas.rules import Person, QuotaRequest, applicable
from carme_hub.errors import Refused
from carme_hub.store.ledger.slots import ALSO, OpenSlot, new_slot, open_slots, rate_of
from carme_hub.store.ledger.writes import LedgerReads, LedgerWrites

#: Amounts below these seconds of a slot's GPUs are not written.
MIN_SECONDS = 60
#: A slot's hold is lowered at most this often: entries are never removed, and the check runs each half minute.
MAX_PARTS = 8


class SlotClosed(Refused):
    """The reservation's hold has been released already."""

    reason = "over"


@dataclass(frozen=True, slots=True)
class Slot:
    """A reservation as the ledger needs it. Times are UTC epoch seconds.

    ``other_gpus``: GPUs of other types on its whole nodes.
    """

    id: str
    user: str
    account: str
    gpus: Gpus
    start: int
    end: int
    title: str
    other_gpus: tuple[Gpus, ...] = ()

    def parts(self, factor: Callable[[str], int]) -> tuple[tuple[Gpus, int], ...]:
        """Return all its GPUs, its own type first, each with its factor."""
        return tuple((gpus, factor(gpus.type)) for gpus in (self.gpus, *self.other_gpus))


def slot_of(reservation: Reservation) -> Slot:
    """Return a reservation as the ledger needs it."""
    period, own = reservation.period, Gpus(reservation.need.type, reservation.own_type_gpus)
    others = tuple(Gpus(type, count) for type, count in reservation.by_type.items() if type != own.type)
    owner = (reservation.id, reservation.owner, reservation.account)
    return Slot(*owner, own, period.start, period.end, reservation.title, others)


def price_of(context: LedgerContext, slot: Slot) -> int:
    """Return the price of the whole slot now, in milli-GPU-seconds."""
    return rate_of(slot.parts(_current_factor(context))) * (slot.end - slot.start)


def held_amounts(reads: LedgerReads) -> dict[str, int]:
    """Return what each reservation with an open hold holds (milli-GPU-seconds), by id."""
    return {id: held.amount for id, held in open_slots(reads).items()}


# -- booking ----------------------------------------------------------------------------------------------------------


def hold(context: LedgerContext, writes: LedgerWrites, slot: Slot, person: Person, actor: str) -> Decision:
    """Check the rules on GPU time in the windows of the slot's time, and hold its whole price; see ``hold_all``."""
    return hold_all(context, writes, [slot], person, actor)


def hold_all(
    context: LedgerContext, writes: LedgerWrites, slots: Sequence[Slot], person: Person, actor: str
) -> Decision:
    """Hold for all occurrences of a booking; each is decided with the earlier ones counted, and all are held or none.

    A slot that has a hold already is granted as it is.

    Args:
        slots: at least one; all of one user and account. person: that user, with groups and roles. actor: who books.

    Raises:
        SlotClosed: the hold of one was released before; it needs a new reservation.
    """
    if len({(slot.user, slot.account) for slot in slots}) != 1:
        raise ValueError("all occurrences of a booking have one user and one account")
    there = open_slots(writes, [slot.id for slot in slots])
    over = writes.entries([release_key(slot.id) for slot in slots])
    now, new, rules = context.clock(), list[Entry](), None
    for slot in slots:
        parts = slot.parts(_current_factor(context))
        ask = _ask(slot, parts)
        decision = Decision(largest=ask)
        if not slot.gpus or slot.id in there:
            continue
        if release_key(slot.id) in over:
            raise SlotClosed("This reservation is over. Book a new one.")
        rules = rules or _SlotCheck(context, writes, person, slot.account, now)
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
    """Hold for the slot at its new time or size, at the price at which it was booked; if refused, change nothing.

    A change within its old time that needs no more GPU time is granted without a check of the rules.
    """
    held = open_slots(writes, [slot.id]).get(slot.id)
    if held is None:
        return hold(context, writes, slot, person, actor)
    before, known = held.entry, {gpus.type: factor for gpus, factor in held.parts}
    usual = _current_factor(context)
    parts = slot.parts(lambda type: known[type] if type in known else usual(type))
    whole = rate_of(parts) * (slot.end - slot.start)
    wanted = max(0, held.amount + whole - held.total_price)  # what sessions took over or returned stays as it is
    ask = _ask(slot, parts)
    if ({*parts}, slot.start, slot.end) == ({*held.parts}, before.start, before.end):
        return Decision(largest=ask)
    decision, now = Decision(largest=ask), context.clock()
    if wanted > held.amount or slot.start < before.start or slot.end > before.end:
        if rate := rate_of(parts):
            ask = replace(ask, seconds=-(-wanted // rate))
        freed = ReleasedHold(slot.id, held.amount)
        decision = _SlotCheck(context, writes, person, slot.account, now, freed).decide(ask, slot)
    if decision.granted:
        writes.append(_changed(held, slot, parts, wanted - held.amount, now, actor))
    return decision


def _changed(
    held: OpenSlot, slot: Slot, parts: Sequence[tuple[Gpus, int]], more: int, now: float, actor: str
) -> list[Entry]:
    """Return the entries by which a slot holds ``more``, for its new time and GPUs; that of its own type is last.

    For each other type the entry has the difference of its price.
    """
    reason, found = f"the booking “{slot.title}” was changed", list[Entry]()
    (own, own_factor), others = parts[0], {gpus.type: (gpus, factor) for gpus, factor in parts[1:]}
    before = {gpus.type: (gpus, factor) for gpus, factor in held.also}
    length = int(held.entry.end - held.entry.start)
    for type, (gpus, factor) in (before | others).items():
        start = slot.start if type in others else slot.end  # a type that is removed has no time
        amount = price(gpus, slot.end - start, factor)
        amount -= rate_of([before[type]]) * length if type in before else 0
        if amount or before.get(type) != others.get(type):
            entry = held.change(amount, now, reason, session=ALSO, actor=actor)
            found.append(entry.replace(start=start, end=slot.end, gpus=(gpus,), factor=factor))
            held, more = held.after(found[-1]), more - amount
    last = held.change(more, now, reason, actor=actor)
    return [*found, last.replace(start=slot.start, end=slot.end, gpus=(own,), factor=own_factor)]


def _ask(slot: Slot, parts: Sequence[tuple[Gpus, int]]) -> QuotaRequest:
    """Return the request that the rules decide on for a slot with these GPUs."""
    return QuotaRequest(slot.account, slot.gpus, slot.end - slot.start, parts[0][1], other_rate=rate_of(parts[1:]))


def _current_factor(context: LedgerContext) -> Callable[[str], int]:
    """Return the factor by GPU type now, without partition and QOS: it is not known in which a slot is used."""
    return lambda type: context.factor(type, "", "")


def release_hold(context: LedgerContext, writes: LedgerWrites, slot: Slot, reason: str, actor: str) -> bool:
    """Release the hold of a slot that will not take place; return whether it had one."""
    held = open_slots(writes, [slot.id]).get(slot.id)
    if held is None:
        return False
    writes.append([held.release(context.clock(), reason, actor)])
    return True


class _SlotCheck:
    """Check of the rules on GPU time for one person and account; the ledger is read once for many slots."""

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
        self._applied = gpu_time_rules(applicable(policy.quotas, person, account))
        self._zone, self._now = policy.zone, now
        self._rules, self._person = context.rules, person
        self._live = LiveCredits(writes, account, now, without=freed.slot)
        self._snapshot = SnapshotReader(context, writes, person, now, freed=freed)

    def decide(self, ask: QuotaRequest, slot: Slot) -> Decision:
        """Decide in each window that the slot's time lies in; return the first refusal."""
        # A credit that expires before the slot's end cannot pay for it.
        lost = self._live.until(slot.end)
        decision = Decision(largest=ask)
        for at in window_moments(self._applied, max(self._now, slot.start), slot.end, self._zone):
            self._snapshot.move_to(at)
            facts = self._snapshot.facts(self._applied, [slot.account])
            facts = replace(facts, left={account: left - lost for account, left in facts.left.items()})
            decision = decide(self._applied, ask, facts, zone=self._zone)
            if not decision.granted:
                break
        request = PolicyRequest(self._person, ask, slot.start, slot.end, self._now, kind="booking")
        return with_rules(decision, self._rules, request)

    def count(self, slot: Slot, amount: int) -> None:
        """Count the hold of a slot in the next decisions."""
        self._live.count(slot.end, amount)
        self._snapshot.count(new_slot(slot.account, slot.user, slot.id, amount, slot.start, slot.end))


# -- sessions in a slot -----------------------------------------------------------------------------------------------


def take_over(held: OpenSlot, session: str, amount: int, now: float) -> Entry:
    """Return the entry by which a session takes over ``amount`` of what a slot holds."""
    return held.change(-amount, now, f"taken over by session {session}", session=session)


def slot_of_session(reads: LedgerReads, session: str) -> OpenSlot | None:
    """Return the open slot from which a session has taken something over."""
    return next((held for held in open_slots(reads).values() if session in held.taken), None)


def return_unused(context: LedgerContext, writes: LedgerWrites, sessions: Collection[str], now: float) -> None:
    """Return to open slots what these sessions took over and did not use; their holds were just released."""
    for slot in open_slots(writes).values():
        held = slot
        for session in sorted(held.taken.keys() & set(sessions)):
            used = -sum(entry.amount for entry in writes.of_session(session) if entry.kind is Kind.CHARGE)
            account = held.entry.account
            expire_due(context, writes, now, account)
            back = held.returned_amount(session, used)
            if lost := live_credits(writes, account, now, held.entry.end):
                # A credit that expires before the slot's end paid for it, and others may have taken what lasts longer.
                back = min(back, writes.balance(account).left - lost)
            if back > 0:
                entry = held.change(back, now, f"session {session} did not use it", session=session)
                held = held.after(entry)
                writes.append([entry])


def lower_hold(
    context: LedgerContext,  # noqa: ARG001
    writes: LedgerWrites,
    slot: Slot,
    now: float,
    sessions: Collection[str],
    *,
    booked: bool = False,
    unmanaged: int = 0,
) -> int:
    """Lower a slot's hold to what it can still need; return what it holds now (milli-GPU-seconds).

    Sessions in it that took nothing over at their admission do so now. Of the rest, time that has passed is not needed
    any more if use is charged; if all booked time is charged, what jobs without a session have used is not. It is
    released in ``MAX_PARTS`` parts at most, so that a pass each half minute writes few entries.

    Args:
        sessions: ids of the open sessions in it. booked: whether booked time is charged in place of used time.
        unmanaged: GPU-seconds of jobs in it that belong to no session.
    """
    held = open_slots(writes, [slot.id]).get(slot.id)
    if held is None:
        return 0
    mine = {
        id: hold
        for id, hold in sorted(writes.open_holds(sessions).items())
        if hold.entry.account == held.entry.account and hold.entry.gpus
    }
    written = []
    for id, hold in mine.items():
        all_of_it = held.within(hold.entry.gpus[0], hold.entry.factor, hold.entry.start, hold.end)
        more = min(all_of_it - held.taken.get(id, 0), held.amount)
        if more >= MIN_SECONDS * held.rate:
            written.append(take_over(held, id, more, now))
            held = held.after(written[-1])
    if booked:
        # The GPU type of the jobs without a session is not known.
        needed = held.total_price - sum(held.taken.values()) - unmanaged * min(factor for _, factor in held.parts)
    else:
        theirs = (held.within(hold.entry.gpus[0], hold.entry.factor, now, hold.end) for hold in mine.values())
        needed = held.left(now) - sum(theirs)
    spare = held.amount - max(0, needed)
    if held.amount and spare >= max(MIN_SECONDS * held.rate, held.total_price // MAX_PARTS):
        written.append(held.change(-spare, now, f"not needed any more for the booking “{slot.title}”"))
        held = held.after(written[-1])
    writes.append(written)
    return held.amount
