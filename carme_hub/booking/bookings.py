"""The calendar as pages, REST, command line and reconciler call it: each method is one use case in one transaction.

Refusals are ``Refused`` and are shown to users as they are. Their reasons: slot-taken (``SlotTaken``, with
``conflicts``), no-such-gpus, profile-not-allowed (its sessions could not start there), not-allowed, too-far,
over-budget, not-possible, changed-meanwhile, bad-booking and bad-recurrence (the input is not valid), key-used, unknown
(there is none, or the booker may not see it), not-yours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ParamSpec, TypeVar

from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.recurrence import Recurrence
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.quotas.rules import Person
from carme_hub.store.threads import in_store_thread

from . import cancellation, changes, creation, maintenance, visibility, waitlist
from .calendar import BookingRequest, Calendar
from .context import Booker, BookingContext, BookingLedger, NoLedger, Unknown
from .creation import BookingPreview
from .occurrences import SeriesScope
from .rules import Rules
from .visibility import SHOWN, ReservationView, SupplySummary, TypeSummary

__all__ = [
    "Booker",
    "BookingLedger",
    "BookingPreview",
    "Bookings",
    "NoLedger",
    "ReservationView",
    "SeriesScope",
    "SupplySummary",
    "TypeSummary",
    "Unknown",
]

P = ParamSpec("P")
T = TypeVar("T")


def _nobody_told() -> None:
    """Do nothing when the calendar has changed."""


def _nobody_knows(user: str) -> None:
    """Return None: no accounts are known."""


class Bookings:
    """Bookings of GPUs of one cluster. Every method may raise ``StoreError``; then nothing was written.

    Args:
        rules: returns the rules of the policy for a person and an account now.
        ledger: holds GPU time for bookings.
        people: returns groups and roles of a user who does not ask themselves (waitlist, approval, bookings that an
            administrator makes for them).
        accounts: returns the accounts that a user may charge, for the waitlist; None if they are not known now.
        on_change: is called after each write: the reconciler's ``trigger``.
    """

    def __init__(
        self,
        calendar: Calendar,
        *,
        rules: Callable[[Person, str], Rules],
        ledger: BookingLedger,
        people: Callable[[str], Person] = Person,
        accounts: Callable[[str], Collection[str] | None] = _nobody_knows,
        on_change: Callable[[], None] = _nobody_told,
    ) -> None:
        self._context = BookingContext(calendar, rules, ledger, people, accounts)
        self._on_change = on_change

    # -- booking ----------------------------------------------------------------------------------------------------

    async def book(
        self,
        who: Booker,
        request: BookingRequest,
        recurrence: Recurrence | None = None,
        *,
        key: str = "",
        wait: bool = False,
    ) -> tuple[Reservation, ...]:
        """Book all times of a request, or none: confirmed, or pending if somebody has to approve it.

        Args:
            recurrence: replaces the request's own times and zone.
            key: idempotency key; the same key of the same user returns the same booking, and nothing is written.
            wait: if the GPUs are taken, put it on the waitlist (a DRAFT with ``waits``) instead of refusing it; only
                for a booking with one time.
        """
        return await self._write(creation.book, who, request, recurrence, key, wait)

    async def check(
        self, who: Booker, request: BookingRequest, recurrence: Recurrence | None = None, *, instead_of: str = ""
    ) -> BookingPreview:
        """Return what a booking would result in; write nothing. A refusal is returned, not raised.

        Args:
            instead_of: id of the reservation that would be moved; its own places count as free.
        """
        return await in_store_thread(creation.check, self._context, who, request, recurrence, instead_of)

    async def move(
        self,
        who: Booker,
        id: str,
        version: int,
        *,
        period: Period | None = None,
        need: Need | None = None,
        title: str | None = None,
        series: SeriesScope = "one",
    ) -> tuple[Reservation, ...]:
        """Change time, size or title of a reservation; return all that were changed.

        An active reservation keeps its start and its places: only its end moves. If a move needs an approval, the
        reservation is pending again, and GPU time is held for its new time and size.

        Args:
            version: the version that the caller has seen; ``ConcurrentChange`` if it is another now.
            period: of this reservation; others of its series are shifted by as much on the wall clock of their zone.
            series: "one", it and all "later" ones, or "all" of them that are not over.
        """
        return await self._write(changes.move, who, id, version, changes.Change(period, need, title), series)

    async def cancel(
        self, who: Booker, id: str, *, reason: str = "", series: SeriesScope = "one"
    ) -> tuple[Reservation, ...]:
        """Cancel reservations that have not begun, and release those that have; return all that were changed.

        A cancelled maintenance clears the problems of the bookings on its nodes.
        """
        return await self._write(cancellation.cancel, who, id, reason, series)

    async def release(self, who: Booker, id: str, *, reason: str = "") -> Reservation:
        """Release an active reservation before its end; others can book the rest of its time."""
        return await self._write(cancellation.release, who, id, reason)

    async def decide(self, who: Booker, id: str, approve: bool, reason: str = "") -> tuple[Reservation, ...]:
        """Approve or deny all pending times of a booking, as an administrator."""
        return await self._write(cancellation.decide, who, id, approve, reason)

    # -- administrators and the reconciler --------------------------------------------------------------------------

    async def maintain(
        self, who: Booker, nodes: Collection[str], period: Period, title: str, *, key: str = ""
    ) -> tuple[Reservation, tuple[Reservation, ...]]:
        """Reserve whole nodes for maintenance, also if they are booked; return it and the bookings that it changed.

        Those have other places now, or a ``problem``.

        Args:
            key: idempotency key; the same key of the same user returns the same maintenance, and nothing is written.
        """
        return await self._write(maintenance.maintain, who, nodes, period, title, key)

    async def promote(self, now: float | None = None) -> tuple[Reservation, ...]:
        """Book drafts of the waitlist that fit now, oldest first, and cancel those whose start has passed.

        The reconciler calls it in each pass; it only reads if nothing fits. Return what was changed.
        """
        return await self._write(waitlist.promote, now)

    # -- reading ----------------------------------------------------------------------------------------------------

    async def get(self, who: Booker, id: str) -> Reservation:
        """Return a reservation that the booker may see in full; raise ``Unknown`` otherwise."""
        return await in_store_thread(visibility.get, self._context, who, id)

    async def mine(self, who: Booker, since: float) -> tuple[Reservation, ...]:
        """Return the booker's reservations that end after ``since``: by them, or for them, their group or account."""
        return await in_store_thread(visibility.mine, self._context, who, since)

    async def between(
        self, who: Booker, period: Period, states: Collection[State] = SHOWN
    ) -> tuple[ReservationView, ...]:
        """Return the reservations within a period, by start, each with what the booker may see of it."""
        return await in_store_thread(visibility.between, self._context, who, period, states)

    async def pending(self, who: Booker) -> tuple[Reservation, ...]:
        """Return pending reservations: all for an administrator, their own for others."""
        return await in_store_thread(visibility.pending, self._context, who)

    async def free(self, period: Period, types: Sequence[str] = ()) -> Mapping[str, tuple[tuple[Period, int], ...]]:
        """Return how many GPUs of each type (() = all) are free in each consecutive part of a period."""
        return await in_store_thread(visibility.free, self._context, period, types)

    async def supply(self) -> SupplySummary:
        """Return the GPUs that can be booked, and what this Slurm cannot reserve exactly."""
        return await in_store_thread(visibility.supply, self._context)

    def price(self, reservation: Reservation) -> int:
        """Return the price of a reservation in milli-GPU-seconds."""
        return self._context.ledger.price(reservation)

    async def _write(self, work: Callable[..., T], *args: object) -> T:
        done = await in_store_thread(work, self._context, *args)
        if done:  # promote() returns () if it changed nothing
            self._on_change()
        return done
