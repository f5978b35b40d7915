"""Progress events of a start, as the page of a pending start shows them: sentences from Slurm's state of the job.

Both spawners write them; JupyterHub reads them from ``Spawner.progress``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.queue_position import ahead_of
from carme_hub.domain.cluster.reasons import waiting_sentence
from carme_hub.domain.sessions.session import Session
from carme_hub.spawners.hub.shared import HubContext

Event = tuple[int, str]
#: The percentage at which Slurm has allocated nodes.
ALLOCATED = 50


@dataclass(frozen=True, slots=True)
class _Said:
    """One event: its number, the percentage, the sentence, and what the sentence is about where it is one of many."""

    number: int
    percent: int
    message: str
    about: str = ""


class Progress:
    """The events of one start, for any number of readers."""

    def __init__(self) -> None:
        self._events: list[_Said] = []
        self._number = 0
        self._more = asyncio.Event()
        #: ``time.monotonic()`` when the node last told how far its copy of data is; 0 = it has not.
        self.copy_told = 0.0

    def say(self, percent: int, message: str, about: str = "") -> None:
        """Add a sentence; the percentage never decreases, and a repetition of the last sentence is left out.

        Args:
            about: what it tells the state of; such a sentence takes the place of one before it about the same, here
                and on the page, so that an hour of copying is one line.
        """
        if self._events:
            last = self._events[-1]
            percent = max(percent, last.percent)
            if last.message == message:
                return
            if about and last.about == about:
                self._events.pop()
        self._number += 1
        self._events.append(_Said(self._number, percent, message, about))
        self._more.set()
        self._more = asyncio.Event()

    def put(self, event: Event | None) -> None:
        """Add an event unless it is None, or what the node has told since says more."""
        if event is not None and not (event[0] == ALLOCATED and self.copy_told):
            self.say(*event)

    @property
    def last(self) -> str:
        """The newest sentence with a full stop; "" without any."""
        return f"{self._events[-1].message.rstrip('.')}." if self._events else ""

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield all events so far, then each new one."""
        seen = 0
        while True:
            while new := next((each for each in self._events if each.number > seen), None):
                seen = new.number
                event = {"progress": new.percent, "message": new.message}
                yield {**event, "about": new.about} if new.about else event
            await self._more.wait()


def waiting_event(hub: HubContext, id: str) -> Event | None:
    """Return the event for a session whose server has not called back yet, None if there is no news."""
    session = hub.registry.current(id)
    health = hub.watcher.health
    if session is None or session.port:
        return None
    if not health.ok:
        return 10, f"Slurm does not answer ({health.error}). Nothing is lost; the start continues by itself."
    snapshot = hub.watcher.latest
    found = snapshot.named(session.job_name, session.user) if snapshot is not None else ()
    live = [job for job in found if job.phase is not Phase.TERMINAL]
    if snapshot is None or not live:
        return None
    job = live[-1]
    if job.phase is Phase.WAITING:
        sentence = waiting_sentence(job, ahead_of(job, snapshot), time.time(), local_timezone())
        return 20, sentence[:1].upper() + sentence[1:]
    if job.phase is Phase.ACTIVE:
        next_ = "data is copied before the start" if session.request.stage.get("in") else "the container is starting"
        return ALLOCATED, f"Slurm has allocated {', '.join(job.nodes)}; {next_}."
    return None


def local_timezone() -> tzinfo:
    """Return the hub's own time zone, in which expected starts are shown."""
    return datetime.now().astimezone().tzinfo or UTC


def started_sentence(session: Session, *, virtual: bool) -> str:
    """Return the sentence for a server that has called back."""
    gpus = session.request.gpus
    resources = f" with {gpus} (virtual GPU)" if gpus and virtual else f" with {gpus}" if gpus else ""
    return f"The container runs on {session.node}{resources}; the server is starting."
