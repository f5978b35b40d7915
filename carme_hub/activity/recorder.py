"""Stores what reporters send: those of a second in one transaction, each answered when it is committed."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from carme_hub.errors import StoreError
from carme_hub.store.activity import ActivityStore, Report
from carme_hub.store.threads import in_store_thread

#: Seconds for which reports are collected, and for one that comes after a rest of so many; how many may wait.
COLLECT_SECONDS, FIRST_SECONDS, MOST_WAITING = 1.0, 0.02, 5000


@dataclass(slots=True)
class _Waiting:
    report: Report
    done: asyncio.Future[None]


class Recorder:
    """Writes reports in groups.

    A thousand sessions send a thousand reports a minute; a transaction for each of them would write the disk as often.
    Where there are few, a report does not wait: a job ends once its last one is answered.
    """

    def __init__(
        self,
        store: ActivityStore,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        collect: float = COLLECT_SECONDS,
    ) -> None:
        self._store, self._log, self._collect = store, log, collect
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None
        self._written_at = float("-inf")

    async def record(self, report: Report) -> None:
        """Return when a report is committed.

        Raises:
            StoreError: the database did not take it, or too many wait; the reporter sends it again.
        """
        if len(self._waiting) >= MOST_WAITING:
            raise StoreError("Too many reports wait for the database.")
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(report, done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write(), name="carme-record-activity")
        await done

    async def stop(self) -> None:
        """Write what waits."""
        if self._task is not None:
            await self._task

    async def _write(self) -> None:
        while self._waiting:
            rest = self._written_at + self._collect - time.monotonic()
            await asyncio.sleep(max(rest, min(FIRST_SECONDS, self._collect)))
            group, self._waiting = self._waiting, []
            try:
                await in_store_thread(self._store.record, [each.report for each in group])
                failed = None
            except StoreError as error:
                self._log.error("%s reports of what jobs use are not stored, and come again: %s", len(group), error)
                failed = error
            self._written_at = time.monotonic()
            for each in group:
                if each.done.done():  # its connection was closed
                    continue
                if failed is None:
                    each.done.set_result(None)
                else:
                    each.done.set_exception(StoreError(str(failed)))
