"""The use of GPUs of every open session, read once a minute for all visitors of the console."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from carme_hub.domain.activity.minutes import HOUR, Total
from carme_hub.errors import StoreError
from carme_hub.spawners.console.rows import use_of
from carme_hub.store.threads import in_store_thread

#: Seconds for which an answer is shown again, and for which a page waits for a new one.
MAX_AGE, PAGE_WAIT = 60.0, 2.0


class RecentUse:
    """Percent by session; while the database does not answer, the last answer stays."""

    def __init__(self, read: Callable[[float], dict[str, list[Total]]]) -> None:
        self._read = read
        self._known: Mapping[str, float | None] = {}
        self._read_at = float("-inf")
        self._task: asyncio.Task[Mapping[str, float | None]] | None = None

    async def by_session(self) -> Mapping[str, float | None]:
        """Return the use of this clock hour and the one before."""
        if time.monotonic() - self._read_at > MAX_AGE:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(in_store_thread(self._percent, time.time()), name="carme-recent-use")
            done, _ = await asyncio.wait([self._task], timeout=PAGE_WAIT)
            if done and not isinstance(self._task.exception(), StoreError):
                self._known, self._read_at = self._task.result(), time.monotonic()
        return self._known

    def _percent(self, now: float) -> Mapping[str, float | None]:
        since = now // HOUR * HOUR - HOUR
        return {session: use_of(totals) for session, totals in self._read(since).items()}
