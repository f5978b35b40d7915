"""Bookings for sessions: a cache of the calendar for all pages, and its meaning for one user's choice.

There is one ``Slots`` for each hub. It reads the calendar in a thread, at most every few seconds and only for pages and
starts; a page waits a short time, and while the database does not answer, the last known bookings stay, with a note.
``Bookings`` is the calendar for one user: in which bookings they may start now, which booking matches a request, and
which request would conflict with another booking.
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
from carme_hub.domain.calendar.conflicts import ReservationConflict, ReservationTimetable
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import PROMISED, Kind, Reservation
from carme_hub.domain.calendar.slurm_reservations import PREFIX, SlurmReservation
from carme_hub.domain.cluster.jobs import Job
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.profile import Profile
from carme_hub.domain.sessions.profile_choice import Problem
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import Refused, StoreError
from carme_hub.spawners.form.durations import clock, clock_in_zone, duration
from carme_hub.spawners.form.other_reservations import OtherReservations
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationReads, ReservationStore
from carme_hub.store.threads import in_store_thread

#: Values of the option ``reservation``: for a booking, followed by its id, and for a start outside of all bookings.
BOOKING = "booking:"
OUTSIDE = "booking:none"
#: Seconds ahead for which bookings are read: no session is longer than the longest time limit on the form. For the same
#: time after its end a booking's reservation in Slurm is still recognized.
AHEAD = 14 * 86_400
_OURS = re.compile(re.escape(PREFIX) + r"[0-9a-f]{16}-[0-9]+")


class SlotOver(Refused):
    """The booking in which a session should start does not exist any more."""

    reason = "slot-over"


@dataclass(frozen=True, slots=True)
class CalendarView:
    """The last known state of the calendar.

    Attributes:
        silent_since: since when it could not be read, epoch seconds, 0 = it can be read. was_read: it was read once.
        by_hand: Slurm's reservations that are not bookings.
    """

    known: tuple[Reservation, ...] = ()
    silent_since: float = 0.0
    was_read: bool = False
    by_hand: tuple[SlurmReservation, ...] = ()


class Slots:
    """The hub's cache of the calendar.

    Args:
        fresh: seconds for which an answer is reused. max_wait: seconds that a page waits for a new one.
        licenses: the Slurm license by which each GPU type is counted, {} = by nodes.
        in_slurm: returns all reservations of Slurm; without it those made by hand are not known.
    """

    def __init__(
        self,
        engine: Any,
        cluster: str,
        *,
        clock: Callable[[], float] = time.time,
        fresh: float = 5.0,
        max_wait: float = 1.0,
        licenses: Mapping[str, str] = MappingProxyType({}),
        in_slurm: Callable[[], Awaitable[Sequence[SlurmReservation]]] | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        self._store = ReservationStore(LedgerStore(engine), licenses=licenses)
        self._cluster = cluster
        self._clock = clock
        self._fresh = fresh
        self._max_wait = max_wait
        self._log = log or logging.getLogger(__name__)
        self._by_hand = in_slurm and OtherReservations(
            in_slurm, self._stems, clock=clock, max_wait=max_wait, log=self._log
        )
        self._asked = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._made: tuple[float, tuple[CalendarView, Cluster], ReservationTimetable] | None = None
        #: The last known state, without a query.
        self.latest = CalendarView()

    async def refresh(self) -> CalendarView:
        """Return the calendar of at most ``fresh`` seconds ago, or an older state that is marked as such."""
        if self._reading is None and not 0 <= self._clock() - self._asked < self._fresh:
            self._asked = self._clock()
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="carme-slots")
        if self._reading is not None:
            max_wait = min(self._max_wait, 0.1) if self.latest.silent_since else self._max_wait
            await asyncio.wait([self._reading], timeout=max_wait)
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
        """Return the calendar for one user.

        Args:
            accounts: the user's accounts, None while they are unknown.
        """
        view = await self.refresh()
        timetable = self._timetable(view, cluster)
        return Bookings(user, frozenset(groups), accounts, view, cluster, self._clock(), timetable)

    def _timetable(self, view: CalendarView, cluster: Cluster) -> ReservationTimetable:
        """Return the timetable that all pages within ``fresh`` seconds share."""
        now, of = self._clock(), (view, cluster)
        if (
            self._made is None
            or not all(map(operator.is_, self._made[1], of))
            or not 0 <= now - self._made[0] < self._fresh
        ):
            self._made = (now, of, ReservationTimetable(cluster, view.known, now, view.by_hand))
        return self._made[2]

    def booking_named(self, names: str) -> Reservation | None:
        """Return the booking whose Slurm reservation a session names, None for none."""
        return slots.reservation_named(self.latest.known, names)

    def enter(self, request: Request, say: Callable[[int, str], None]) -> tuple[Request, str]:
        """Return the request with the time limit of its booking, and the booking's id; unchanged and "" for none.

        Raises:
            SlotOver: its booking is over, or was cancelled.
        """
        if not _OURS.fullmatch(request.reservation.split(",")[0]):
            return request, ""
        found, now = self.booking_named(request.reservation), self._clock()
        minutes = slots.minutes_left(found, now) if found is not None else 0
        if found is None or not minutes:
            raise SlotOver("Your booking is over, or was cancelled. Choose again.")
        request = replace(request, time_limit=min(request.time_limit, minutes))
        until = clock_in_zone(found.period.end, now, found.zone)
        say(4, f"In your booking “{found.title}” until {until}; time limit: {duration(request.time_limit)}.")
        return request, found.id

    async def read(self, question: Callable[[ReservationReads], list[Reservation]]) -> list[Reservation]:
        """Query the calendar in the database, without the cache.

        Raises:
            StoreError: it cannot be read.
        """

        def ask() -> list[Reservation]:
            with self._store.reading(self._cluster) as reads:
                return question(reads)

        return await in_store_thread(ask)

    async def stop(self, max_wait: float = 3.0) -> None:
        """Wait a moment for a running query; a database that does not answer does not block the hub's end."""
        if self._by_hand is not None:
            await self._by_hand.stop()
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=max_wait)

    async def _read(self) -> None:
        try:
            known = tuple(await in_store_thread(self._overlapping))
            self.latest = CalendarView(known, was_read=True, by_hand=self.latest.by_hand)
        except StoreError as error:
            if not self.latest.silent_since:
                self.latest = replace(self.latest, silent_since=self._asked)
            self._log.warning("The calendar cannot be read; the hub tries again: %s", error)
        except Exception:  # noqa: BLE001
            # After any error the last known state is marked as old.
            self.latest = replace(self.latest, silent_since=self.latest.silent_since or self._asked)
            self._log.exception("The calendar cannot be read; the hub tries again")
        finally:
            self._reading = None

    async def _stems(self) -> Collection[str]:
        """Return the prefixes of the names in Slurm of all bookings, including past ones."""

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
        accounts: the user's accounts, None while they are unknown.
        timetable: running jobs and bookings, shared with other users' pages; None = made when needed.
    """

    user: str
    groups: frozenset[str] = frozenset()
    accounts: Sequence[str] | None = None
    calendar: CalendarView = field(default_factory=CalendarView)
    cluster: Cluster = field(default_factory=Cluster)
    now: float = 0.0
    timetable: ReservationTimetable | None = None

    @property
    def mine(self) -> tuple[Reservation, ...]:
        """The bookings in which this user may start now."""
        return slots.usable_now(self.calendar.known, self.user, self.groups, self.accounts or (), self.now)

    @property
    def upcoming(self) -> tuple[Reservation, ...]:
        """The bookings of this user that begin within a day."""
        return slots.upcoming(self.calendar.known, self.user, self.groups, self.accounts or (), self.now)

    def note(self) -> str:
        """Return a sentence if the calendar cannot be read; "" if it can."""
        if not self.calendar.silent_since:
            return ""
        since = clock(self.calendar.silent_since, self.now)
        known = "this page shows their state of then" if self.calendar.was_read else "they are not known"
        return f"Bookings cannot be read since {since}; {known}."

    # -- the choice ---------------------------------------------------------------------------------------------------

    def place(self, request: Request, asked: str) -> tuple[Request | None, tuple[Problem, ...]]:
        """Return the request in the booking that was chosen, or in one that matches; otherwise unchanged.

        Args:
            asked: the option ``reservation`` if it names a booking; "" = any booking that matches.
        """
        if asked in ("", OUTSIDE):
            fits = self.matching_booking(request) if not asked and not request.reservation else None
            return (self._placed(request, fits) if fits else request), ()
        found = next((each for each in self.mine if BOOKING + each.id == asked), None)
        if found is None:
            message = self.note() or "That booking is not yours, or it is not its time now. Choose again."
            return None, (Problem("reservation", message),)
        if request.reservation:
            message = f"The profile {request.profile} starts in {request.reservation} only."
            return None, (Problem("reservation", message),)
        if why := self._mismatch(found, request):
            return None, (Problem("reservation", f"“{found.title}” {why}. Choose what fits, or start outside it."),)
        return self._placed(request, found), ()

    def matching_booking(self, request: Request) -> Reservation | None:
        """Return the booking for a request without a chosen one: it matches, has free GPUs, and has no problem."""
        kept = (each for each in self.mine if request.gpus and not each.problem)
        fits = (each for each in kept if not self._mismatch(each, request))
        return next((each for each in fits if self.has_room(each, request.gpus.count)), None)

    def has_room(self, reservation: Reservation, gpus: int) -> bool:
        """Return whether a booking has so many free GPUs for one session."""
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
        booked = {place.node for place in reservation.places}
        if request.node and not reservation.license and request.node not in booked:
            return f"is on other nodes than {request.node}"
        apart = not reservation.license and nodes.isdisjoint(booked)
        if self.cluster.known and apart:
            return f"is on nodes that are not in the partition {request.partition}"
        return ""

    # -- conflicts ----------------------------------------------------------------------------------------------------

    def reason_outside(self, request: Request) -> str:
        """Return why a request is not in a booking although the user has one for these GPUs; "" otherwise."""
        if request.reservation or not request.gpus:
            return ""
        for each in self.mine:
            if each.need.type == request.gpus.type and (why := self._mismatch(each, request)):
                return f"Outside your booking “{each.title}”, which {why}"
        return ""

    def conflict(self, request: Request) -> ReservationConflict | None:
        """Return the conflict of a session that starts now with a booking; None for none, and in a reservation."""
        if request.reservation or not self.cluster.known:
            return None
        return self._times().conflict(request)

    def _times(self) -> ReservationTimetable:
        return self.timetable or ReservationTimetable(
            self.cluster, self.calendar.known, self.now, self.calendar.by_hand
        )

    def extension_refusal(self, job: Job, request: Request, total: int) -> str:
        """Return why a running session cannot have ``total`` minutes, and what it can have; "" if it can."""
        now_ends, ends = job.start + 60 * job.time_limit, job.start + 60 * total
        if _OURS.fullmatch(request.reservation.split(",")[0]):
            inside = self.inside(request)
            if inside is None:
                return "The booking that it runs in is over."
            if ends <= inside.period.end:
                return ""
            most = int(inside.period.end - now_ends) // 60
            return f"It runs in “{inside.title}”, which ends at {self.until(inside)}; {_more(most)}."
        found = self._times().extension_conflict(job, ends)
        if found is None:
            return ""
        title = self.title(found)
        what = "there is maintenance" if found.kind is Kind.MAINTENANCE else "its GPUs are booked"
        most = int(found.period.start - now_ends) // 60
        return f"From {clock(found.period.start, self.now)} {what}{f' ({title})' if title else ''}; {_more(most)}."

    def title(self, reservation: Reservation) -> str:
        """Return the title of a reservation if this user may know it, "" otherwise."""
        accounts = self.accounts or ()
        known = reservation.kind is Kind.MAINTENANCE or reservation.account in accounts
        return reservation.title if known or reservation.concerns(self.user, accounts, self.groups) else ""

    def until(self, reservation: Reservation) -> str:
        """Return the end of a reservation, in its own time zone."""
        return clock_in_zone(reservation.period.end, self.now, reservation.zone)


def _more(minutes: int) -> str:
    return f"it can have {duration(minutes)} more" if minutes > 0 else "it can have no more"


def split_booking(options: Mapping[str, object]) -> tuple[Mapping[str, object], str]:
    """Return user options without the choice of a booking, and that choice."""
    asked = options.get("reservation", "")
    if not isinstance(asked, str) or not asked.startswith(BOOKING):
        return options, ""
    return {key: value for key, value in options.items() if key != "reservation"}, asked


def reservation_choices(profile: Profile, more: Sequence[str], bookings: Bookings | None) -> list[tuple[str, str]]:
    """Return the choices of the form's control for reservations, as value and label.

    Args:
        more: reservations of Slurm that the user may use besides those of the profile.
        bookings: of the user; those of GPUs of this profile are choices. None without reservations.
    """
    if profile.reservation:
        return []
    reserved = [*profile.reservations, *(name for name in more if name not in profile.reservations)]
    types = profile.gpus.types if profile.gpus else ()
    booked = [each for each in bookings.mine if each.need.type in types] if bookings is not None else []
    if bookings is None or not booked:
        return [("", "none"), *((name, name) for name in reserved)]
    ours = ((BOOKING + each.id, f"“{each.title}” until {bookings.until(each)}") for each in booked)
    named = ((name, name) for name in reserved)
    return [("", "my booking, if it matches"), *ours, (OUTSIDE, "none: outside my booking"), *named]
