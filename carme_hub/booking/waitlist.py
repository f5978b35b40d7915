"""Who waits for GPUs is booked when they become free, the first who asked before the others.

What waits holds nothing and has no places. It is booked by the rules, and for the money, of the moment at which it
fits; until then it waits, and when its start has passed it is taken off the list.
"""

from __future__ import annotations

from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.errors import Refused
from carme_hub.store.reservations import ReservationReads, ReservationWrites

from .calendar import slot_taken
from .context import ACTOR, BookingContext, NotAllowed, share_of
from .validation import START_TOLERANCE

#: What an owner is told whose GPUs did not become free.
TOO_LATE = "Its GPUs did not become free before its start."


def promote(context: BookingContext, now: float | None) -> tuple[Reservation, ...]:
    """Book what fits and drop what waited too long; see ``Bookings.promote``."""
    at = context.now() if now is None else int(now)
    with context.reading() as reads:
        due = [each.id for each in reads.waiting() if _too_late(each, at) or _may_fit(context, reads, each)]
    found = []
    for id in due:
        try:
            with context.writing() as writes:
                each = writes.get(id)
                if each is not None and each.state is State.DRAFT and each.waits:
                    done = _dropped(each, at) if _too_late(each, at) else _booked(context, writes, each, at)
                    writes.save(done)
                    found.append(done)
        except Refused:
            continue  # it goes on waiting: somebody was faster, or a rule or the budget does not allow it now
    return tuple(found)


def _too_late(waiting: Reservation, now: int) -> bool:
    return waiting.period.start < now - START_TOLERANCE


def _may_fit(context: BookingContext, reads: ReservationReads, waiting: Reservation) -> bool:
    try:
        _placed(context, reads, waiting)
    except Refused:
        return False
    return True


def _placed(context: BookingContext, reads: ReservationReads, waiting: Reservation) -> Reservation:
    """Return it with places, or refuse it; what else could be had is nobody's question here."""
    if waiting.account not in (context.accounts(waiting.owner) or ()):
        raise NotAllowed("Its owner is not in the account any more, or nobody knows.")
    rules = context.rules(context.people(waiting.owner), waiting.account)
    need, profile = waiting.need, waiting.profile
    supply = context.calendar.supply_for(need, share_of(rules), profile=profile, account=waiting.account)
    capacity = context.calendar.capacity(reads, supply, waiting.period).restricted_to(
        supply.places_for_profile(profile, need)
    )
    places = capacity.place(need, waiting.period)
    if places is None:
        raise slot_taken(())
    return waiting.replace(places=places)


def _booked(context: BookingContext, writes: ReservationWrites, waiting: Reservation, now: int) -> Reservation:
    person = context.people(waiting.owner)
    rules = context.rules(person, waiting.account)
    context.check_rules(writes, rules, waiting.owner, (waiting.period,), waiting.id, now)
    placed = _placed(context, writes, waiting).replace(waits=False)
    confirmed = placed.in_state(State.CONFIRMED, now, actor=ACTOR, reason="Its GPUs have become free.")
    (found,) = context.confirmed_or_pending(writes, (confirmed,), rules, person, admin=False, actor=ACTOR)
    return found


def _dropped(waiting: Reservation, now: int) -> Reservation:
    return waiting.in_state(State.CANCELLED, now, actor=ACTOR, reason=TOO_LATE).replace(waits=False)
