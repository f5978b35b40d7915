"""What every use case of booking leans on: who asks, by which rules, who is charged, and the words of a refusal.

A use case is a function that takes the office and what is asked. It opens one write transaction, looks at everything
in it and writes everything in it, so that no rule is kept by one door and not by another.
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

#: Who changes what changes by itself.
ACTOR = "carme-hub"


class NotAllowed(Refused):
    """A rule on booking does not allow it; the message names the rule."""

    reason = "not-allowed"


class TooFar(Refused):
    """It starts later than may be booked now."""

    reason = "too-far"


class BadBooking(Refused):
    """What is asked for cannot be understood or makes no sense; the message says what to write."""

    reason = "bad-booking"


class KeyUsed(Refused):
    """The idempotency key was used for another booking."""

    reason = "key-used"


class Unknown(Refused):
    """There is no such booking, or none that who asks may know of."""

    reason = "unknown"


class NotYours(Refused):
    """Only its owner or an administrator may do that."""

    reason = "not-yours"


class OverBudget(Refused):
    """The account's GPU time, or a rule on it, does not allow it; the message names it."""

    reason = "over-budget"


class BookingSettlement(Protocol):
    """What ends the money of a booking, in the transaction that writes the booking."""

    def release_hold(self, writes: LedgerWrites, reservation: Reservation, reason: str, actor: str) -> None:
        """Release all that is held for a booking that will not be. Nothing held is no error."""
        ...

    def settle(self, writes: LedgerWrites, reservation: Reservation, now: float) -> None:
        """Settle a booking that has ended or was given back in its time: charge what is to be, release the rest."""
        ...


class BookingLedger(BookingSettlement, Protocol):
    """Who keeps GPU time; all is written in the transaction that writes the booking. A refusal has written nothing."""

    def hold(self, writes: LedgerWrites, booking: Sequence[Reservation], person: Person, actor: str) -> str:
        """Hold what all times of a confirmed booking may use; return the sentence of a refusal, "" where it is held."""
        ...

    def change(self, writes: LedgerWrites, reservation: Reservation, person: Person, actor: str) -> str:
        """Hold for the booking as it is now, more or less than before; return the sentence of a refusal or "".

        One that is pending holds where it was confirmed before; one that never was holds nothing, and goes on so.
        """
        ...

    def price(self, reservation: Reservation) -> int:
        """Return the milli-GPU-seconds of the whole."""
        ...


class NoLedger:
    """The money of a hub that keeps no ledger."""

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
        """Return its GPU-seconds at the price of one: approval is asked by them all the same."""
        return reservation.gpu_seconds * 1000


