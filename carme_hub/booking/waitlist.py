"""Who waits for GPUs is booked when they become free, the first who asked before the others.

What waits holds nothing and has no places. It is booked by the rules, and for the money, of the moment at which it
fits; until then it waits, and when its start has passed it is taken off the list.
"""

from __future__ import annotations

from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.errors import Refused
from carme_hub.store.reservations import ReservationReads, ReservationWrites

from .calendar import taken
from .context import ACTOR, BookingContext, NotAllowed, share_of
from .validation import LATE

#: What an owner is told whose GPUs did not become free.
TOO_LATE = "Its GPUs did not become free before its start."


def promote(office: BookingContext, now: float | None) -> tuple[Reservation, ...]:
    """Book what fits and drop what waited too long; see ``Bookings.promote``."""
    at = office.now() if now is None else int(now)
    with office.reading() as reads:
        due = [each.id for each in reads.waiting() if _too_late(each, at) or _may_fit(office, reads, each)]
    found = []
    for id in due:
        try:
            with office.writing() as writes:
                each = writes.get(id)
                if each is not None and each.state is State.DRAFT and each.waits:
                    done = _dropped(each, at) if _too_late(each, at) else _booked(office, writes, each, at)
                    writes.save(done)
                    found.append(done)
        except Refused:
            continue  # it goes on waiting: somebody was faster, or a rule or the budget does not allow it now
    return tuple(found)


def _too_late(waiting: Reservation, now: int) -> bool:
    return waiting.period.start < now - LATE


def _may_fit(office: BookingContext, reads: ReservationReads, waiting: Reservation) -> bool:
    try:
        _placed(office, reads, waiting)
    except Refused:
        return False
    return True


def _placed(office: BookingContext, reads: ReservationReads, waiting: Reservation) -> Reservation:
    """Return it with places, or refuse it; what else could be had is nobody's question here."""
    if waiting.account not in (office.accounts(waiting.owner) or ()):
        raise NotAllowed("Its owner is not in the account any more, or nobody knows.")
    rules = office.rules(office.people(waiting.owner), waiting.account)
    need, profile = waiting.need, waiting.profile
    supply = office.calendar.supply_for(need, share_of(rules), profile=profile, account=waiting.account)
    capacity = office.calendar.capacity(reads, supply, waiting.period).only(supply.open_to(profile, need))
    places = capacity.place(need, waiting.period)
    if places is None:
        raise taken(())
    return waiting.but(places=places)


def _booked(office: BookingContext, writes: ReservationWrites, waiting: Reservation, now: int) -> Reservation:
    person = office.people(waiting.owner)
    rules = office.rules(person, waiting.account)
    office.need_allowed(writes, rules, waiting.owner, (waiting.period,), waiting.id, now)
    placed = _placed(office, writes, waiting).but(waits=False)
    confirmed = placed.to(State.CONFIRMED, now, actor=ACTOR, reason="Its GPUs have become free.")
    (found,) = office.promised(writes, (confirmed,), rules, person, admin=False, actor=ACTOR)
    return found


def _dropped(waiting: Reservation, now: int) -> Reservation:
    return waiting.to(State.CANCELLED, now, actor=ACTOR, reason=TOO_LATE).but(waits=False)
