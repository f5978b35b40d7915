"""Use cases that create a booking, or preview it.

One transaction checks the rules, finds places, decides on the approval, holds GPU time and stores the idempotency key.
A preview writes nothing; the calendar's page calls it while somebody drags a booking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from carme_hub.booking import messages
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.recurrence import Recurrence
from carme_hub.domain.calendar.reservations import HOLDING, NotPossible, Reservation, State
from carme_hub.domain.quotas.booking_rules import needs_approval
from carme_hub.errors import Refused
from carme_hub.store.reservations import ReservationReads, ReservationWrites

from .calendar import BookingRequest, Conflict, PlacementRequest, placement_requests, slot_taken
from .changes import grows, moved_placement, moved_to
from .context import Booker, BookingContext, booking_of, has_begun, share_of
from .idempotency import run_once
from .validation import check_account, expanded, validated


@dataclass(frozen=True, slots=True)
class PreviewedTime:
    """One time of a booking. ``note``: a sentence if a clock change affects it, otherwise ""."""

    period: Period
    occurrence: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class BookingPreview:
    """The result that a booking would have.

    Attributes:
        conflicts: times that are not free, the first few with alternatives. refusal: why the rules do not allow it, as
            a sentence; reason: its slug.
        price: milli-GPU-seconds; gpus: GPUs of each time; both 0 if there are conflicts.
        notes: what this Slurm cannot reserve exactly.
    """

    times: tuple[PreviewedTime, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    refusal: str = ""
    reason: str = ""
    needs_approval: bool = False
    price: int = 0
    gpus: int = 0
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether it could be booked now, as far as a preview can check."""
        return bool(self.times) and not self.conflicts and not self.refusal


def book(
    context: BookingContext, who: Booker, request: BookingRequest, recurrence: Recurrence | None, key: str, wait: bool
) -> tuple[Reservation, ...]:
    """Book all times of a request; see ``Bookings.book``."""
    expansion = expanded(request, recurrence).request
    with context.writing() as writes:
        asked_for = ("booking", [request, recurrence, wait])
        return run_once(context, writes, who, key, asked_for, lambda: _booked(context, writes, who, expansion, wait))


def _booked(
    context: BookingContext, writes: ReservationWrites, who: Booker, request: BookingRequest, wait: bool
) -> tuple[Reservation, ...]:
    now = context.now()
    request = validated(who, request, now)
    if wait and len(request.times) > 1:
        raise NotPossible("Only a single time can wait for GPUs. Book the times one by one, or take those offered.")
    person = context.person(who, request.owner)
    rules = context.rules(person, request.account)
    context.check_rules(writes, rules, request.owner, _periods(request), "", now)
    supply = context.calendar.supply_for(
        request.need, share_of(rules), profile=request.profile, account=request.account
    )
    allowed = context.period_filter(writes, rules, request.owner, "", now)
    placement = context.calendar.find_places(writes, supply, placement_requests(request), allowed=allowed)
    if not placement.conflicts:
        found = context.calendar.new_reservations(request, placement, State.CONFIRMED, actor=who.name)
        found = context.confirmed_or_pending(writes, found, rules, person, admin=who.admin, actor=who.name)
    elif wait:
        context.check_member(request.owner, request.account)
        draft = context.calendar.new_reservation(request, request.times[0], (), State.DRAFT, actor=who.name)
        found = (draft.replace(waits=True),)
    else:
        raise slot_taken(placement.conflicts)
    writes.add(found)
    return found


def check(
    context: BookingContext, who: Booker, request: BookingRequest, recurrence: Recurrence | None, instead_of: str
) -> BookingPreview:
    """Return the preview of a booking; see ``Bookings.check``."""
    now, checked = context.now(), BookingPreview()
    try:
        expansion = expanded(request, recurrence)
        with context.reading() as reads:
            old = context.get_changeable(reads, who, instead_of) if instead_of else None
            begun = old.period.start if old is not None and has_begun(old, now) else 0
            request = validated(who, expansion.request, now, titled=False, pays=old is None, begun=begun)
            times = zip(request.times, expansion.notes, strict=True)
            checked = BookingPreview(tuple(PreviewedTime(time.period, time.occurrence, note) for time, note in times))
            return _preview(context, reads, who, request, old, checked, now)
    except Refused as error:
        return replace(checked, refusal=error.message, reason=error.reason)


def _preview(
    context: BookingContext,
    reads: ReservationReads,
    who: Booker,
    request: BookingRequest,
    old: Reservation | None,
    checked: BookingPreview,
    now: int,
) -> BookingPreview:
    rules = context.rules(context.person(who, request.owner), request.account)
    wanted: Sequence[PlacementRequest] = placement_requests(request)
    if old is not None:
        for each in wanted:
            moved_to(old, each.time.period, request.need, now)
        wanted = [moved_placement(old, each.time.period, request.need, now) for each in wanted]
    profile = "" if all(each.sure for each in wanted) else wanted[0].profile
    supply = context.calendar.supply_for(request.need, share_of(rules), profile=profile, account=request.account)
    booking = booking_of(old) if old is not None else ""
    allowed = context.period_filter(reads, rules, request.owner, booking, now)
    placement = context.calendar.find_places(
        reads, supply, wanted, {old.id} if old is not None else (), allowed=allowed
    )
    checked = replace(checked, conflicts=placement.conflicts)
    asks = [each for each in _periods(request) if old is None or grows(old, each, request.need)]
    if not placement.conflicts:
        found = context.calendar.new_reservations(request, placement, State.DRAFT)
        price = sum(context.ledger.price(each) for each in found)
        whole = price + sum(context.ledger.price(each) for each in _others(reads, old))
        checked = replace(
            checked,
            price=price,
            gpus=found[0].gpus,
            needs_approval=bool(asks) and not who.admin and needs_approval(rules.rule, whole),
            notes=messages.notes(supply, request.need, placement.places[0], wanted[0].profile),
        )
    try:
        if asks:
            check_account(who, request.account)
            context.check_rules(reads, rules, request.owner, asks, booking, now)
    except Refused as error:
        return replace(checked, refusal=error.message, reason=error.reason)
    return checked


def _others(reads: ReservationReads, old: Reservation | None) -> list[Reservation]:
    """Return the other times of the same booking that are not over."""
    known = reads.of_series(old.series) if old is not None and old.series else []
    return [each for each in known if old is not None and each.id != old.id and each.state in HOLDING]


def _periods(request: BookingRequest) -> list[Period]:
    return [time.period for time in request.times]