@dataclass(frozen=True, slots=True)
class Booker:
    """Who asks.

    Attributes:
        accounts: that may be charged for them. admin: whether they may do it for others, and decide.
        actor: who is noted to have done it; "" = themselves.
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
        """Return who is noted."""
        return self.actor or self.person.user


@dataclass(frozen=True, slots=True)
class BookingContext:
    """What use cases work with; see ``Bookings``."""

    calendar: Calendar
    rules: Callable[[Person, str], Rules]
    ledger: BookingLedger
    people: Callable[[str], Person]
    accounts: Callable[[str], Collection[str] | None]

    @property
    def store(self) -> ReservationStore:
        """Return where reservations are kept."""
        return self.calendar.store

    def now(self) -> int:
        """Return epoch seconds."""
        return int(self.calendar.clock())

    def writing(self) -> AbstractContextManager[ReservationWrites]:
        """Have the calendar alone."""
        return self.store.transaction(self.calendar.cluster)

    def reading(self) -> AbstractContextManager[ReservationReads]:
        """Read one moment of it."""
        return self.store.reading(self.calendar.cluster)

    def person(self, who: Booker, owner: str) -> Person:
        """Return the owner with their groups and roles."""
        return who.person if owner == who.user else self.people(owner)

    def check_rules(
        self, reads: ReservationReads, rules: Rules, owner: str, periods: Iterable[Period], booking: str, now: int
    ) -> None:
        """Refuse periods that the rules do not let an owner book. ``booking``: the one that they belong to."""
        mine = _booked_by(reads, owner, now - (rules.rule.cooldown or 0))
        for period in periods:
            if sentence := refused(rules, period, booking=booking, mine=mine, now=now):
                ahead = rules.rule.ahead
                far = rules.may_book and ahead is not None and period.start - now > ahead
                raise (TooFar if far else NotAllowed)(sentence)

    def period_filter(
        self, reads: ReservationReads, rules: Rules, owner: str, booking: str, now: int
    ) -> Callable[[Period], bool]:
        """Return whether the rules let an owner book a period, for what is offered to them."""

        @cache
        def mine() -> list[ExistingBooking]:  # most bookings have no conflict, and are offered nothing
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
        """Return a whole new booking as it is to be written: confirmed and held for, or pending."""
        price = sum(self.ledger.price(each) for each in found)
        if not admin and needs_approval(rules.rule, price):
            self.check_hold(writes, found, person, actor)
            return tuple(each.replace(state=State.PENDING) for each in found)
        self.hold(writes, found, person, actor)
        return tuple(found)

    def hold(self, writes: ReservationWrites, booking: Sequence[Reservation], person: Person, actor: str) -> None:
        """Hold GPU time for all times of a booking, or refuse it."""
        if sentence := self.ledger.hold(writes.ledger, booking, person, actor):
            raise OverBudget(sentence)

    def check_hold(self, writes: ReservationWrites, booking: Sequence[Reservation], person: Person, actor: str) -> None:
        """Refuse what could not be held for if it were approved now: it keeps its GPUs from others meanwhile."""
        with writes.ledger.trial():
            self.hold(writes, [each.replace(state=State.CONFIRMED) for each in booking], person, actor)

    def check_member(self, user: str, account: str) -> None:
        """Refuse what is booked by itself later, and never would be: its owner is not in the account."""
        known = self.accounts(user)
        if known is not None and account not in known:
            raise NotPossible(
                f"{user} is no member of {account[:60]}, and what waits is booked for members alone. Take what is free."
            )

    def get_changeable(self, reads: ReservationReads, who: Booker, id: str) -> Reservation:
        """Return a reservation that they may change, or refuse it."""
        found = self.get_visible(reads, who, id)
        if not may_change(who, found):
            raise NotYours(f"“{found.title}” was booked by {found.owner}. Only they and administrators may change it.")
        return found

    def get_visible(self, reads: ReservationReads, who: Booker, id: str) -> Reservation:
        """Return a reservation that they may see whole, or say that there is none."""
        found = reads.get(id)
        if found is None or not may_see(who, found):
            raise Unknown("There is no such booking.")
        return found


def may_see(who: Booker, reservation: Reservation) -> bool:
    """Return whether they may see title and people: it is theirs or for them, or an account of theirs pays.

    What is not certain yet is its owner's alone.
    """
    if who.admin or reservation.kind is Kind.MAINTENANCE or reservation.owner == who.user:
        return True
    if reservation.state in _UNCERTAIN:
        return False
    if reservation.account in who.accounts:
        return True
    return reservation.concerns(who.user, who.accounts, who.person.groups)


def may_change(who: Booker, reservation: Reservation) -> bool:
    """Return whether they may change it: their own bookings, and administrators all."""
    return who.admin or (reservation.owner == who.user and reservation.kind is Kind.BOOKING)


def share_of(rules: Rules) -> int:
    """Return the percent of each type that may be booked at one moment."""
    return 100 if rules.rule.share is None else rules.rule.share


def has_begun(reservation: Reservation, now: float) -> bool:
    """Return whether jobs may run in it by now, also where nobody has noted yet that its time has come."""
    started = reservation.state is State.CONFIRMED and reservation.period.start <= now
    return started or reservation.state is State.ACTIVE


def booking_of(reservation: Reservation) -> str:
    """Return which booking it belongs to: the same for all times of one that comes again."""
    return reservation.series or reservation.id


def time_taken(reservation: Reservation) -> Period | None:
    """Return its period, only up to when it was given back; None where that left nothing of it."""
    if reservation.state is not State.RELEASED:
        return reservation.period
    start, end = reservation.period.start, min(int(reservation.ended), reservation.period.end)
    return Period(start, end) if start < end else None


def _booked_by(reads: ReservationReads, owner: str, since: float) -> list[ExistingBooking]:
    """Return what counts in the rules on an owner: what holds GPUs, has held them, or waits for them."""
    found = []
    for each in reads.of_owner(owner, since):
        counts = each.state in _COUNTING or each.waits
        if counts and each.kind is Kind.BOOKING and (period := time_taken(each)):
            found.append(ExistingBooking(booking_of(each), period))
    return found


_UNCERTAIN = frozenset({State.DRAFT, State.PENDING})
_COUNTING = HOLDING | {State.ENDED, State.RELEASED}
