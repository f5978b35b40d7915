"""What every use case of booking needs: the booker, the rules, the ledger, and the refusals.

A use case is a function of this context and the request. It opens one write transaction, and reads, checks and writes
in it, so that pages, REST and command line apply the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import HOLDING, Kind, NotPossible, Reservation, State
from carme_hub.domain.quotas.booking_rules import ExistingBooking, needs_approval
from carme_hub.domain.quotas.rules import Person
from carme_hub.errors import Refused
from carme_hub.store.ledger.writes import LedgerWrites
from carme_hub.store.reservations import ReservationReads, ReservationStore, ReservationWrites

from .calendar import Calendar
from .rules import Rules, refused

#: Actor of changes that no person makes.
ACTOR = "carme-hub"


class NotAllowed(Refused):
    """A rule on booking does not allow it; the message names the rule."""

    reason = "not-allowed"


class TooFar(Refused):
    """It starts later than the rules allow now."""

    reason = "too-far"


class BadBooking(Refused):
    """The request is not valid; the message says what to write."""

    reason = "bad-booking"


class KeyUsed(Refused):
    """The idempotency key was used for another booking."""

    reason = "key-used"


class Unknown(Refused):
    """There is no such booking, or the booker may not see it."""

    reason = "unknown"


class NotYours(Refused):
    """Only its owner or an administrator may do that."""

    reason = "not-yours"


class OverBudget(Refused):
    """The account's GPU time, or a rule on it, does not allow it; the message names it."""

    reason = "over-budget"


class BookingSettlement(Protocol):
    """The ledger at the end of a booking; every method writes in the transaction that writes the booking."""

    def release_hold(self, writes: LedgerWrites, reservation: Reservation, reason: str, actor: str) -> None:
        """Release the hold of a booking that will not take place; no hold is no error."""
        ...

    def settle(self, writes: LedgerWrites, reservation: Reservation, now: float) -> None:
        """Settle a booking that has ended or was released in its time: charge what is due, release the rest."""
        ...


class BookingLedger(BookingSettlement, Protocol):
    """The ledger of bookings; every method writes in the transaction of the booking. A refusal writes nothing."""

    def hold(self, writes: LedgerWrites, booking: Sequence[Reservation], person: Person, actor: str) -> str:
        """Hold what all times of a confirmed booking may use; return the sentence of a refusal, "" if it is held."""
        ...

    def change(self, writes: LedgerWrites, reservation: Reservation, person: Person, actor: str) -> str:
        """Change the hold to the booking's new time and size; return the sentence of a refusal or "".

        A pending booking has a hold if it was confirmed before; without a hold it stays without one.
        """
        ...

    def price(self, reservation: Reservation) -> int:
        """Return the price of the whole in milli-GPU-seconds."""
        ...


class NoLedger:
    """The ledger of a hub without one: everything is granted."""

    def hold(self, writes: LedgerWrites, booking: Sequence[Reservation], person: Person, actor: str) -> str:  # noqa: ARG002
        """Grant it."""
        return ""

    def change(self, writes: LedgerWrites, reservation: Reservation, person: Person, actor: str) -> str:  # noqa: ARG002
        """Grant it."""
        return ""

    def release_hold(self, writes: LedgerWrites, reservation: Reservation, reason: str, actor: str) -> None:
        """Do nothing."""

    def settle(self, writes: LedgerWrites, reservation: Reservation, now: float) -> None:
        """Do nothing."""

    def price(self, reservation: Reservation) -> int:
        """Return its GPU-seconds at factor 1: the rule on approvals compares them."""
        return reservation.gpu_seconds * 1000


@dataclass(frozen=True, slots=True)
class Booker:
    """The person who books or changes a booking.

    Attributes:
        accounts: accounts that they may charge. admin: whether they may book for others, and approve.
        actor: name that is recorded as the actor; "" = their own.
    """

    person: Person
    accounts: tuple[str, ...] = ()
    admin: bool = False
    actor: str = ""

    @property
    def user(self) -> str:
        """Return the user name."""
        return self.person.user

    @property
    def name(self) -> str:
        """Return the name that is recorded as the actor."""
        return self.actor or self.person.user


