"""The waitlist: drafts are booked when GPUs become free, oldest first. The reconciler calls it in each pass.

A draft holds no GPU time and has no places. It is booked by the rules and prices in force when it fits; if its start
passes before that, it is cancelled.
"""

from __future__ import annotations

from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.errors import Refused
from carme_hub.store.reservations import ReservationReads, ReservationWrites

from .calendar import slot_taken
from .context import ACTOR, BookingContext, NotAllowed, share_of
from .validation import START_TOLERANCE

#: Reason of the cancellation of a draft whose GPUs did not become free.
TOO_LATE = "Its GPUs did not become free before its start."


def promote(context: BookingContext, now: float | None) -> tuple[Reservation, ...]:
    """Book drafts that fit and cancel those whose start has passed; see ``Bookings.promote``."""
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
            continue  # it stays on the list: another booking was faster, or a rule or the budget refuses it now
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
    """Return the draft with places; raise ``Refused`` if it has none. Alternatives are not needed here."""
    if waiting.account not in (context.accounts(waiting.owner) or ()):
        raise NotAllowed("Its owner is not in the account any more, or the accounts are not known now.")
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
