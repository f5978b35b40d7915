"""Revocation: a closed account loses its servers, tokens and logins within five minutes.

The authenticator starts it with the hub. A certain refusal counts at the first check. A name that is only missing must
be missing in three checks in a row, and if most names are missing, none counts: then the directory does not answer.
Where only one or two users have servers, others who used the hub lately tell whether it answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from jupyterhub import orm
from jupyterhub.orm import new_token
from tornado.ioloop import PeriodicCallback

from carme_hub import metrics

from .account_status import AccountStatus

#: Checks in a row in which a name must be missing before that counts.
MISSED_CHECKS = 3
#: Users without a server who are asked about where those with one do not tell whether the directory answers.
OTHERS = 5


class Revoker:
    """Checks every user with a server, and ends the servers, tokens and logins of those who are not allowed.

    Args:
        account_status: returns the status of a user. interval: seconds between two checks, 0 = never.
    """

    def __init__(self, account_status: Callable[[Any], Awaitable[AccountStatus]], interval: float, log: Any) -> None:
        self.log = log
        self._account_status, self._interval = account_status, interval
        self._missing: dict[str, int] = {}
        self._callback: PeriodicCallback | None = None
        self._checking = False

    def start(self, app: Any) -> None:
        """Check every ``interval`` seconds from now on."""
        if not self._interval or self._callback is not None:
            return
        self._callback = PeriodicCallback(lambda: self.check(app), self._interval * 1000, jitter=0.1)
        self._callback.start()
        metrics.ACCOUNTS_CHECKED.set_to_current_time()  # a directory that has never answered is silent from now on

    def stop(self) -> None:
        """Stop the checks."""
        if self._callback is not None:
            self._callback.stop()
            self._callback = None

    async def check(self, app: Any) -> list[str]:
        """Check once; return the names of the users whose servers, tokens and logins were ended."""
        if self._checking:
            return []
        self._checking = True
        try:
            return await self._check(app)
        finally:
            self._checking = False

    async def _check(self, app: Any) -> list[str]:
        users = [user for user in list(app.users.values()) if user.active]
        missing: set[str] = set()
        ended: list[str] = []
        to_end: list[tuple[Any, str]] = []
        for user in users:
            account_status = await self._account_status(user)
            if account_status.is_allowed:
                continue
            if account_status.proof:
                to_end.append((user, account_status.reason))
            else:
                missing.add(user.name)
        self._missing = {name: self._missing.get(name, 0) + 1 for name in missing}
        silent = 2 * len(missing) > len(users) and (len(missing) > 2 or not await self._knows_others(app, users))
        if silent:
            self.log.error("%s of %s users are missing in the system: is its directory down?", len(missing), len(users))
            self._missing = {}
        for user in users:
            if self._missing.get(user.name, 0) >= MISSED_CHECKS:
                to_end.append((user, "the system does not know the user any more"))
        for user, reason in to_end:
            self.log.warning("Ending servers, tokens and logins of %s: %s", user.name, reason)
            await self._end(app, user)
            self._missing.pop(user.name, None)
            ended.append(user.name)
            metrics.ACCOUNTS_ENDED.inc()
        if not silent:
            metrics.ACCOUNTS_CHECKED.set_to_current_time()
        return ended

    async def _knows_others(self, app: Any, users: list[Any]) -> bool:
        """Return whether the directory knows one of the others who used the hub last."""
        with_servers = {user.name for user in users}
        newest = app.db.query(orm.User).order_by(orm.User.last_activity.desc()).limit(OTHERS + len(users))
        for other in [each for each in newest if each.name not in with_servers][:OTHERS]:
            status = await self._account_status(app.users[other.id])
            if status.is_allowed or status.proof:
                return True
        return False

    async def _end(self, app: Any, user: Any) -> None:
        """Revoke tokens and logins first, so that nothing new starts while servers stop."""
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
                # A server that does not stop must not keep the others running; the next check tries again.
                self.log.exception("Could not stop server %r of %s", name, user.name)
