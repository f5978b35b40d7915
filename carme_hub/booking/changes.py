"""Use case that moves a booking or changes its size: all of the change is made, or nothing.

Its own places count as free, and it keeps them if they are free at the new time. A reservation that has begun keeps its
start and its places, since a running job cannot move. A smaller reservation needs neither a check of the rules nor
other places. One that is pending again holds for its new time and size: its approval needs no more, its denial releases
that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import HOLDING, Kind, NotPossible, Reservation, State
from carme_hub.domain.quotas.booking_rules import needs_approval
from carme_hub.store.reservations import ConcurrentChange, ReservationWrites

from . import maintenance
from .calendar import PlacementRequest, RequestedTime, slot_taken
from .context import Booker, BookingContext, NotAllowed, OverBudget, booking_of, has_begun, share_of
from .occurrences import FINAL, SeriesScope, in_scope, shift_to, shifted
from .rules import Rules
from .validation import check_account, title_of, validated_period

_BEGUN = "“{title}” has begun: only its end can be moved, since running jobs cannot."


@dataclass(frozen=True, slots=True)
class Change:
    """The fields to change; None leaves a field as it is."""

    period: Period | None = None
    need: Need | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True)
class _Move:
    """One reservation before and after the change."""

    old: Reservation
    new: Reservation

    @property
    def placed(self) -> bool:
        """Return whether time or size changes."""
        return (self.old.period, self.old.need) != (self.new.period, self.new.need)

    @property
    def grows(self) -> bool:
        """Return whether the change needs a check of the rules."""
        return grows(self.old, self.new.period, self.new.need)


def grows(old: Reservation, period: Period, need: Need) -> bool:
    """Return whether a change needs a check of the rules: time outside of its old one, more or other GPUs."""
    smaller = (need.type, need.gpus) == (old.need.type, old.need.gpus) and need.seats <= old.need.seats
    return not (smaller and _within(period, old.period))


def moved_placement(old: Reservation, period: Period, need: Need, now: int) -> PlacementRequest:
    """Return the placement request for a reservation at its new time and size."""
    time, same = RequestedTime(period, old.occurrence), need == old.need
    sure = same and bool(old.places) and _within(period, old.period)
    places, fixed = old.places if same else (), same and has_begun(old, now)
    return PlacementRequest(time, need, places, fixed=fixed, sure=sure, profile=old.profile)


def move(
    context: BookingContext, who: Booker, id: str, version: int, change: Change, which: SeriesScope
) -> tuple[Reservation, ...]:
    """Change a reservation, or several of its booking; see ``Bookings.move``."""
    now = context.now()
    with context.writing() as writes:
        one = context.get_changeable(writes, who, id)
        if one.version != version:
            raise ConcurrentChange("The reservation was changed meanwhile. Look at it again.")
        moves = [each for each in _moves(writes, one, change, which, now) if each.new != each.old]
        if one.kind is Kind.MAINTENANCE:
            return (maintenance.moved(context, writes, one, moves[0].new, now, who.name),) if moves else (one,)
        rules = context.rules(context.person(who, one.owner), one.account)
        periods = [each.new.period for each in moves if each.grows]
        if periods:
            check_account(who, one.account)
            context.check_rules(writes, rules, one.owner, periods, booking_of(one), now)
        moves = _placed(context, writes, one, moves, rules, now)
        moves = _approved(context, writes, who, one, moves, rules, now)
        moves.sort(
            key=lambda each: context.ledger.price(each.new) - context.ledger.price(each.old)
        )  # those that release GPU time come first
        found = [_written(context, writes, who, each, now) for each in moves]
        if periods and any(each.state is State.PENDING for each in found):
            whole = writes.of_series(one.series) if one.series else found
            waiting = [each for each in whole if each.state is State.PENDING and each.period.end > now]
            context.check_hold(writes, waiting, context.person(who, one.owner), who.name)
    return tuple(sorted(found, key=lambda each: each.period)) or (one,)


def moved_to(one: Reservation, period: Period | None, need: Need | None, now: int) -> Period:
    """Return the new period of a reservation; raise ``NotPossible`` if the change is not possible."""
    begun = has_begun(one, now)
    if one.state in FINAL or one.period.end <= now:
        raise NotPossible(f"“{one.title}” is over, and cannot be changed any more.")
    if begun and need not in (None, one.need):
        raise NotPossible(_BEGUN.format(title=one.title))
    if period is None or period == one.period:
        return one.period
    if begun and period.start != one.period.start:
        raise NotPossible(_BEGUN.format(title=one.title))
    if period.end <= now:
        raise NotPossible("The new end is in the past. To end it now, give it back.")
    return validated_period(period, now, begun=one.period.start if begun else 0)


def _moves(writes: ReservationWrites, one: Reservation, change: Change, which: SeriesScope, now: int) -> list[_Move]:
    """Return the moves of all reservations in scope."""
    period = moved_to(one, change.period, change.need, now)
    title = one.title if change.title is None else title_of(change.title)
    by, found = shift_to(one, period), []
    for each in in_scope(writes, one, which):
        new = each.replace(title=title if change.title is not None else each.title)
        if each.id == one.id:
            new = new.replace(period=period, need=change.need or one.need)
        elif not has_begun(each, now):  # a reservation that has begun is not moved with the others
            new = new.replace(need=change.need or each.need)
            if period != one.period:
                new = new.replace(period=validated_period(shifted(each, by), now))
        found.append(_Move(each, new))
    return found


def _placed(
    context: BookingContext, writes: ReservationWrites, one: Reservation, moves: Sequence[_Move], rules: Rules, now: int
) -> list[_Move]:
    """Find places for all moved reservations that hold GPUs; raise ``SlotTaken`` if one has none."""
    some = [each for each in moves if each.placed and each.old.state in HOLDING]
    wanted = [moved_placement(each.old, each.new.period, each.new.need, now) for each in some]
    supply = context.calendar.supply()
    for need, profile in {(each.need, each.profile) for each in wanted if not each.sure}:
        supply = context.calendar.supply_for(need, share_of(rules), profile=profile, account=one.account)
    allowed = context.period_filter(writes, rules, one.owner, booking_of(one), now)
    placement = context.calendar.find_places(writes, supply, wanted, {each.old.id for each in some}, allowed=allowed)
    if placement.conflicts:
        raise slot_taken(placement.conflicts, "changed")
    places = {each.old.id: placement.places[at] for at, each in enumerate(some)}
    return [_Move(each.old, each.new.replace(places=places.get(each.old.id, each.old.places))) for each in moves]


def _approved(
    context: BookingContext,
    writes: ReservationWrites,
    who: Booker,
    one: Reservation,
    moves: Sequence[_Move],
    rules: Rules,
    now: int,
) -> list[_Move]:
    """Make growing reservations pending if the booking as a whole needs an approval now."""
    ours = {each.old.id for each in moves}
    others = [each for each in writes.of_series(one.series) if each.id not in ours] if one.series else []
    whole = [each for each in (*others, *(each.new for each in moves)) if each.state in HOLDING]
    asks = not who.admin and needs_approval(rules.rule, sum(context.ledger.price(each) for each in whole))
    found = []
    for each in moves:
        if asks and each.grows and each.old.state in HOLDING:
            if has_begun(each.old, now):
                raise NotAllowed("This change needs an approval, and it has begun. Ask an administrator to change it.")
            each = _Move(each.old, each.new.replace(state=State.PENDING, reason=""))
        found.append(each)
    return found


def _written(context: BookingContext, writes: ReservationWrites, who: Booker, each: _Move, now: int) -> Reservation:
    """Write one move and change its hold."""
    old, new = each.old, each.new
    new = new.replace(version=old.version + 1, changed=context.calendar.clock(), actor=who.name)
    if each.placed:
        new = new.replace(problem=maintenance.problem_left(writes, old, new, now))
        if new.state in HOLDING:
            sentence = context.ledger.change(writes.ledger, new, context.person(who, new.owner), who.name)
            if sentence:
                raise OverBudget(sentence)
    writes.save(new)
    return new


def _within(inner: Period, outer: Period) -> bool:
    return outer.start <= inner.start and inner.end <= outer.end
