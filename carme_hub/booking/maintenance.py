"""Use cases of maintenance: it reserves whole nodes, also booked ones, whose bookings get other places if possible.

A booking without other places has a ``problem``, of which its owner is notified, until the maintenance is cancelled or
the booking is moved.
"""

from __future__ import annotations

from collections.abc import Collection

from carme_hub.booking import messages
from carme_hub.domain.calendar.capacity import Need, Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import HOLDING, Kind, NotPossible, Reservation, State
from carme_hub.store.reservations import ReservationReads, ReservationWrites

from .calendar import BookingRequest, NoSuchGpus, RequestedTime
from .context import BadBooking, Booker, BookingContext, NotAllowed, has_begun
from .idempotency import run_once
from .validation import title_of, validated_period

#: Seconds before its start from which users with sessions on its nodes are notified, and can move or stop them for it.
NOTICE = 7 * 86_400


def maintain(
    context: BookingContext, who: Booker, nodes: Collection[str], period: Period, title: str, key: str
) -> tuple[Reservation, tuple[Reservation, ...]]:
    """Reserve whole nodes; see ``Bookings.maintain``."""
    if not who.admin:
        raise NotAllowed("Only administrators plan maintenance.")
    title, asked = title_of(title), sorted(set(nodes))
    with context.writing() as writes:
        said = ("maintenance", [asked, period, title])
        it, *changed = run_once(
            context, writes, who, key, said, lambda: _planned(context, writes, who, asked, period, title)
        )
        return it, tuple(changed)


def _planned(
    context: BookingContext, writes: ReservationWrites, who: Booker, nodes: Collection[str], period: Period, title: str
) -> list[Reservation]:
    """Return the maintenance, and the bookings that it changed."""
    now = context.now()
    time, places = RequestedTime(validated_period(period, now)), _whole(context, nodes)
    request = BookingRequest(who.user, "", title, Need(places[0].type, 0, len(places)), (time,))
    it = context.calendar.new_reservation(request, time, places, State.CONFIRMED, actor=who.name)
    it = it.replace(kind=Kind.MAINTENANCE)
    writes.add([it])
    return [it, *_displace(context, writes, it, now, who.name)]


def moved(
    context: BookingContext, writes: ReservationWrites, old: Reservation, new: Reservation, now: int, actor: str
) -> Reservation:
    """Change the time or title of a maintenance."""
    if new.need != old.need:
        raise NotPossible("The nodes of a maintenance cannot be changed. Cancel it, and plan another one.")
    new = new.replace(version=old.version + 1, changed=context.calendar.clock(), actor=actor)
    writes.save(new)
    clear(context, writes, old, now, actor)
    _displace(context, writes, new, now, actor)
    return new


def clear(context: BookingContext, writes: ReservationWrites, it: Reservation, now: int, actor: str) -> None:
    """Clear the problems caused by a maintenance; it has been written as cancelled, released or moved before."""
    for each in _affected_by(writes, it):
        if each.problem.startswith(messages.MAINTENANCE):
            problem = problem_left(writes, each, each, now)
            if problem != each.problem:
                _save(context, writes, each.replace(problem=problem), actor)


def problem_left(reads: ReservationReads, old: Reservation, new: Reservation, now: int) -> str:
    """Return the problem that a booking has after a change: one of old places or of maintenance may be gone."""
    if not old.problem.startswith(messages.MAINTENANCE):
        return old.problem if new.places == old.places else ""
    nodes = {place.node for place in new.places}
    for each in reads.overlapping(new.period):
        if each.kind is Kind.MAINTENANCE and any(place.node in nodes for place in each.places):
            return messages.maintenance_problem(each, new, now)
    return ""


def _whole(context: BookingContext, nodes: Collection[str]) -> tuple[Place, ...]:
    """Return whole nodes as places; raise ``NoSuchGpus`` for unknown ones."""
    inventory = {
        item.node: item
        for item in sorted(context.calendar.supply().inventory, key=lambda item: item.type, reverse=True)
    }
    wanted = sorted(set(nodes))
    if not wanted:
        raise BadBooking("Name the nodes for the maintenance.")
    if unknown := [node for node in wanted if node not in inventory]:
        raise NoSuchGpus(
            f"{messages.listed([each[:60] for each in unknown])}: no such node has GPUs that can be booked."
        )
    found = (inventory[node] for node in wanted)
    return tuple(Place(item.node, item.type, item.count, 1, True, item.count * item.cpus) for item in found)


def _displace(
    context: BookingContext, writes: ReservationWrites, it: Reservation, now: int, actor: str
) -> list[Reservation]:
    """Find other places for the affected bookings; those without get a problem."""
    return [
        _save(context, writes, _relocated(context, writes, each, now, actor) or _with_problem(it, each, now), actor)
        for each in _affected_by(writes, it)
    ]


def _affected_by(reads: ReservationReads, it: Reservation) -> list[Reservation]:
    nodes = {place.node for place in it.places}
    booked = (each for each in reads.overlapping(it.period, HOLDING) if each.kind is Kind.BOOKING)
    return [each for each in booked if any(place.node in nodes for place in each.places)]


def _with_problem(it: Reservation, booking: Reservation, now: int) -> Reservation:
    return booking.replace(problem=messages.maintenance_problem(it, booking, now))


def _relocated(
    context: BookingContext, writes: ReservationWrites, booking: Reservation, now: int, actor: str
) -> Reservation | None:
    """Return a booking at other places; None if there are none, or running jobs would have to move."""
    if has_begun(booking, now):
        return None
    try:
        supply = context.calendar.supply_for(booking.need)
    except NoSuchGpus:
        return None
    capacity = context.calendar.capacity(writes, supply, booking.period, {booking.id})
    places = capacity.restricted_to(supply.places_for_profile(booking.profile, booking.need)).place(
        booking.need, booking.period
    )
    if places is None:
        return None
    found = booking.replace(places=places, problem="")
    dearer = context.ledger.price(found) != context.ledger.price(booking)
    # Other whole nodes may have more GPUs, and cost more than the account has left.
    refused = dearer and context.ledger.change(writes.ledger, found, context.people(found.owner), actor)
    return None if refused else found


def _save(context: BookingContext, writes: ReservationWrites, changed: Reservation, actor: str) -> Reservation:
    changed = changed.replace(version=changed.version + 1, changed=context.calendar.clock(), actor=actor)
    writes.save(changed)
    return changed
