"""What the spawn page is told: the truth as Slurm has it, each sentence once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, tzinfo
from typing import Any

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.queue_position import ahead_of
from carme_hub.domain.cluster.reasons import waiting_sentence
from carme_hub.domain.sessions.session import Session
from carme_hub.spawners.hub.shared import Shared

Event = tuple[int, str]


class Progress:
    """The events of one start, for any number of readers."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._more = asyncio.Event()

    def say(self, percent: int, message: str) -> None:
        """Add one sentence; the bar never goes back, and the same sentence is not said twice in a row."""
        if self._events:
            percent = max(percent, self._events[-1][0])
            if self._events[-1][1] == message:
                return
        self._events.append((percent, message))
        self._more.set()
        self._more = asyncio.Event()

    def put(self, event: Event | None) -> None:
        """Add an event, where there is one."""
        if event is not None:
            self.say(*event)

    @property
    def last(self) -> str:
        """The newest sentence, ended by a full stop; "" when nothing was said."""
        return f"{self._events[-1][1].rstrip('.')}." if self._events else ""

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield what was said so far, then what is said from now on."""
        seen = 0
        while True:
            while seen < len(self._events):
                percent, message = self._events[seen]
                seen += 1
                yield {"progress": percent, "message": message}
            await self._more.wait()


def waiting_event(part: Shared, id: str) -> Event | None:
    """Return what to say of a session that has not proved itself yet, None where there is nothing to say."""
    session = part.book.current(id)
    health = part.watcher.health
    if session is None or session.port:
        return None
    if not health.ok:
        return 10, f"Slurm is not answering ({health.error}). Nothing is lost; this goes on by itself."
    snapshot = part.watcher.latest
    found = snapshot.named(session.job_name, session.user) if snapshot is not None else ()
    live = [job for job in found if job.phase is not Phase.TERMINAL]
    if snapshot is None or not live:
        return None
    job = live[-1]
    if job.phase is Phase.WAITING:
        sentence = waiting_sentence(job, ahead_of(job, snapshot), time.time(), here())
        return 20, sentence[:1].upper() + sentence[1:]
    if job.phase is Phase.ACTIVE:
        return 50, f"Slurm gave {', '.join(job.nodes)}; the container is starting."
    return None


def here() -> tzinfo:
    """Return the hub's own time zone: expected starts are said as the site's clocks show them."""
    return datetime.now().astimezone().tzinfo or UTC


def started_sentence(session: Session, *, virtual: bool) -> str:
    """Return what to say when the server has proved itself."""
    gpus = session.request.gpus
    what = f" with {gpus} (virtual GPU)" if gpus and virtual else f" with {gpus}" if gpus else ""
    return f"The container runs on {session.node}{what}; the server is starting."
