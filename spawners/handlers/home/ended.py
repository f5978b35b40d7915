"""What has ended of a user's jobs in the last days, from Slurm's accounting, for the home page.

Accounting is asked again only when the user's jobs in the queue have changed, or after a while, so that open pages cost
it nothing. A page waits a moment for the answer, and otherwise shows what is known from before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.own_jobs.ended import EndedJob, folded, last_of
from carme_hub.errors import SlurmError
from carme_hub.spawners.hub.shared import HubContext
from carme_hub.spawners.jobs.ended import DAYS, MOST_ROWS

#: Seconds for which a page waits, for which an answer is good while nothing changes, and at least.
PAGE_WAIT, FRESH, AT_LEAST = 1.0, 900.0, 30.0
#: Queries at the same time, and users whose answers are kept.
AT_ONCE, MOST_USERS = 2, 1000


@dataclass(frozen=True, slots=True)
class EndedJobs:
    """The newest jobs that have ended, tasks of an array together, and how many others there are."""

    groups: Sequence[Sequence[EndedJob]] = ()
    left_out: int = 0

    @property
    def ids(self) -> list[int]:
        """The numbers of the jobs of which the page says what they used."""
        return [last_of(some).id for some in self.groups]


@dataclass(slots=True)
class _Known:
    """The answer for one user, when it was asked for, and the jobs that were in the queue then."""

    asked: float = float("-inf")
    live: frozenset[int] = frozenset()
    ended: EndedJobs = field(default_factory=EndedJobs)
    task: asyncio.Task[None] | None = None


class EndedLookup:
    """Reads what has ended of users' jobs."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def for_user(self, hub: HubContext | None, user: str) -> EndedJobs:
        """Return what has ended of a user's jobs, as far as it is known soon."""
        if hub is None or hub.watcher.latest is None:
            return EndedJobs()
        known = self._known.setdefault(user, _Known())
        while len(self._known) > MOST_USERS:
            self._known.pop(next(iter(self._known)))
        live = frozenset(job.id for job in hub.watcher.latest.of_user(user) if job.phase is not Phase.TERMINAL)
        age = time.monotonic() - known.asked
        if known.task is None and age >= (FRESH if live == known.live else AT_LEAST):
            known.asked, known.live = time.monotonic(), live
            known.task = asyncio.get_running_loop().create_task(self._ask(hub, user, known), name="carme-ended-jobs")
        if known.task is not None:
            await asyncio.wait([known.task], timeout=PAGE_WAIT)
        return known.ended

    def known(self, user: str) -> EndedJobs:
        """Return what was last read of a user's jobs."""
        return self._known[user].ended if user in self._known else EndedJobs()

    async def _ask(self, hub: HubContext, user: str, known: _Known) -> None:
        try:
            async with self._slots:
                found = await hub.own_jobs.ended(user, time.time() - DAYS * 86400)
            # The hub's own jobs have cards.
            known.ended = EndedJobs(*folded([job for job in found if not job.is_ours], MOST_ROWS))
        except SlurmError as error:
            hub.log.warning("What has ended of %s's jobs is not read: %s", user, error)
        finally:
            known.task = None
