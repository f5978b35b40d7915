"""A booking is made in one transaction: the rules, what is free, the approval, the money and the key together.

What would come of it can be asked before, as often as a hand drags something over a calendar; nothing is written then.
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

from .calendar import Asked, BookingRequest, Conflict, asked, taken
from .changes import asked_again, grows, moved_to
from .context import Booker, BookingContext, booking_of, has_begun, share_of
from .idempotency import once
from .validation import need_account, spelled_out, understood


@dataclass(frozen=True, slots=True)
class PreviewedTime:
    """One time of a booking. ``note``: what clocks do to it, as a sentence, "" where nothing."""

    period: Period
    occurrence: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class BookingPreview:
    """What would come of a booking.

    Attributes:
        conflicts: times that are not free, the first few with what could be had. refusal: why the rules do not allow
            it, as a sentence; reason: its slug.
        price: milli-GPU-seconds; gpus: that each time takes; both 0 where it cannot be had.
        notes: what this Slurm cannot keep exactly.
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
        """Return whether it could be booked now, for what can be told without writing."""
        return bool(self.times) and not self.conflicts and not self.refusal


def book(
    office: BookingContext, who: Booker, wish: BookingRequest, recurrence: Recurrence | None, key: str, wait: bool
) -> tuple[Reservation, ...]:
    """Book all times of a wish; see ``Bookings.book``."""
    spelled = spelled_out(wish, recurrence).wish
    with office.writing() as writes:
        asked_for = ("booking", [wish, recurrence, wait])
        return once(office, writes, who, key, asked_for, lambda: _booked(office, writes, who, spelled, wait))


def _booked(
    office: BookingContext, writes: ReservationWrites, who: Booker, wish: BookingRequest, wait: bool
) -> tuple[Reservation, ...]:
    now = office.now()
    wish = understood(who, wish, now)
    if wait and len(wish.times) > 1:
        raise NotPossible("Only what comes once can wait for GPUs. Book the times one by one, or take those offered.")
    person = office.person(who, wish.owner)
    rules = office.rules(person, wish.account)
    office.need_allowed(writes, rules, wish.owner, _periods(wish), "", now)
    supply = office.calendar.supply_for(wish.need, share_of(rules), profile=wish.profile, account=wish.account)
    allowed = office.allowing(writes, rules, wish.owner, "", now)
    fit = office.calendar.fit(writes, supply, asked(wish), allowed=allowed)
    if not fit.conflicts:
        found = office.calendar.made(wish, fit, State.CONFIRMED, actor=who.name)
        found = office.promised(writes, found, rules, person, admin=who.admin, actor=who.name)
    elif wait:
        office.need_member(wish.owner, wish.account)
        draft = office.calendar.reservation(wish, wish.times[0], (), State.DRAFT, actor=who.name)
        found = (draft.but(waits=True),)
    else:
        raise taken(fit.conflicts)
    writes.add(found)
    return found


def check(
    office: BookingContext, who: Booker, wish: BookingRequest, recurrence: Recurrence | None, instead_of: str
) -> BookingPreview:
    """Say what would come of a booking; see ``Bookings.check``."""
    now, checked = office.now(), BookingPreview()
    try:
        spelled = spelled_out(wish, recurrence)
        with office.reading() as reads:
            old = office.to_change(reads, who, instead_of) if instead_of else None
            begun = old.period.start if old is not None and has_begun(old, now) else 0
            wish = understood(who, spelled.wish, now, titled=False, pays=old is None, begun=begun)
            times = zip(wish.times, spelled.notes, strict=True)
            checked = BookingPreview(tuple(PreviewedTime(time.period, time.occurrence, note) for time, note in times))
            return _looked_at(office, reads, who, wish, old, checked, now)
    except Refused as error:
        return replace(checked, refusal=error.message, reason=error.reason)


def _looked_at(
    office: BookingContext,
    reads: ReservationReads,
    who: Booker,
    wish: BookingRequest,
    old: Reservation | None,
    checked: BookingPreview,
    now: int,
) -> BookingPreview:
    rules = office.rules(office.person(who, wish.owner), wish.account)
    wanted: Sequence[Asked] = asked(wish)
    if old is not None:
        for each in wanted:
            moved_to(old, each.time.period, wish.need, now)
        wanted = [asked_again(old, each.time.period, wish.need, now) for each in wanted]
    profile = "" if all(each.sure for each in wanted) else wanted[0].profile
    supply = office.calendar.supply_for(wish.need, share_of(rules), profile=profile, account=wish.account)
    booking = booking_of(old) if old is not None else ""
    allowed = office.allowing(reads, rules, wish.owner, booking, now)
    fit = office.calendar.fit(reads, supply, wanted, {old.id} if old is not None else (), allowed=allowed)
    checked = replace(checked, conflicts=fit.conflicts)
    asks = [each for each in _periods(wish) if old is None or grows(old, each, wish.need)]
    if not fit.conflicts:
        found = office.calendar.made(wish, fit, State.DRAFT)
        price = sum(office.money.price(each) for each in found)
        whole = price + sum(office.money.price(each) for each in _others(reads, old))
        checked = replace(
            checked,
            price=price,
            gpus=found[0].gpus,
            needs_approval=bool(asks) and not who.admin and needs_approval(rules.rule, whole),
            notes=messages.notes(supply, wish.need, fit.places[0], wanted[0].profile),
        )
    try:
        if asks:
            need_account(who, wish.account)
            office.need_allowed(reads, rules, wish.owner, asks, booking, now)
    except Refused as error:
        return replace(checked, refusal=error.message, reason=error.reason)
    return checked


def _others(reads: ReservationReads, old: Reservation | None) -> list[Reservation]:
    """Return the other times of the same booking that are not over."""
    known = reads.of_series(old.series) if old is not None and old.series else []
    return [each for each in known if old is not None and each.id != old.id and each.state in HOLDING]


def _periods(wish: BookingRequest) -> list[Period]:
    return [time.period for time in wish.times]
