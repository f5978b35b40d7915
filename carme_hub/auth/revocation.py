"""A closed account loses its servers, tokens and logins within five minutes; a silent directory costs nobody theirs.

Proof ends things at the first look. A name that is merely missing must be missing three times in a row, and never
does so together with most others: that is the directory being away.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from jupyterhub.orm import new_token
from tornado.ioloop import PeriodicCallback

from .account_status import AccountStatus

#: So many looks in a row must miss a name before its absence counts.
LOOKS = 3


class Revoker:
    """Looks at everybody who has a server, and ends what belongs to those who may not be here.

    Args:
        standing: says where a user stands. interval: seconds between two looks, 0 = never.
    """

    def __init__(self, standing: Callable[[Any], Awaitable[AccountStatus]], interval: float, log: Any) -> None:
        self.log = log
        self._standing, self._interval = standing, interval
        self._missing: dict[str, int] = {}
        self._callback: PeriodicCallback | None = None
        self._looking = False

    def start(self, app: Any) -> None:
        """Look every ``interval`` seconds from now on."""
        if not self._interval or self._callback is not None:
            return
        self._callback = PeriodicCallback(lambda: self.look(app), self._interval * 1000, jitter=0.1)
        self._callback.start()

    def stop(self) -> None:
        """Look no more."""
        if self._callback is not None:
            self._callback.stop()
            self._callback = None

    async def look(self, app: Any) -> list[str]:
        """Look once and return the names whose things were ended."""
        if self._looking:
            return []
        self._looking = True
        try:
            return await self._look(app)
        finally:
            self._looking = False

    async def _look(self, app: Any) -> list[str]:
        users = [user for user in list(app.users.values()) if user.active]
        missing: set[str] = set()
        ended: list[str] = []
        doomed: list[tuple[Any, str]] = []
        for user in users:
            standing = await self._standing(user)
            if standing.good:
                continue
            if standing.proof:
                doomed.append((user, standing.why))
            else:
                missing.add(user.name)
        self._missing = {name: self._missing.get(name, 0) + 1 for name in missing}
        if len(missing) > 2 and 2 * len(missing) > len(users):
            self.log.error("The system knows %s of %s users no more: is its directory away?", len(missing), len(users))
            self._missing = {}
        for user in users:
            if self._missing.get(user.name, 0) >= LOOKS:
                doomed.append((user, "the system does not know the user any more"))
        for user, why in doomed:
            self.log.warning("Ending servers, tokens and logins of %s: %s", user.name, why)
            await self._end(app, user)
            self._missing.pop(user.name, None)
            ended.append(user.name)
        return ended

    async def _end(self, app: Any, user: Any) -> None:
        """Take the rights first, so that nothing new starts while servers stop."""
        for token in list(user.api_tokens):
            app.db.delete(token)
        user.orm_user.cookie_id = new_token()
        app.db.commit()
        for name, spawner in list(user.spawners.items()):
            if not spawner.active or spawner.pending == "stop":
                continue
            try:
                await app.proxy.delete_user(user, name)
                await user.stop(name)
            except Exception:
                # One server that will not stop must not keep the others; the next look tries again.
                self.log.exception("Could not stop server %r of %s", name, user.name)
