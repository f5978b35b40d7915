"""Who is who, as the hub knows it: groups and roles of everybody, asked of the hub with the service's own token."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Any

from carme_hub.domain.quotas.group_names import person_in
from carme_hub.domain.quotas.rules import Person, Who
from carme_hub.services.hub_api import ask_hub

#: Users that are asked for at once. The hub's event loop does nothing else while it reads them: 39 ms were seen for 53.
_PAGE = 20
_PAGED = "application/jupyterhub-pagination+json"
#: Seconds for which an answer is fresh enough: where nobody looks at it, and where somebody does.
FRESH, LOOKED_AT = 300.0, 10.0
#: What is said where groups are asked for and the hub has named nobody yet.
SILENT = "The hub does not say who is in which group. Try again in a moment."


class HubUsers:
    """Everybody's groups and roles; what was last known stays while the hub is silent."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._asked = float("-inf")
        self._wrong = ""
        self.people: dict[str, Person] = {}

    def members(self, who: Who, name: str) -> Collection[str]:
        """Return the users of a group or role."""
        if who is Who.GROUP:
            return [person.user for person in self.people.values() if name in person.groups]
        return [person.user for person in self.people.values() if name in person.roles]

    @property
    def known(self) -> bool:
        """Whether the hub has answered at least once; before that nothing can be said about anybody."""
        return self._asked > float("-inf")

    def groups(self) -> tuple[str, ...]:
        """Return the names of all groups that somebody is in."""
        return tuple(sorted({name for person in self.people.values() for name in person.groups}))

    def person(self, user: str) -> Person:
        """Return a user's groups and roles; nobody's where the hub does not know the user."""
        return self.people.get(user, Person(user))

    async def refresh(self, max_age: float = FRESH) -> None:
        """Ask the hub when the last answer is older than ``max_age`` seconds; whatever goes wrong changes nothing."""
        # Of a hub that knew nobody yet the answer is old at once: somebody has logged in to look.
        if self.people and time.monotonic() - self._asked < max_age:
            return
        try:
            self.people = await self._ask()
            self._asked, self._wrong = time.monotonic(), ""
        except Exception as error:  # noqa: BLE001 - a hub that restarts; who is in which group is not worth a failure
            if str(error) != self._wrong:
                self._log.warning("The hub does not say who is in which group; what was last known stays: %s", error)
            self._wrong = str(error)

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
