"""The sessions whose reporters may write: read from the database at most every half a minute."""

from __future__ import annotations

import time
from collections.abc import Callable

from carme_hub.domain.sessions.session import Session
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread

#: Seconds for which the open sessions are known, and the most ended sessions that are remembered.
MAX_AGE, MOST_ENDED = 30.0, 1000


class KnownSessions:
    """Sessions by id: those that are open, and those that ended a short time ago and still send their last minutes."""

    def __init__(self, store: SessionStore, cluster: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._cluster, self._clock = store, cluster, clock
        self._open: dict[str, Session] = {}
        self._read_at = float("-inf")
        self._others: dict[str, tuple[float, Session | None]] = {}

    async def open_sessions(self) -> list[Session]:
        """Return the open sessions, as of half a minute ago at most.

        Raises:
            StoreError: the database fails.
        """
        if self._clock() - self._read_at > MAX_AGE:
            now = self._clock()
            found = await in_store_thread(self._store.open_sessions, self._cluster)
            self._open, self._read_at = {each.id: each for each in found}, now
        return list(self._open.values())

    async def get(self, id: str) -> Session | None:
        """Return a session of this cluster, None where there is none; errors as ``open_sessions``."""
        if id in self._open and self._clock() - self._read_at <= MAX_AGE:
            return self._open[id]
        await self.open_sessions()
        if id in self._open:
            return self._open[id]
        read_at, known = self._others.get(id, (float("-inf"), None))
        if self._clock() - read_at > MAX_AGE:
            known = await in_store_thread(self._store.get, id)
            if known is not None and known.cluster != self._cluster:
                known = None
            if len(self._others) >= MOST_ENDED:
                self._others.clear()
            self._others[id] = (self._clock(), known)
        return known
