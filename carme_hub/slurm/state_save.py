"""Make the controller save its state once for each start of a session's job, so that a crash does not lose the start.

One command serves all starts that are new in a snapshot, so that many starts do not cause many commands. Failed ones
are tried again after later snapshots. ``watcher.SlurmWatcher`` calls this after each snapshot.
"""

from __future__ import annotations

import asyncio
import logging
import re

from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job, Snapshot
from carme_hub.errors import SlurmError

from .client import SlurmClient

_OURS = re.compile(re.escape(JOB_NAME_PREFIX) + "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TRIES = 5

#: A job's start: its id and when it started.
_Start = tuple[int, float]


class StartSaver:
    """Calls ``SlurmClient.secure`` once for each start of a session's job."""

    def __init__(self, client: SlurmClient, log: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
        self._client = client
        self._log = log
        self._tries: dict[_Start, int] = {}
        self._pending: dict[_Start, Job] = {}
        self._in_progress: set[_Start] = set()
        self._task: asyncio.Task[None] | None = None

    def note_starts(self, snapshot: Snapshot) -> None:
        """Note the starts in a snapshot, and secure new ones in the background."""
        running = {(j.id, j.start): j for j in snapshot.ours if j.state == "RUNNING" and _OURS.fullmatch(j.name)}
        self._tries = {start: tries for start, tries in self._tries.items() if start in running}
        self._pending = {
            start: job
            for start, job in running.items()
            if self._tries.get(start, 0) < _TRIES and start not in self._in_progress
        }
        if self._pending and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._work(), name="carme-slurm-saver")

    async def stop(self) -> None:
        """Cancel the background task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _work(self) -> None:
        while self._pending:
            due, self._pending = self._pending, {}
            self._in_progress = set(due)
            for start in due:
                self._tries[start] = self._tries.get(start, 0) + 1
            try:
                await self._client.secure(tuple(due.values()))
            except SlurmError as error:
                self._log.warning("The starts of jobs %s may not be saved yet: %s", [i for i, _ in due], error)
                return  # the next snapshot starts it again
            finally:
                self._in_progress = set()
            self._tries.update(dict.fromkeys(due, _TRIES))
