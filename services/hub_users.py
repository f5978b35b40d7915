"""Groups and roles of all users, which a service reads from the hub's REST API with its own token.

Policy rules, reports by group and notices read them here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Any

from carme_hub.domain.quotas.group_names import person_in
from carme_hub.domain.quotas.rules import Person, SubjectKind
from carme_hub.services.hub_api import ask_hub

#: Users in one request. The hub's event loop does nothing else while it reads them: 39 ms were measured for 53.
_PAGE = 20
_PAGED = "application/jupyterhub-pagination+json"
#: How old an answer may be, in seconds: in the background, and for a page or request that somebody waits for.
MAX_AGE, PAGE_MAX_AGE = 300.0, 10.0
#: The message for pages and REST when groups are needed and the hub has not answered yet.
HUB_SILENT = "The hub does not say who is in which group. Try again in a moment."


class HubUsers:
    """Groups and roles of all users; the last answer stays valid while the hub does not answer."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._answered_at = float("-inf")  # monotonic
        self._problem = ""
        self.people: dict[str, Person] = {}

    def members(self, who: SubjectKind, name: str) -> Collection[str]:
        """Return the users of a group or role."""
        if who is SubjectKind.GROUP:
            return [person.user for person in self.people.values() if name in person.groups]
        return [person.user for person in self.people.values() if name in person.roles]

    @property
    def known(self) -> bool:
        """Whether the hub has answered at least once; before that nothing is known of anybody."""
        return self._answered_at > float("-inf")

    def groups(self) -> tuple[str, ...]:
        """Return the names of all groups that have members."""
        return tuple(sorted({name for person in self.people.values() for name in person.groups}))

    def person(self, user: str) -> Person:
        """Return a user's groups and roles; none if the hub does not know the user."""
        return self.people.get(user, Person(user))

    async def refresh(self, max_age: float = MAX_AGE) -> None:
        """Ask the hub if the last answer is older than ``max_age`` seconds; an error keeps the last answer."""
        # An empty answer is never reused: somebody must have logged in since, to open a page.
        if self.people and time.monotonic() - self._answered_at < max_age:
            return
        try:
            self.people = await self._ask()
            self._answered_at, self._problem = time.monotonic(), ""
        except Exception as error:  # noqa: BLE001 - the hub may be restarting; a request must not fail for that
            if str(error) != self._problem:
                self._log.warning("The hub does not say who is in which group; the last answer stays: %s", error)
            self._problem = str(error)

    async def _ask(self) -> dict[str, Person]:
        people: dict[str, Person] = {}
        offset: int | None = 0
        while offset is not None:
            answer = await self._page(offset)
            for model in answer["items"]:
                one = person_in(model["name"], model.get("groups") or (), admin=bool(model.get("admin")))
                people[one.user] = one
            following = answer["_pagination"]["next"]
            offset = int(following["offset"]) if following else None
        return people

    async def _page(self, offset: int) -> dict[str, Any]:
        return await ask_hub("users", {"limit": _PAGE, "offset": offset}, accept=_PAGED)
