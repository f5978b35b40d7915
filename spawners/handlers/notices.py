"""Open notices about GPU time on the hub's own pages, as on the service's pages; they are read in threads.

A page must not wait long for its notices: it waits a moment, and leaves them out if the database does not answer. Then
the database is left alone for a while, and at most two threads of the store query it at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from carme_hub.accounting.notices import approvers, open_notices
from carme_hub.accounting.requests import Request

log = logging.getLogger(__name__)

T = TypeVar("T")

#: The name under which ``configure`` adds the quotas service, whose page has all notices.
SERVICE = "quotas"
#: Seconds for which a page waits, and for which a database that did not answer is left alone.
PAGE_WAIT, COOLDOWN = 1.0, 30.0
#: Pages that query at once; the store has four times as many threads.
MAX_LOOKUPS = 2
#: Notices on a page of the hub; the service's page has all.
MAX_NOTICES = 3


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice: Bootstrap's name of its colour, a sentence, and a link below the service's prefix."""

    level: str
    text: str
    link: str
    link_words: str


class NoticeLookup(Generic[T]):
    """Looks something up for one user, with a time limit for the page.

    Args:
        nothing: the value if the lookup fails or takes too long. name: for the log.
    """

    def __init__(self, nothing: T, name: str) -> None:
        self._nothing, self._name = nothing, name
        self._semaphore = asyncio.Semaphore(MAX_LOOKUPS)
        self._silent_until = 0.0
        self._running: set[asyncio.Task[T]] = set()
        self._asking: dict[asyncio.Task[Any] | None, float] = {}  # running lookups, and since when they run

    async def for_user(self, user: Any) -> T:
        """Return the value for a user; ``nothing`` if there is none, or if it cannot be read now."""
        if self._is_silent():
            return self._nothing
        task = asyncio.create_task(self._lookup(user), name="carme-notices-of-hub")
        self._running.add(task)
        task.add_done_callback(self._log_failure)
        done, _ = await asyncio.wait([task], timeout=PAGE_WAIT)
        if not done:
            if task not in self._asking:
                # It waits for other lookups or for the hub's start, and nobody needs its result any more.
                task.cancel()
            # Otherwise it is not cancelled: its thread would continue, and no longer be counted.
            self._is_silent()
            log.debug("%s for %s are left out: no answer within %g s", self._name, user.name, PAGE_WAIT)
            return self._nothing
        return self._nothing if task.exception() is not None else task.result()

    def _is_silent(self) -> bool:
        """Return whether to leave the database alone, since a running lookup was or is late."""
        now = time.monotonic()
        if now >= self._silent_until and any(now - since >= PAGE_WAIT for since in self._asking.values()):
            self._silent_until = now + COOLDOWN
            log.warning(
                "%s are left out for %g s: the database has not answered in %g s", self._name, COOLDOWN, PAGE_WAIT
            )
        return now < self._silent_until

    def _log_failure(self, task: asyncio.Task[T]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s are left out: %s", self._name, error)

    async def _lookup(self, user: Any) -> T:
        shared = getattr(user.spawner, "shared", None)
        hub = await shared() if shared is not None else None
        question = self._question(user, hub) if hub is not None else None
        if question is None:
            return self._nothing
        async with self._semaphore:
            if self._is_silent():
                return self._nothing
            task = asyncio.current_task()
            self._asking[task] = time.monotonic()
            try:
                return await question()
            finally:
                self._is_silent()  # records a lookup that took too long
                del self._asking[task]

    def _question(self, user: Any, hub: Any) -> Callable[[], Awaitable[T]] | None:
        """Return the query for a user in the hub's context; None if there is nothing to query."""
        raise NotImplementedError


class GpuTimeLookup(NoticeLookup[Sequence[Notice]]):
    """Reads a user's notices about GPU time."""

    def __init__(self) -> None:
        super().__init__((), "Notices")

    def _question(self, user: Any, hub: Any) -> Callable[[], Awaitable[Sequence[Notice]]] | None:
        admission = getattr(hub, "admission", None)
        if admission is None:
            return None
        associations, person = hub.associations, admission.person(user)
        administrators = (user.name,) if user.admin else ()

        def answer(request: Request) -> list[str]:
            owners = associations.coordinators_of(request.account)
            return approvers(request, owners, administrators) if associations.known else []

        accounts, owned = (
            associations.accounts_of(user.name),
            None if user.admin else associations.coordinates(user.name),
        )

        async def ask() -> list[Notice]:
            found = await open_notices(admission.ledger, person, accounts, owned, answer)
            return [Notice(each.notice.level, each.notice.text, each.link, each.link_words) for each in found]

        return ask


async def notices_for(handler: Any) -> dict[str, Any]:
    """Return the visitor's data for ``carme_notices.html``: some notices, how many more, and the service's URL."""
    user = handler.current_user
    lookup: GpuTimeLookup = handler.settings.setdefault("carme_notices", GpuTimeLookup())
    notices = await lookup.for_user(user)
    return shown(notices, service_href(handler, SERVICE))


def shown(notices: Sequence[Notice], href: str) -> dict[str, Any]:
    """Return some notices for the template, how many more there are, and the service's URL."""
    return {"notices": notices[:MAX_NOTICES], "more": len(notices[MAX_NOTICES:]), "href": href}


def service_href(handler: Any, name: str) -> str:
    """Return the URL of a service's pages, "" if the visitor may not open them."""
    return next(
        (str(each.href) for each in handler.get_accessible_services(handler.current_user) if each.name == name), ""
    )
