"""REST for administrators about one user: lock, unlock, and the record of what an offboarding does by other ways.

JupyterHub's own REST deletes tokens, shares and users, and the console's stops sessions. It has no state of a user who
may not log in; here it is.
"""

from __future__ import annotations

from typing import Any

from carme_hub.domain.administration.scopes import OPERATE, READ
from carme_hub.spawners.console import users
from carme_hub.spawners.handlers.console.base import actor_of
from carme_hub.spawners.handlers.console.rest import API, ConsoleApi


class LocksApi(ConsoleApi):
    """Lists the users who are locked."""

    async def get(self) -> None:
        """Send them, by name."""
        hub = self.checked_hub(READ)
        self.finish({"locked": [users.lock_json(lock) for lock in users.locked_users(hub)]})


class LockApi(ConsoleApi):
    """Locks or unlocks a user."""

    async def post(self, user: str, what: str) -> None:
        """Do it."""
        hub = self.checked_hub(OPERATE)
        reason = self.body("reason")["reason"]

        async def change() -> dict[str, Any]:
            by = actor_of(self, "rest")
            if what == "lock":
                return users.lock_json(await users.lock_user(hub, self.db, by, user, reason))
            await users.unlock_user(hub, by, user, reason)
            return {"user": user}

        await self.answered(change())


class OffboardingsApi(ConsoleApi):
    """Records a step of an offboarding."""

    async def post(self, user: str) -> None:
        """Record it."""
        hub = self.checked_hub(OPERATE)
        body = self.body("reason", "did", "outcome")

        async def note() -> dict[str, Any]:
            await users.note_offboarding(hub, actor_of(self, "rest"), user, **body)
            return {"user": user}

        await self.answered(note(), 201)


HANDLERS: list[tuple[str, Any]] = [
    (f"{API}/locked-users", LocksApi),
    (f"{API}/users/([^/]+)/(lock|unlock)", LockApi),
    (f"{API}/users/([^/]+)/offboardings", OffboardingsApi),
]
