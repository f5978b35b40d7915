"""Open notices about GPU time on the hub's own pages: the same as on the service's, read beside the loop.

A page is worth more than its notices: they are waited for a moment, and left out where the database does not answer.
It is not asked again then for a while, and never by more than two threads of the store's at once.
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

#: The name under which ``configure`` adds the service, whose page has more.
SERVICE = "quotas"
#: Seconds for which a page waits, and for which a database that was silent is left alone.
PAGE_WAIT, COOLDOWN = 1.0, 30.0
#: How many pages ask at once; there are four times as many threads of the store.
MAX_LOOKUPS = 2
#: The most that a page of the hub shows; the service's has all.
MOST = 3


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice: Bootstrap's word for its colour, a sentence, and where it leads below the service."""

    level: str
    text: str
    link: str
    link_words: str


class NoticeLookup(Generic[T]):
    """Looks something up for one user, beside the loop.

    Args:
        nothing: what there is while it cannot be told. name: for the log.
    """

    def __init__(self, nothing: T, name: str) -> None:
        self._nothing, self._name = nothing, name
        self._semaphore = asyncio.Semaphore(MAX_LOOKUPS)
        self._silent_until = 0.0
        self._looking: set[asyncio.Task[T]] = set()
        self._asking: dict[asyncio.Task[Any] | None, float] = {}  # the looks that have their turn, and since when

    async def for_user(self, user: Any) -> T:
        """Return what there is for a user; nothing where there cannot be any, or where it cannot be told now."""
        if self._is_silent():
            return self._nothing
        look = asyncio.create_task(self._look(user), name="carme-notices-of-hub")
        self._looking.add(look)
        look.add_done_callback(self._looked)
        done, _ = await asyncio.wait([look], timeout=PAGE_WAIT)
        if not done:
            if look not in self._asking:
                # It waited for others, or for the hub to be set up: nobody is there any more for whom it would ask.
                look.cancel()
            # Otherwise it is not cancelled: the thread would go on all the same, and count no more.
            self._is_silent()
            log.debug("%s for %s are left out: they were not there in %g s", self._name, user.name, PAGE_WAIT)
            return self._nothing
        return self._nothing if look.exception() is not None else look.result()

    def _is_silent(self) -> bool:
        """Return whether the database is to be left alone, as a look that has its turn was late, or still is."""
        now = time.monotonic()
        if now >= self._silent_until and any(now - since >= PAGE_WAIT for since in self._asking.values()):
            self._silent_until = now + COOLDOWN
            log.warning(
                "%s are left out for %g s: the database has not answered in %g s", self._name, COOLDOWN, PAGE_WAIT
            )
        return now < self._silent_until

    def _looked(self, look: asyncio.Task[T]) -> None:
        self._looking.discard(look)
        if not look.cancelled() and (error := look.exception()) is not None:
            log.warning("%s are left out: %s", self._name, error)

    async def _look(self, user: Any) -> T:
        shared = getattr(user.spawner, "shared", None)
        hub = await shared() if shared is not None else None
        question = self._question(user, hub) if hub is not None else None
        if question is None:
            return self._nothing
        async with self._semaphore:
            if self._is_silent():
                return self._nothing
            look = asyncio.current_task()
            self._asking[look] = time.monotonic()
            try:
                return await question()
            finally:
                self._is_silent()  # so that one that took long is remembered
                del self._asking[look]

    def _question(self, user: Any, hub: Any) -> Callable[[], Awaitable[T]] | None:
        """Return what is asked for a user of those shared parts of the hub; None where there is nothing to ask."""
        raise NotImplementedError


class GpuTimeLookup(NoticeLookup[Sequence[Notice]]):
    """Reads what one user should see of GPU time."""

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
    """Return what ``carme_notices.html`` shows to who looks at a page: some notices, how many more, and the service."""
    user = handler.current_user
    lookup: GpuTimeLookup = handler.settings.setdefault("carme_notices", GpuTimeLookup())
    notices = await lookup.for_user(user)
    return shown(notices, service_href(handler, SERVICE))


def shown(notices: Sequence[Notice], href: str) -> dict[str, Any]:
    """Return some notices for the template, how many more there are, and where."""
    return {"notices": notices[:MOST], "more": len(notices[MOST:]), "href": href}


def service_href(handler: Any, name: str) -> str:
    """Return where a service's pages begin, "" for who may not open them."""
    return next(
        (str(each.href) for each in handler.get_accessible_services(handler.current_user) if each.name == name), ""
    )
