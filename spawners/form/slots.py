"""Bookings as sessions meet them: one look at the calendar for all pages, and what it means for one user's choice.

``Slots`` is one for each hub. It reads the calendar in a thread, at most every few seconds and only while somebody
asks; a page waits little for it, and a database that does not answer leaves what was known, with a note that says so.
``Bookings`` is that look for one user: which bookings they may start in now, which request goes into one by itself,
and which would run into somebody's.
"""

from __future__ import annotations

import asyncio
import logging
import operator
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from carme_hub.domain.calendar import slots
from carme_hub.domain.calendar.conflicts import ReservationConflict, Timetable
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import PROMISED, Kind, Reservation
from carme_hub.domain.calendar.slurm_reservations import PREFIX, SlurmReservation
from carme_hub.domain.cluster.jobs import Job
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.profile_choice import Problem
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import Refused, StoreError
from carme_hub.spawners.form.durations import clock, clock_there, duration
from carme_hub.spawners.form.other_reservations import OtherReservations
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationReads, ReservationStore
from carme_hub.store.threads import in_store_thread

#: What the option ``reservation`` says for a booking, followed by its id, and for staying out of all of them.
BOOKING = "booking:"
OUTSIDE = "booking:none"
#: Seconds ahead for which bookings are looked at: no session is longer than the longest time limit on the form. As long
#: after its end a booking is still known to be one of ours.
AHEAD = 14 * 86_400
_OURS = re.compile(re.escape(PREFIX) + r"[0-9a-f]{16}-[0-9]+")


class SlotOver(Refused):
    """The booking that a session was to start in is not there any more."""

    reason = "slot-over"


@dataclass(frozen=True, slots=True)
class CalendarView:
    """What is known of the calendar.

    Attributes:
        silent_since: since when it has not been read, epoch seconds, 0 = it is.
        by_hand: what Slurm reserves beside its bookings.
    """

    known: tuple[Reservation, ...] = ()
    silent_since: float = 0.0
    was_read: bool = False
    by_hand: tuple[SlurmReservation, ...] = ()


