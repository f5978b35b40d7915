"""The hub's home page: notices about GPU time and bookings, and alternatives for sessions before maintenance.

Bookings are read in a thread, like notices about GPU time: the page waits a moment for them, and is shown without them
if the database does not answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from jupyterhub.handlers.pages import HomeHandler
from tornado import web

from carme_hub.booking import messages
from carme_hub.booking.context import ACTOR
from carme_hub.domain.administration.scopes import ACCOUNTS_READ, READ
from carme_hub.domain.calendar import slots
from carme_hub.domain.calendar.reservations import PROMISED, Kind, Reservation, State
from carme_hub.spawners.handlers.home.budget import budget_for, coming
from carme_hub.spawners.handlers.home.disk import ShownDisk, disk_for
from carme_hub.spawners.handlers.home.kept import OnNodes, kept_for
from carme_hub.spawners.handlers.home.news import page_values, seen_cluster, session_news
from carme_hub.spawners.handlers.notices import Notice, NoticeLookup, notices_for, service_href, shown
from carme_hub.spawners.hub.shared import started_hub
from carme_hub.spawners.maintenance.affected_sessions import Alternatives, affected_sessions
from carme_hub.spawners.maintenance.alternatives import alternatives_for
from carme_hub.spawners.session_state import Companion, as_shown

#: The name under which ``configure`` adds the service of the calendar.
CALENDAR = "reservations"
#: Seconds for which the page shows that a booking was released.
NEWS_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class CalendarNews:
    """A user's notices about bookings, the bookings after those, and alternatives for sessions before maintenance."""

    notices: Sequence[Notice] = ()
    later: Sequence[tuple[str, str]] = ()
    alternatives: Sequence[Alternatives] = ()


class CalendarLookup(NoticeLookup[CalendarNews]):
    """Reads a user's notices about bookings and maintenance."""

    def __init__(self) -> None:
        super().__init__(CalendarNews(), "Bookings")

    def _question(self, user: Any, hub: Any) -> Callable[[], Awaitable[CalendarNews]] | None:
        if getattr(hub, "slots", None) is None:
            return None
        groups = [group.name for group in user.groups]
        accounts = hub.associations.accounts_of(user.name)

        async def ask() -> CalendarNews:
            now = time.time()
            calendar = await hub.slots.refresh()
            past = await hub.slots.read(lambda reads: reads.of_owner(user.name, now - NEWS_SECONDS))
            notices = [
                *of_problems(calendar.known, user.name, now),
                *of_released(past, now),
                *of_times(calendar.known, user.name, groups, accounts, now),
            ]
            mine = [each for each in hub.registry.open_sessions() if each.user == user.name and not each.parent]
            met = affected_sessions(mine, hub.watcher.latest, calendar.known, now)
            later = coming(calendar.known, user.name, groups, accounts, now)
            return CalendarNews(notices, later, [await alternatives_for(hub, user, each, now) for each in met])

        return ask


def of_problems(known: Sequence[Reservation], user: str, now: float) -> Iterator[Notice]:
    """Yield notices of a user's bookings that cannot be kept, with the reason."""
    for each in known:
        if each.problem and each.owner == user and each.kind is Kind.BOOKING and each.state in PROMISED:
            yield _shown("danger", each, messages.problem(each, now))


def of_released(past: Sequence[Reservation], now: float) -> Iterator[Notice]:
    """Yield notices of bookings that were released because nobody used them."""
    for each in past:
        if each.state is State.RELEASED and each.actor == ACTOR and each.ended > now - NEWS_SECONDS:
            yield _shown("warning", each, messages.released(each, now))


def of_times(
    known: Sequence[Reservation], user: str, groups: Sequence[str], accounts: Sequence[str], now: float
) -> Iterator[Notice]:
    """Yield notices of present bookings, and of those that begin within a day, except those with a problem."""
    for each in slots.usable_now(known, user, groups, accounts, now):
        if not each.problem:
            say = messages.soon if each.period.start > now else messages.is_now
            yield _shown("success", each, say(each, now))
    for each in slots.upcoming(known, user, groups, accounts, now):
        if not each.problem:
            yield _shown("info", each, messages.soon(each, now))


def _shown(level: str, one: Reservation, text: str) -> Notice:
    return Notice(level, text, f"bookings/{one.id}", "The booking")


class CarmeHomeHandler(HomeHandler):
    """The hub's home page with Carme Hub's notices."""

    _gpu_time: dict[str, Any] | None = None
    _budget: dict[str, Any] | None = None
    _disk: ShownDisk | None = None
    _bookings: Sequence[tuple[str, str]] = ()
    _calendar: dict[str, Any] | None = None
    _alternatives: Sequence[Alternatives] = ()
    _sessions: Mapping[str, Any] = MappingProxyType({})
    #: How many sessions have results that are still on a node.
    _kept = OnNodes()
    #: Why an action of this page was refused.
    _refused = ""

    @web.authenticated
    async def get(self) -> None:
        """Show the page."""
        await self.show()

    async def show(self) -> None:
        """Show the page to a visitor who is logged in."""
        lookup: CalendarLookup = self.settings.setdefault("carme_calendar", CalendarLookup())
        data = asyncio.gather(disk_for(self), kept_for(self))
        self._gpu_time, self._budget, found, news, cluster = await asyncio.gather(
            notices_for(self),
            budget_for(self),
            lookup.for_user(self.current_user),
            session_news(self),
            seen_cluster(started_hub()),
        )
        self._disk, self._kept = await data
        self._sessions = page_values(started_hub(), self.current_user, news, cluster, time.time())
        self._calendar = shown(found.notices, service_href(self, CALENDAR))
        self._alternatives, self._bookings = found.alternatives, found.later
        await super().get()

    @property
    def template_namespace(self) -> dict[str, Any]:
        """The variables of the hub's templates, with the notices."""
        ours: dict[str, Any] = {"gpu_time": self._gpu_time, "calendar": self._calendar}
        # Without Slurm the hub has no database of ours.
        ours |= {"batch_jobs": self._batch_jobs(), "has_runs": started_hub() is not None}
        ours |= {**self._sessions, "budget": self._budget, "disk": self._disk, "bookings": self._bookings}
        console = started_hub() is not None and READ in self.expanded_scopes
        ours |= {"kept_on_nodes": self._kept, "console": console, "owns": self._owned_accounts()}
        return {**super().template_namespace, **ours, "alternatives": self._alternatives, "refused": self._refused}

    def _owned_accounts(self) -> tuple[str, ...]:
        """Return the accounts whose owner (Slurm's coordinator) the visitor is."""
        hub, user = started_hub(), self.current_user
        if hub is None or user is None or ACCOUNTS_READ not in self.expanded_scopes:
            return ()
        return hub.associations.coordinates(user.name)

    def _batch_jobs(self) -> list[Companion]:
        """Return the visitor's open batch jobs; those of a session that has ended are shown nowhere else."""
        hub, user = started_hub(), self.current_user
        if hub is None or user is None:
            return []
        virtual = bool(getattr(user.spawner, "virtual", False))
        return [as_shown(hub, each, virtual=virtual) for each in hub.registry.batch_jobs_of(user.name)]
