"""How many commands run for users at the same time, so that one user's programs do not delay the pages of the others.

turns = Turns()
async with turns.of("alice"):
    ...
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from carme_hub.errors import SlurmRejected


class TooManyRequests(SlurmRejected):
    """Too many requests of one user wait already; nothing was done."""


class Turns:
    """Lets some commands run and the others wait.

    Args:
        in_all: commands at the same time. per_user: of them for one user. waiting: requests of one user at most.
    """

    def __init__(self, in_all: int = 12, per_user: int = 4, waiting: int = 32) -> None:
        self._all = asyncio.Semaphore(in_all)
        self._per_user, self._most = per_user, waiting
        self._users: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._asked: Counter[str] = Counter()

    @asynccontextmanager
    async def of(self, user: str) -> AsyncIterator[None]:
        """Wait for a user's turn, first among the user's own requests, then among all.

        Raises:
            TooManyRequests: too many of the user's requests wait already.
        """
        if self._asked[user] >= self._most:
            raise TooManyRequests("Too many of your requests are being worked on. Try it again in a moment.")
        own = self._users.setdefault(user, asyncio.Semaphore(self._per_user))
        self._asked[user] += 1
        try:
            async with own, self._all:
                yield
        finally:
            self._asked[user] -= 1
            if not self._asked[user]:
                del self._asked[user]