class Slots:
    """The hub's look at the calendar.

    Args:
        fresh: seconds for which a look is used again. patience: seconds that a page waits for a new one.
        licenses: the licence of Slurm by which each GPU type is kept, {} = by nodes.
        in_slurm: all reservations of Slurm; without it those made by hand are not known.
    """

    def __init__(
        self,
        engine: Any,
        cluster: str,
        *,
        clock: Callable[[], float] = time.time,
        fresh: float = 5.0,
        patience: float = 1.0,
        licenses: Mapping[str, str] = MappingProxyType({}),
        in_slurm: Callable[[], Awaitable[Sequence[SlurmReservation]]] | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        self._store = ReservationStore(LedgerStore(engine), licenses=licenses)
        self._cluster = cluster
        self._clock = clock
        self._fresh = fresh
        self._patience = patience
        self._log = log or logging.getLogger(__name__)
        self._by_hand = in_slurm and OtherReservations(
            in_slurm, self._stems, clock=clock, patience=patience, log=self._log
        )
        self._asked = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._made: tuple[float, tuple[CalendarView, Cluster], Timetable] | None = None
        #: What is known, without asking.
        self.latest = CalendarView()

    async def refresh(self) -> CalendarView:
        """Return the calendar as it was a few seconds ago, or longer ago and marked silent."""
        if self._reading is None and not 0 <= self._clock() - self._asked < self._fresh:
            self._asked = self._clock()
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="carme-slots")
        if self._reading is not None:
            patience = min(self._patience, 0.1) if self.latest.silent_since else self._patience
            await asyncio.wait([self._reading], timeout=patience)
            if self._reading is not None and not self.latest.silent_since:
                self.latest = replace(self.latest, silent_since=self._asked)
        if self._by_hand is not None:
            by_hand = await self._by_hand.refresh()
            if by_hand is not self.latest.by_hand:
                self.latest = replace(self.latest, by_hand=by_hand)
        return self.latest

    async def for_user(
        self, user: str, groups: Collection[str], accounts: Sequence[str] | None, cluster: Cluster
    ) -> Bookings:
        """Return the calendar as it is for one user now.

        Args:
            accounts: the user's, None while that is not known.
        """
        look = await self.refresh()
        timetable = self._timetable(look, cluster)
        return Bookings(user, frozenset(groups), accounts, look, cluster, self._clock(), timetable)

    def _timetable(self, look: CalendarView, cluster: Cluster) -> Timetable:
        """Return what all pages of a few seconds share."""
        now, of = self._clock(), (look, cluster)
        if (
            self._made is None
            or not all(map(operator.is_, self._made[1], of))
            or not 0 <= now - self._made[0] < self._fresh
        ):
            self._made = (now, of, Timetable(cluster, look.known, now, look.by_hand))
        return self._made[2]

    def booking_named(self, names: str) -> Reservation | None:
        """Return the booking that a session's ``reservation`` names, None for none."""
        return slots.reservation_named(self.latest.known, names)

    def enter(self, request: Request, say: Callable[[int, str], None]) -> tuple[Request, str]:
        """Return a request that starts now, and the id of the booking that it starts in; as it is and "" for none.

        Raises:
            SlotOver: its booking is over, or was taken back.
        """
        if not _OURS.fullmatch(request.reservation.split(",")[0]):
            return request, ""
        found, now = self.booking_named(request.reservation), self._clock()
        minutes = slots.minutes_left(found, now) if found is not None else 0
        if found is None or not minutes:
            raise SlotOver("Your booking is over, or was taken back. Choose again.")
        request = replace(request, time_limit=min(request.time_limit, minutes))
        until = clock_there(found.period.end, now, found.zone)
        say(4, f"In your booking “{found.title}” until {until}; time limit: {duration(request.time_limit)}.")
        return request, found.id

    async def read(self, question: Callable[[ReservationReads], list[Reservation]]) -> list[Reservation]:
        """Ask the calendar as it is at this moment, however long it takes.

        Raises:
            StoreError: it cannot be read.
        """

        def ask() -> list[Reservation]:
            with self._store.reading(self._cluster) as reads:
                return question(reads)

        return await in_store_thread(ask)

    async def stop(self, patience: float = 3.0) -> None:
        """Wait a moment for what is being read; a database that is silent keeps no hub from ending."""
        if self._by_hand is not None:
            await self._by_hand.stop()
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=patience)

    async def _read(self) -> None:
        try:
            known = tuple(await in_store_thread(self._overlapping))
            self.latest = CalendarView(known, was_read=True, by_hand=self.latest.by_hand)
        except StoreError as error:
            if not self.latest.silent_since:
                self.latest = replace(self.latest, silent_since=self._asked)
            self._log.warning("The calendar cannot be read, and is tried again: %s", error)
        except Exception:  # noqa: BLE001
            # Whatever it was, what is known is old from now on, and that is said.
            self.latest = replace(self.latest, silent_since=self.latest.silent_since or self._asked)
            self._log.exception("The calendar cannot be read, and is tried again")
        finally:
            self._reading = None

    async def _stems(self) -> Collection[str]:
        """Return what the names in Slurm of all bookings begin with, also of those that are over."""

        def stems() -> list[str]:
            with self._store.reading(self._cluster) as reads:
                return reads.stems(self._clock() - AHEAD)

        return set(await in_store_thread(stems))

    def _overlapping(self) -> list[Reservation]:
        now = int(self._clock())
        with self._store.reading(self._cluster) as reads:
            return reads.overlapping(Period(now, now + AHEAD), PROMISED)


