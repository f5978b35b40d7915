"""Cache of Slurm's associations: who may charge which account, from one bulk query for all users.

The authenticator makes groups from it, the spawner refuses accounts that are not in it. Both use one cache per cluster
(``associations_of_cluster``), so Slurm is asked once a minute and not at each login. A name missing from a valid answer
is gone; while Slurm does not answer, the last answer stays.
"""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import Callable
from weakref import WeakKeyDictionary

from carme_hub.errors import SlurmError
from carme_hub.slurm.client import Association, SlurmClient

#: Fraction of its maximum age after which an answer is refreshed in the background: sacctmgr takes a quarter of a
#: second for a few hundred users, and otherwise a request of the hub would wait for it once a minute.
REFRESH_FROM = 0.75


class AssociationCache:
    """The associations of all users, as in Slurm's last answer.

    Args:
        max_age: seconds for which an answer is fresh enough.
        retry: seconds after a failure before Slurm is asked again, so that logins do not wait one after the other.
        time_limit: seconds that one query may take.
    """

    def __init__(
        self,
        client: SlurmClient,
        *,
        max_age: float = 60.0,
        retry: float = 10.0,
        time_limit: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger] | None = None,
    ) -> None:
        self.client = client
        self.max_age = max_age
        self.retry = retry
        self.time_limit = time_limit
        self._clock = clock
        self._log = log or logging.getLogger(__name__)
        self._by_user: dict[str, tuple[Association, ...]] = {}
        self._by_account: dict[str, tuple[str, ...]] = {}
        self._coordinators: dict[str, tuple[str, ...]] = {}
        self._answered: float | None = None
        self._failed: float | None = None
        self._query: asyncio.Task[bool] | None = None

    @property
    def known(self) -> bool:
        """Whether Slurm has answered at least once; before that no associations are known."""
        return self._answered is not None

    @property
    def age(self) -> float:
        """Seconds since the last valid answer; infinite before the first."""
        return float("inf") if self._answered is None else self._clock() - self._answered

    async def refresh(self, max_age: float | None = None) -> bool:
        """Query Slurm if the last answer is older than ``max_age``; concurrent callers share one query.

        An answer that will soon be too old is refreshed in the background.

        Returns:
            Whether the last answer is fresh enough. If not, nobody may lose access for that reason.
        """
        limit = self.max_age if max_age is None else max_age
        fresh = self.age <= limit
        if fresh and self.age <= REFRESH_FROM * limit:
            return True
        if self._failed is not None and self._clock() - self._failed < self.retry:
            return fresh
        if self._query is None or self._query.done():
            self._query = asyncio.create_task(self._fetch(), name="associations")
        if fresh:
            return True
        # A caller that gives up must not take the answer away from the others.
        return await asyncio.shield(self._query)

    async def _fetch(self) -> bool:
        asked = self._clock()
        try:
            async with asyncio.timeout(self.time_limit):
                rows = await self.client.associations()
        except (SlurmError, TimeoutError, OSError) as error:
            self._failed = self._clock()
            self._log.warning("Slurm's associations could not be read, the last answer stays: %s", error)
            return False
        if not rows and self._by_user:
            # A database that lost every association at once is broken, not empty.
            self._failed = self._clock()
            self._log.error("Slurm's answer has no associations at all; the last answer stays")
            return False
        by_user: dict[str, list[Association]] = {}
        by_account: dict[str, set[str]] = {}
        coordinators: dict[str, set[str]] = {}
        for row in rows:
            if row.user:
                by_user.setdefault(row.user, []).append(row)
                by_account.setdefault(row.account, set()).add(row.user)
                if row.coordinator:
                    coordinators.setdefault(row.account, set()).add(row.user)
        self._by_user = {user: tuple(found) for user, found in by_user.items()}
        self._by_account = {account: tuple(sorted(users)) for account, users in sorted(by_account.items())}
        self._coordinators = {account: tuple(sorted(users)) for account, users in coordinators.items()}
        self._answered, self._failed = asked, None
        return True

    def associations_of(self, user: str) -> tuple[Association, ...]:
        """Return the user's associations in the last answer."""
        return self._by_user.get(user, ())

    def accounts_of(self, user: str) -> tuple[str, ...]:
        """Return the accounts the user may charge, the default one first, the others by name."""
        rows = sorted(self.associations_of(user), key=lambda row: (not row.default, row.account))
        return tuple(dict.fromkeys(row.account for row in rows))

    def coordinates(self, user: str) -> tuple[str, ...]:
        """Return the accounts of which the user is a coordinator."""
        return tuple(sorted({row.account for row in self.associations_of(user) if row.coordinator}))

    def coordinators_of(self, account: str) -> tuple[str, ...]:
        """Return the users who coordinate an account, by name."""
        return self._coordinators.get(account, ())

    def users_of(self, account: str) -> tuple[str, ...]:
        """Return the users who may charge an account, by name."""
        return self._by_account.get(account, ())

    def accounts(self) -> tuple[str, ...]:
        """Return all accounts that somebody may charge, by name."""
        return tuple(self._by_account)


_caches: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, AssociationCache]] = WeakKeyDictionary()


def associations_of_cluster(client: SlurmClient, log: logging.Logger | None = None) -> AssociationCache:
    """Return the cache of the client's cluster, shared by all clients of this event loop."""
    caches = _caches.setdefault(asyncio.get_running_loop(), {})
    if client.cluster not in caches:
        caches[client.cluster] = AssociationCache(client, log=log)
    return caches[client.cluster]


def __getattr__(name: str) -> type[AssociationCache]:
    """Return the cache by its old name, which a site's ``make_book`` may use, with a warning."""
    if name != "AssociationBook":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is now {__name__}.AssociationCache", DeprecationWarning, stacklevel=2)
    return AssociationCache
