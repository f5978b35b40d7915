"""Measures how long starts take by image: from the start of a session's job to the call of its server.

``ImageStarts.changed`` is a listener of the hub's registry. Only starts that this process has seen from their
submission on count; companions and batch jobs have no server. Slurm's last answer may not say yet when the job has
started, so it is looked at for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from carme_hub.domain.cluster.jobs import Snapshot
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.errors import StoreError
from carme_hub.store.images.catalogue import ImageStore
from carme_hub.store.threads import in_store_thread

#: How often, and with which pause in seconds, Slurm's last answer is looked at.
TRIES, PAUSE = 15, 4.0


class ImageStarts:
    """Stores the starts of one hub.

    Args:
        latest: returns Slurm's last answer, None before the first.
    """

    def __init__(
        self,
        store: ImageStore,
        latest: Callable[[], Snapshot | None],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        pause: float = PAUSE,
    ) -> None:
        self._store, self._latest, self._log, self._pause = store, latest, log, pause
        self._submitted: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def changed(self, session: Session) -> None:
        """Note what a change of a row says."""
        if session.parent:
            return
        if session.state is SessionState.SUBMITTED and not session.is_ending:
            self._submitted.add(session.id)
        elif session.id in self._submitted and session.state in (SessionState.RUNNING, SessionState.ENDED):
            self._submitted.discard(session.id)
            if session.state is SessionState.RUNNING:
                task = asyncio.get_running_loop().create_task(self._measure(session), name="carme-image-start")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _measure(self, session: Session) -> None:
        for _ in range(TRIES):
            latest = self._latest()
            jobs = latest.named(session.job_name, session.user) if latest is not None else ()
            if jobs and jobs[-1].start:
                seconds = max(0.1, session.started - jobs[-1].start)
                break
            await asyncio.sleep(self._pause)
        else:
            return
        try:
            image = session.request.image
            await in_store_thread(self._store.add_start, session.id, image, session.started, seconds)
        except StoreError as error:
            self._log.warning("How long session %s took to start is not stored: %s", session.id, error)

    async def stop(self) -> None:
        """Forget what is not measured yet."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
