"""Who may charge which account, from one bulk query for everybody; what was last known stays while Slurm is silent.

The authenticator makes groups from it, the spawner refuses accounts that are not in it. Both use the hub's one book
(``book_of``), so Slurm is asked once a minute, not once a login. A name missing from a good answer is gone;
no answer changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

from carme_hub.errors import SlurmError
from carme_hub.slurm.client import Association, SlurmClient

#: The part of its age after which an answer is asked for anew while it still counts: sacctmgr takes a quarter of a
#: second for a few hundred users, and otherwise some request of the hub's would wait for it once a minute.
SOON = 0.75


class AssociationBook:
    """The associations of all users, as Slurm last gave them.

    Args:
        max_age: seconds for which an answer is fresh enough.
        retry: after a failure Slurm is not asked again for so many seconds, so that logins do not wait in a row.
        time_limit: seconds that one question may take.
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
        self._asking: asyncio.Task[bool] | None = None

    @property
    def known(self) -> bool:
        """Whether Slurm has answered at least once; before that nothing can be said about anybody."""
        return self._answered is not None

    @property
    def age(self) -> float:
        """Seconds since the last good answer; infinite before the first."""
        return float("inf") if self._answered is None else self._clock() - self._answered

    async def refresh(self, max_age: float | None = None) -> bool:
        """Ask Slurm when the last answer is older than ``max_age``; many callers share one question.

        One that will soon be too old is asked for anew without anybody waiting for it.

        Returns:
            Whether what is known now is fresh enough. False is no reason to take anything away from anybody.
        """
        limit = self.max_age if max_age is None else max_age
        fresh = self.age <= limit
        if fresh and self.age <= SOON * limit:
            return True
        if self._failed is not None and self._clock() - self._failed < self.retry:
            return fresh
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="associations")
        if fresh:
            return True
        # A caller that gives up must not take the answer away from the others.
        return await asyncio.shield(self._asking)

    async def _ask(self) -> bool:
        asked = self._clock()
        try:
            async with asyncio.timeout(self.time_limit):
                rows = await self.client.associations()
        except (SlurmError, TimeoutError, OSError) as error:
            self._failed = self._clock()
            self._log.warning("Slurm did not say who may charge which account, the last answer stays: %s", error)
            return False
        if not rows and self._by_user:
            # A database that lost every association at once is broken, not empty.
            self._failed = self._clock()
            self._log.error("Slurm says that nobody has any account; the last answer stays")
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
        """Return the user's associations as last known."""
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

    def members_of(self, account: str) -> tuple[str, ...]:
        """Return the users who may charge an account, by name."""
        return self._by_account.get(account, ())

    def accounts(self) -> tuple[str, ...]:
        """Return all accounts that somebody may charge, by name."""
        return tuple(self._by_account)


_books: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, AssociationBook]] = WeakKeyDictionary()


def book_of(client: SlurmClient, log: logging.Logger | None = None) -> AssociationBook:
    """Return this hub's one book of the client's cluster; authenticator and spawner may hold clients of their own."""
    books = _books.setdefault(asyncio.get_running_loop(), {})
    if client.cluster not in books:
        books[client.cluster] = AssociationBook(client, log=log)
    return books[client.cluster]
