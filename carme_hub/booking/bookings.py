"""The door to booking for pages, REST, command line and keeper: each method is one use case in one transaction.

Refusals are ``Refused`` and are shown as they are. Their reasons: slot-taken (``SlotTaken``, with ``conflicts``),
no-such-gpus, profile-not-allowed (its sessions could not start there), not-allowed, too-far, over-budget, not-possible,
changed-meanwhile, bad-booking and bad-recurrence (what was written makes no sense), key-used, unknown (there is none,
or none that they may know of), not-yours.
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
from .context import Booker, BookingContext, NoLedger, BookingLedger, NotAllowed, NotYours, OverBudget, TooFar, Unknown
from .creation import BookingPreview, PreviewedTime
from .occurrences import SeriesScope
from .rules import Rules
from .visibility import SHOWN, SupplySummary, NodeSummary, TypeSummary, ReservationView

__all__ = [
    "SHOWN",
    "Booker",
    "BookingPreview",
    "Bookings",
    "SupplySummary",
    "NoLedger",
    "BookingLedger",
    "NodeSummary",
    "NotAllowed",
    "NotYours",
    "OverBudget",
    "PreviewedTime",
    "TooFar",
    "TypeSummary",
    "Unknown",
    "ReservationView",
    "SeriesScope",
]

P = ParamSpec("P")
T = TypeVar("T")


def _nobody_told() -> None:
    """Tell nobody that the calendar has changed."""


def _nobody_knows(user: str) -> None:
    """Know no accounts of anybody."""


class Bookings:
    """Where GPUs of one cluster are booked. Every method may raise ``StoreError``; then nothing was written.

    Args:
        rules: what the policy lets a person book with an account now.
        people: groups and roles of a user who does not ask themselves (what waits, what is approved, what an
            administrator books for them).
        accounts: that a user may charge, for what waits to be booked by itself; None where nobody knows now.
        on_change: is called after each write: the keeper's ``look_now``.
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
        """Book all times of a wish, or none: confirmed, or pending where somebody has to approve it.

        Args:
            recurrence: when it is to be, instead of the wish's own times and zone.
            key: sent again by the same user, it is the same booking again, and nothing is written.
            wait: where it is taken, put it on the waitlist (a DRAFT with ``waits``) instead of refusing it; for what
                comes once only.
        """
        return await self._write(creation.book, who, request, recurrence, key, wait)

    async def check(
        self, who: Booker, request: BookingRequest, recurrence: Recurrence | None = None, *, instead_of: str = ""
    ) -> BookingPreview:
        """Say what would come of booking it; nothing is written, and what is refused is said, not raised.

        Args:
            instead_of: id of the reservation that would be moved there; it is not in its own way.
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
        """Change when, how much or what it is called; return all that were changed.

        What is active keeps its start and its places: only its end moves. The owner's move of what has to be approved
        is pending again, and its GPU time is held for it as it is to be.

        Args:
            version: that was looked at; ``Changed`` where it is another now.
            period: of the one named; others of its series are shifted as far on the wall clock of their zone.
            series: "one", it and all "later" ones, or "all" of them that are not over.
        """
        return await self._write(changes.move, who, id, version, changes.Change(period, need, title), series)

    async def cancel(self, who: Booker, id: str, *, reason: str = "", series: SeriesScope = "one") -> tuple[Reservation, ...]:
        """Take back what has not begun, and give back what has; return all that were changed.

        A maintenance that is cancelled is no problem to anybody any more.
        """
        return await self._write(cancellation.cancel, who, id, reason, series)

    async def release(self, who: Booker, id: str, *, reason: str = "") -> Reservation:
        """Give an active one back before its end; what is left of it opens to others."""
        return await self._write(cancellation.release, who, id, reason)

    async def decide(self, who: Booker, id: str, approve: bool, reason: str = "") -> tuple[Reservation, ...]:
        """Approve or deny all pending times of a booking, as an administrator."""
        return await self._write(cancellation.decide, who, id, approve, reason)

    # -- administrators and the keeper ------------------------------------------------------------------------------

    async def maintain(
        self, who: Booker, nodes: Collection[str], period: Period, title: str, *, key: str = ""
    ) -> tuple[Reservation, tuple[Reservation, ...]]:
        """Reserve whole nodes for maintenance, also where they are booked; return it and the bookings it changed.

        Those have other places now, or a ``problem``.

        Args:
            key: sent again by the same user, it is the same maintenance again, and nothing is written.
        """
        return await self._write(maintenance.maintain, who, nodes, period, title, key)

    async def promote(self, now: float | None = None) -> tuple[Reservation, ...]:
        """Book what waits and fits now, the oldest first, and drop what waited too long; return what was changed.

        For the keeper, at each turn; it reads only, where nothing fits.
        """
        return await self._write(waitlist.promote, now)

    # -- seeing -----------------------------------------------------------------------------------------------------

    async def get(self, who: Booker, id: str) -> Reservation:
        """Return a reservation that they may see whole; ``Unknown`` for others."""
        return await in_store_thread(visibility.get, self._context, who, id)

    async def mine(self, who: Booker, since: float) -> tuple[Reservation, ...]:
        """Return what ends after a time and is theirs: booked by them, or for them, their group or account."""
        return await in_store_thread(visibility.mine, self._context, who, since)

    async def between(self, who: Booker, period: Period, states: Collection[State] = SHOWN) -> tuple[ReservationView, ...]:
        """Return what is booked within a period, by start; of what is none of their business, only that it is."""
        return await in_store_thread(visibility.between, self._context, who, period, states)

    async def pending(self, who: Booker) -> tuple[Reservation, ...]:
        """Return what waits for an approval: all of it to an administrator, their own to others."""
        return await in_store_thread(visibility.pending, self._context, who)

    async def free(self, period: Period, types: Sequence[str] = ()) -> Mapping[str, tuple[tuple[Period, int], ...]]:
        """Return how many GPUs of each type (() = all) are free within a period, in parts one after the other."""
        return await in_store_thread(visibility.free, self._context, period, types)

    async def supply(self) -> SupplySummary:
        """Return what can be booked here at all, and what this Slurm cannot keep exactly."""
        return await in_store_thread(visibility.supply, self._context)

    def price(self, reservation: Reservation) -> int:
        """Return the milli-GPU-seconds of a reservation."""
        return self._context.ledger.price(reservation)

    async def _write(self, work: Callable[..., T], *args: object) -> T:
        done = await in_store_thread(work, self._context, *args)
        if done:  # nothing to promote is no change
            self._on_change()
        return done
