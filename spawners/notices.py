"""Open notices about GPU time on the hub's own pages: the same as on the service's, read beside the loop.

A page is worth more than its notices: they are waited for a moment, and left out where the database does not answer.
It is not asked again then for a while, and never by more than two threads of the store's at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jupyterhub.handlers.pages import HomeHandler
from tornado import web

from carme_hub.accounting.notices import open_notices, who_answers
from carme_hub.accounting.requests import Request

log = logging.getLogger(__name__)

#: The name under which ``configure`` adds the service, whose page has more.
SERVICE = "quotas"
#: Seconds for which a page waits, and for which a database that was silent is left alone.
PATIENCE, REST = 1.0, 30.0
#: How many pages ask at once; there are four times as many threads of the store.
AT_ONCE = 2
#: The most that a page of the hub shows; the service's has all.
MOST = 3


@dataclass(frozen=True, slots=True)
class Shown:
    """One notice: Bootstrap's word for its colour, a sentence, and where it leads below the service."""

    level: str
    text: str
    link: str
    link_words: str


class NoticesOfHub:
    """Reads what one user should see."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._silent_until = 0.0
        self._looking: set[asyncio.Task[list[Shown]]] = set()
        self._asking: dict[asyncio.Task[Any] | None, float] = {}  # the looks that have their turn, and since when

    async def of(self, user: Any) -> Sequence[Shown]:
        """Return a user's open notices; none where GPU time is not kept, or where it cannot be told now."""
        if self._is_silent():
            return ()
        look = asyncio.create_task(self._look(user), name="carme-notices-of-hub")
        self._looking.add(look)
        look.add_done_callback(self._looked)
        done, _ = await asyncio.wait([look], timeout=PATIENCE)
        if not done:
            if look not in self._asking:
                # It waited for others, or for the hub to be set up: nobody is there any more for whom it would ask.
                look.cancel()
            # Otherwise it is not cancelled: the thread would go on all the same, and count no more.
            self._is_silent()
            log.debug("Notices for %s are left out: they were not there in %g s", user.name, PATIENCE)
            return ()
        return () if look.exception() is not None else look.result()

    def _is_silent(self) -> bool:
        """Return whether the database is to be left alone, as a look that has its turn was late, or still is."""
        now = time.monotonic()
        if now >= self._silent_until and any(now - since >= PATIENCE for since in self._asking.values()):
            self._silent_until = now + REST
            log.warning("Notices are left out for %g s: the database has not answered in %g s", REST, PATIENCE)
        return now < self._silent_until

    def _looked(self, look: asyncio.Task[list[Shown]]) -> None:
        self._looking.discard(look)
        if not look.cancelled() and (error := look.exception()) is not None:
            log.warning("Notices are left out: %s", error)

    async def _look(self, user: Any) -> list[Shown]:
        shared = getattr(user.spawner, "shared", None)
        part = await shared() if shared is not None else None
        admission = getattr(part, "admission", None)
        if part is None or admission is None:
            return []
        book, person = part.associations, admission.person(user)
        administrators = (user.name,) if user.admin else ()

        def answer(request: Request) -> list[str]:
            owners = book.coordinators_of(request.account)
            return who_answers(request, owners, administrators) if book.known else []

        accounts, owned = book.accounts_of(user.name), None if user.admin else book.coordinates(user.name)
        async with self._turn:
            if self._is_silent():
                return []
            look = asyncio.current_task()
            self._asking[look] = time.monotonic()
            try:
                found = await open_notices(admission.ledger, person, accounts, owned, answer)
            finally:
                self._is_silent()  # so that one that took long is remembered
                del self._asking[look]
        return [Shown(each.notice.level, each.notice.text, each.link, each.link_words) for each in found]


async def notices_for(handler: Any) -> dict[str, Any]:
    """Return what ``carme_notices.html`` shows to who looks at a page: some notices, how many more, and the service."""
    user = handler.current_user
    board: NoticesOfHub = handler.settings.setdefault("carme_notices", NoticesOfHub())
    notices = await board.of(user)
    href = next((each.href for each in handler.get_accessible_services(user) if each.name == SERVICE), "")
    return {"notices": notices[:MOST], "more": len(notices[MOST:]), "href": href}


class CarmeHomeHandler(HomeHandler):
    """The hub's home page, with the notices of who looks at it."""

    _gpu_time: dict[str, Any] | None = None

    @web.authenticated
    async def get(self) -> None:
        """Show it."""
        self._gpu_time = await notices_for(self)
        await super().get()

    @property
    def template_namespace(self) -> dict[str, Any]:
        """What every template of the hub is given, and the notices."""
        return {**super().template_namespace, "gpu_time": self._gpu_time}
