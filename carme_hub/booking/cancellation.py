"""Use cases that end bookings: cancel before the start, release after it, and approve or deny pending ones."""

from __future__ import annotations

from carme_hub.domain.calendar.reservations import HOLDING, Kind, NotPossible, Reservation, State
from carme_hub.store.reservations import ReservationWrites

from . import maintenance
from .context import Booker, BookingContext, NotAllowed, has_begun
from .occurrences import SeriesScope, in_scope
from .validation import single_line


def cancel(context: BookingContext, who: Booker, id: str, reason: str, which: SeriesScope) -> tuple[Reservation, ...]:
    """Cancel reservations that have not begun and release those that have; see ``Bookings.cancel``."""
    now, reason = context.now(), single_line(reason, "reason")
    with context.writing() as writes:
        one = context.get_changeable(writes, who, id)
        some = [each for each in in_scope(writes, one, which) if each.id == one.id or not _over(each, now)]
        return tuple(
            (_released if has_begun(each, now) else _cancelled)(context, writes, each, now, reason, who.name)
            for each in some
        )


def release(context: BookingContext, who: Booker, id: str, reason: str) -> Reservation:
    """Release an active reservation; see ``Bookings.release``."""
    now, reason = context.now(), single_line(reason, "reason")
    with context.writing() as writes:
        one = context.get_changeable(writes, who, id)
        if one.state in (State.DRAFT, State.PENDING, State.CONFIRMED) and not has_begun(one, now):
            raise NotPossible(f"“{one.title}” has not begun. Cancel it instead.")
        return _released(context, writes, one, now, reason, who.name)


def decide(context: BookingContext, who: Booker, id: str, approve: bool, reason: str) -> tuple[Reservation, ...]:
    """Approve or deny pending reservations; see ``Bookings.decide``."""
    if not who.admin:
        raise NotAllowed("Only administrators approve bookings.")
    now, reason = context.now(), single_line(reason, "reason")
    with context.writing() as writes:
        one = context.get_visible(writes, who, id)
        waiting = [each for each in in_scope(writes, one, "all") if each.state is State.PENDING]
        if not waiting:
            raise NotPossible(f"“{one.title}” is {one.state.value}, and waits for no approval.")
        if not approve:
            return tuple(_cancelled(context, writes, each, now, reason, who.name) for each in waiting)
        ahead = [each for each in waiting if each.period.end > now]
        if not ahead:
            raise NotPossible(f"The time of “{one.title}” is over. It can only be denied.")
        person = context.person(who, one.owner)
        found = [each.in_state(State.CONFIRMED, now, actor=who.name, reason=reason) for each in ahead]
        context.hold(writes, found, person, who.name)
        for each in found:
            writes.save(each)
    return tuple(found)


def _cancelled(
    context: BookingContext, writes: ReservationWrites, each: Reservation, now: int, reason: str, actor: str
) -> Reservation:
    done = each.in_state(State.CANCELLED, now, actor=actor, reason=reason).replace(waits=False)
    writes.save(done)
    if each.kind is Kind.MAINTENANCE:
        maintenance.clear(context, writes, done, now, actor)
    elif each.state in HOLDING:  # a pending one has a hold if it was confirmed before
        context.ledger.release_hold(writes.ledger, done, reason or "cancelled", actor)
    return done


def _released(
    context: BookingContext, writes: ReservationWrites, each: Reservation, now: int, reason: str, actor: str
) -> Reservation:
    if _over(each, now):
        raise NotPossible(f"“{each.title}” is over, and cannot be given back any more.")
    # The reconciler may not have set it active yet.
    active = each.in_state(State.ACTIVE, now, actor=actor) if each.state is State.CONFIRMED else each
    done = active.in_state(State.RELEASED, now, actor=actor, reason=reason).replace(version=each.version + 1)
    writes.save(done)
    if each.kind is Kind.MAINTENANCE:
        maintenance.clear(context, writes, done, now, actor)
    else:
        context.ledger.settle(writes.ledger, done, now)
    return done


def _over(each: Reservation, now: int) -> bool:
    return has_begun(each, now) and each.period.end <= now