@dataclass(frozen=True, slots=True)
class BookingContext:
    """What use cases need; see ``Bookings``."""

    calendar: Calendar
    rules: Callable[[Person, str], Rules]
    ledger: BookingLedger
    people: Callable[[str], Person]
    accounts: Callable[[str], Collection[str] | None]

    @property
    def store(self) -> ReservationStore:
        """Return the store of reservations."""
        return self.calendar.store

    def now(self) -> int:
        """Return epoch seconds."""
        return int(self.calendar.clock())

    def writing(self) -> AbstractContextManager[ReservationWrites]:
        """Open a write transaction; it excludes all other writers of the calendar."""
        return self.store.transaction(self.calendar.cluster)

    def reading(self) -> AbstractContextManager[ReservationReads]:
        """Open a consistent read of the calendar."""
        return self.store.reading(self.calendar.cluster)

    def person(self, who: Booker, owner: str) -> Person:
        """Return the owner with their groups and roles."""
        return who.person if owner == who.user else self.people(owner)

    def check_rules(
        self, reads: ReservationReads, rules: Rules, owner: str, periods: Iterable[Period], booking: str, now: int
    ) -> None:
        """Raise ``NotAllowed`` or ``TooFar`` if the rules refuse a period. ``booking``: the booking of the periods."""
        mine = _booked_by(reads, owner, now - (rules.rule.cooldown or 0))
        for period in periods:
            if sentence := refused(rules, period, booking=booking, mine=mine, now=now):
                ahead = rules.rule.ahead
                far = rules.may_book and ahead is not None and period.start - now > ahead
                raise (TooFar if far else NotAllowed)(sentence)

    def period_filter(
        self, reads: ReservationReads, rules: Rules, owner: str, booking: str, now: int
    ) -> Callable[[Period], bool]:
        """Return a function that says whether the rules allow an owner a period, to filter alternatives."""

        @cache
        def mine() -> list[ExistingBooking]:  # read lazily: most bookings have no conflict and need no alternatives
            return _booked_by(reads, owner, now - (rules.rule.cooldown or 0))

        return lambda period: not refused(rules, period, booking=booking, mine=mine(), now=now)

    def confirmed_or_pending(
        self,
        writes: ReservationWrites,
        found: Sequence[Reservation],
        rules: Rules,
        person: Person,
        *,
        admin: bool,
        actor: str,
    ) -> tuple[Reservation, ...]:
        """Return a new booking as it is to be written: confirmed and with a hold, or pending."""
        price = sum(self.ledger.price(each) for each in found)
        if not admin and needs_approval(rules.rule, price):
            self.check_hold(writes, found, person, actor)
            return tuple(each.replace(state=State.PENDING) for each in found)
        self.hold(writes, found, person, actor)
        return tuple(found)

    def hold(self, writes: ReservationWrites, booking: Sequence[Reservation], person: Person, actor: str) -> None:
        """Hold GPU time for all times of a booking; raise ``OverBudget`` if that is refused."""
        if sentence := self.ledger.hold(writes.ledger, booking, person, actor):
            raise OverBudget(sentence)

    def check_hold(self, writes: ReservationWrites, booking: Sequence[Reservation], person: Person, actor: str) -> None:
        """Raise ``OverBudget`` if a booking could not be held now: while pending, it blocks its GPUs for others."""
        with writes.ledger.trial():
            self.hold(writes, [each.replace(state=State.CONFIRMED) for each in booking], person, actor)

    def check_member(self, user: str, account: str) -> None:
        """Raise ``NotPossible`` if a user is no member of an account: the waitlist would never book it."""
        known = self.accounts(user)
        if known is not None and account not in known:
            raise NotPossible(
                f"{user} is not a member of {account[:60]}, and the waitlist books for members only. Book free GPUs."
            )

    def get_changeable(self, reads: ReservationReads, who: Booker, id: str) -> Reservation:
        """Return a reservation that the booker may change; raise ``NotYours`` otherwise."""
        found = self.get_visible(reads, who, id)
        if not may_change(who, found):
            raise NotYours(f"“{found.title}” was booked by {found.owner}. Only they and administrators may change it.")
        return found

    def get_visible(self, reads: ReservationReads, who: Booker, id: str) -> Reservation:
        """Return a reservation that the booker may see in full; raise ``Unknown`` otherwise."""
        found = reads.get(id)
        if found is None or not may_see(who, found):
            raise Unknown("There is no such booking.")
        return found


def may_see(who: Booker, reservation: Reservation) -> bool:
    """Return whether the booker may see title and people: it is theirs or for them, or their account is charged.

    Drafts and pending reservations are visible to their owner only.
    """
    if who.admin or reservation.kind is Kind.MAINTENANCE or reservation.owner == who.user:
        return True
    if reservation.state in _UNCERTAIN:
        return False
    if reservation.account in who.accounts:
        return True
    return reservation.concerns(who.user, who.accounts, who.person.groups)


def may_change(who: Booker, reservation: Reservation) -> bool:
    """Return whether the booker may change it: their own bookings, and administrators all."""
    return who.admin or (reservation.owner == who.user and reservation.kind is Kind.BOOKING)


def share_of(rules: Rules) -> int:
    """Return the percent of each type that may be booked at one time."""
    return 100 if rules.rule.share is None else rules.rule.share


def has_begun(reservation: Reservation, now: float) -> bool:
    """Return whether jobs may run in it now, also if the reconciler has not set it active yet."""
    started = reservation.state is State.CONFIRMED and reservation.period.start <= now
    return started or reservation.state is State.ACTIVE


def booking_of(reservation: Reservation) -> str:
    """Return the id of its booking: the same for all times of a recurring one."""
    return reservation.series or reservation.id


def time_taken(reservation: Reservation) -> Period | None:
    """Return its period, up to its release if it was released; None if nothing is left of it."""
    if reservation.state is not State.RELEASED:
        return reservation.period
    start, end = reservation.period.start, min(int(reservation.ended), reservation.period.end)
    return Period(start, end) if start < end else None


def _booked_by(reads: ReservationReads, owner: str, since: float) -> list[ExistingBooking]:
    """Return the bookings that count in the rules on an owner: those that hold, held or wait for GPUs."""
    found = []
    for each in reads.of_owner(owner, since):
        counts = each.state in _COUNTING or each.waits
        if counts and each.kind is Kind.BOOKING and (period := time_taken(each)):
            found.append(ExistingBooking(booking_of(each), period))
    return found


_UNCERTAIN = frozenset({State.DRAFT, State.PENDING})
_COUNTING = HOLDING | {State.ENDED, State.RELEASED}