@dataclass(frozen=True, slots=True)
class Bookings:
    """The calendar for one user at one moment.

    Attributes:
        accounts: the user's, None while that is not known.
        timetable: what runs and is promised, shared with others; None = made when it is asked for.
    """

    user: str
    groups: frozenset[str] = frozenset()
    accounts: Sequence[str] | None = None
    calendar: CalendarView = field(default_factory=CalendarView)
    cluster: Cluster = field(default_factory=Cluster)
    now: float = 0.0
    timetable: Timetable | None = None

    @property
    def mine(self) -> tuple[Reservation, ...]:
        """Return those that this user may start in now."""
        return slots.usable_now(self.calendar.known, self.user, self.groups, self.accounts or (), self.now)

    @property
    def upcoming(self) -> tuple[Reservation, ...]:
        """Return those of this user that begin within a day."""
        return slots.upcoming(self.calendar.known, self.user, self.groups, self.accounts or (), self.now)

    def note(self) -> str:
        """Return what has to be said while the calendar is not read; "" while it is."""
        if not self.calendar.silent_since:
            return ""
        since = clock(self.calendar.silent_since, self.now)
        known = (
            "what is said of them is as it was then" if self.calendar.was_read else "which ones there are is not known"
        )
        return f"Bookings cannot be read since {since}; {known}."

    # -- the choice ---------------------------------------------------------------------------------------------------

    def place(self, request: Request, asked: str) -> tuple[Request | None, tuple[Problem, ...]]:
        """Return the request in the booking that was asked for, or that it fits by itself; else as it is.

        Args:
            asked: the option ``reservation`` where that is one of ours; "" = whichever fits.
        """
        if asked in ("", OUTSIDE):
            fits = self.matching_booking(request) if not asked and not request.reservation else None
            return (self._placed(request, fits) if fits else request), ()
        found = next((each for each in self.mine if BOOKING + each.id == asked), None)
        if found is None:
            message = self.note() or "That booking is not yours, or its time is not now. Choose again."
            return None, (Problem("reservation", message),)
        if request.reservation:
            message = f"The profile {request.profile} starts in {request.reservation} alone."
            return None, (Problem("reservation", message),)
        if why := self._mismatch(found, request):
            return None, (Problem("reservation", f"“{found.title}” {why}. Choose what fits, or start outside it."),)
        return self._placed(request, found), ()

    def matching_booking(self, request: Request) -> Reservation | None:
        """Return the booking that a request goes into by itself: it fits, a seat is free, and it is kept."""
        kept = (each for each in self.mine if request.gpus and not each.problem)
        fits = (each for each in kept if not self._mismatch(each, request))
        return next((each for each in fits if self.has_room(each, request.gpus.count)), None)

    def has_room(self, reservation: Reservation, gpus: int) -> bool:
        """Return whether a seat of so many GPUs is free in a booking."""
        return slots.has_room(reservation, gpus, self.cluster.booked)

    def inside(self, request: Request) -> Reservation | None:
        """Return the booking that a placed request is in."""
        return slots.reservation_named(self.calendar.known, request.reservation)

    def _placed(self, request: Request, reservation: Reservation) -> Request:
        return slots.placed_in(request, reservation, self.cluster.booked, self.now)

    def _mismatch(self, reservation: Reservation, request: Request) -> str:
        why = slots.mismatch(reservation, request)
        if why:
            return why
        if self.accounts is not None and reservation.account not in self.accounts:
            return f"is charged to the account {reservation.account}, which you do not have"
        nodes = {node.name for node in self.cluster.partition_nodes(request.partition).nodes}
        apart = not reservation.license and nodes.isdisjoint(place.node for place in reservation.places)
        if self.cluster.known and apart:
            return f"is on nodes that are not in the partition {request.partition}"
        return ""

    # -- the outlook --------------------------------------------------------------------------------------------------

    def reason_outside(self, request: Request) -> str:
        """Return why a request that is not in a booking could not go there, where the user has one for these GPUs."""
        if request.reservation or not request.gpus:
            return ""
        for each in self.mine:
            if each.need.type == request.gpus.type and (why := self._mismatch(each, request)):
                return f"Outside your booking “{each.title}”, which {why}"
        return ""

    def conflict(self, request: Request) -> ReservationConflict | None:
        """Return what a session that starts now would run into; None for nothing, and in a reservation."""
        if request.reservation or not self.cluster.known:
            return None
        return self._times().conflict(request)

    def _times(self) -> Timetable:
        return self.timetable or Timetable(self.cluster, self.calendar.known, self.now, self.calendar.by_hand)

    def extension_refusal(self, job: Job, request: Request, total: int) -> str:
        """Return why a running session cannot have so many minutes in all, and what it can have; "" where it can."""
        now_ends, ends = job.start + 60 * job.time_limit, job.start + 60 * total
        if _OURS.fullmatch(request.reservation.split(",")[0]):
            inside = self.inside(request)
            if inside is None:
                return "The booking that it runs in is over."
            if ends <= inside.period.end:
                return ""
            most = int(inside.period.end - now_ends) // 60
            return f"It runs in “{inside.title}”, which ends at {self.until(inside)}; {_more(most)}."
        found = self._times().longer(job, ends)
        if found is None:
            return ""
        title = self.title(found)
        what = "there is maintenance" if found.kind is Kind.MAINTENANCE else "its GPUs are booked"
        most = int(found.period.start - now_ends) // 60
        return f"From {clock(found.period.start, self.now)} {what}{f' ({title})' if title else ''}; {_more(most)}."

    def title(self, reservation: Reservation) -> str:
        """Return the title of a reservation where this user may know it, "" where not."""
        accounts = self.accounts or ()
        known = reservation.kind is Kind.MAINTENANCE or reservation.account in accounts
        return reservation.title if known or reservation.concerns(self.user, accounts, self.groups) else ""

    def until(self, reservation: Reservation) -> str:
        """Return when it ends, in its own zone."""
        return clock_there(reservation.period.end, self.now, reservation.zone)


def _more(minutes: int) -> str:
    return f"it can have {duration(minutes)} more" if minutes > 0 else "it can have no more"


def split_booking(options: Mapping[str, object]) -> tuple[Mapping[str, object], str]:
    """Return user options without what they say of our bookings, and that."""
    asked = options.get("reservation", "")
    if not isinstance(asked, str) or not asked.startswith(BOOKING):
        return options, ""
    return {key: value for key, value in options.items() if key != "reservation"}, asked
