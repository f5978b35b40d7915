"""Poll Slurm's queue once per interval for the whole hub: fast during changes, slowly at rest and in an outage.

One task calls ``client.snapshot()``. Callers register a key (``want_fast``) and wait (``fresh``, ``changed``); nobody
queries Slurm directly, so the number of queries does not depend on the number of sessions. A few polls may come before
their interval, which speeds up a single start, then they come at the interval. A failure never replaces the last
snapshot and never ends the task: after ``breaker_failures`` failures in a row the pause doubles up to
``slow_interval``, and ``health`` shows since when. The session reconciler, the form and the services use it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from carme_hub.domain.cluster.jobs import Phase, Snapshot
from carme_hub.domain.cluster.queue_position import count_in_steps
from carme_hub.domain.cluster.resources import Node
from carme_hub.errors import SlurmError, SlurmUnreachable

from .client import SlurmClient
from .cooperative import all_steps
from .state_save import StartSaver

#: Polls that may come before their interval, and after how many intervals one more such poll is allowed.
EARLY_POLLS, EARLY_EVERY = 4, 5
#: Intervals between two polls while all unsettled jobs wait in the queue.
QUEUE_INTERVALS = 3

#: Called on the event loop after every poll: the snapshot, or None after a failure, and the error message.
Listener = Callable[[Snapshot | None, str], None]


@dataclass(frozen=True, slots=True)
class WatcherSettings:
    """Intervals in seconds; see the traits of ``CarmeSlurm``."""

    fast_interval: float = 1.0
    slow_interval: float = 15.0
    nodes_interval: float = 10.0
    breaker_failures: int = 3
    poll_timeout: float = 30.0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether Slurm answers. Times are readings of the monotonic clock.

    Attributes:
        since: when the current condition began: the first failure of this outage, or the first answer after one.
        error: the newest failure, "" without one.
        failures: number of consecutive failures.
    """

    ok: bool
    since: float
    error: str = ""
    failures: int = 0


class SlurmWatcher:
    """Polls the queue for all sessions; the only place that queries snapshots and nodes."""

    def __init__(
        self,
        client: SlurmClient,
        settings: WatcherSettings | None = None,
        *,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger] | None = None,
        clock: Callable[[], float] = time.monotonic,
        saver: StartSaver | None = None,
    ) -> None:
        self.client = client
        self._saver = saver
        self.settings = settings or WatcherSettings()
        self.log = log or logging.getLogger(__name__)
        #: Number of queries so far, by kind ("snapshot", "nodes"), and of those that failed ("failed").
        self.queries: Counter[str] = Counter()
        self.latest: Snapshot | None = None
        self._clock = clock
        self._health = Health(True, clock())
        self._fast: set[Hashable] = set()
        self._queued: set[Hashable] = set()
        self._listeners: list[Listener] = []
        self._late_listeners: list[Listener] = []
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()  # set if the next poll must not wait for the interval
        self._early_budget = (float(EARLY_POLLS), clock())  # the number of early polls left at that time
        self._changed = asyncio.Condition()
        self._failed_asked = float("-inf")
        self._nodes: tuple[float, tuple[Node, ...]] | None = None
        self._nodes_task: asyncio.Task[tuple[float, tuple[Node, ...]]] | None = None

    # -- start and stop ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the task, if it is not running."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="carme-slurm-watcher")

    async def stop(self) -> None:
        """Cancel the task and wait for its end."""
        tasks = [t for t in (self._task, self._nodes_task) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = self._nodes_task = None
        if self._saver is not None:
            await self._saver.stop()

    # -- state ------------------------------------------------------------------------------------------------------

    @property
    def health(self) -> Health:
        """Whether Slurm answers, and since when."""
        return self._health

    def subscribe(self, listener: Listener, *, after_counting: bool = False) -> Callable[[], None]:
        """Call the listener after every poll, including failed ones. Return the function that unsubscribes it.

        Args:
            after_counting: call it a little later, after the jobs ahead of our waiting jobs have been counted.
        """
        listeners = self._late_listeners if after_counting else self._listeners
        listeners.append(listener)

        def unsubscribe() -> None:
            if listener in listeners:
                listeners.remove(listener)

        return unsubscribe

    def want_fast(self, key: Hashable) -> None:
        """Poll at the fast interval until ``done_fast`` is called with the same key."""
        if not self._fast:
            self._wake.set()
        self._queued.discard(key)
        self._fast.add(key)

    def want_queue(self, key: Hashable) -> None:
        """Poll every few intervals instead: the job waits in the queue, and its server's callback reports its start."""
        self._fast.discard(key)
        self._queued.add(key)

    def done_fast(self, key: Hashable) -> None:
        """Undo ``want_fast`` and ``want_queue``; ignore an unknown key."""
        self._fast.discard(key)
        self._queued.discard(key)

    @property
    def wanted(self) -> frozenset[Hashable]:
        """The keys for which it polls more often than at rest."""
        return frozenset(self._fast | self._queued)

    async def fresh(self, after: float | None = None, *, timeout: float = 30.0) -> Snapshot:
        """Return a snapshot that was queried at or after that time (default: now).

        Callers that wait at the same time share one query.

        Raises:
            SlurmUnreachable: no such snapshot within ``timeout`` seconds, or the poll for it failed.
        """
        wanted = self._clock() if after is None else after
        try:
            async with asyncio.timeout(timeout), self._changed:
                while self.latest is None or self.latest.asked < wanted:
                    if self._failed_asked >= wanted:
                        raise SlurmUnreachable(self._health.error)
                    self._wake.set()
                    await self._changed.wait()
                return self.latest
        except TimeoutError as error:
            raise SlurmUnreachable(self._health.error or f"no answer from Slurm in {timeout:g} s") from error

    async def changed(self) -> None:
        """Return after the next poll, whether it succeeded or failed."""
        async with self._changed:
            await self._changed.wait()

    async def nodes(self, max_age: float | None = None) -> tuple[Node, ...]:
        """Return all nodes, at most ``max_age`` seconds old (default: ``nodes_interval``).

        Nodes are queried only on demand; simultaneous callers share one query.

        Raises:
            SlurmUnreachable: Slurm did not answer, and there is no answer that is new enough.
        """
        return (await self.nodes_with_time(max_age))[1]

    async def nodes_with_time(self, max_age: float | None = None) -> tuple[float, tuple[Node, ...]]:
        """Return the time of the query, and the nodes as ``nodes`` returns them."""
        oldest = self._clock() - (self.settings.nodes_interval if max_age is None else max_age)
        if self._nodes is not None and self._nodes[0] >= oldest:
            return self._nodes
        if self._nodes_task is None or self._nodes_task.done():
            self._nodes_task = asyncio.get_running_loop().create_task(self._ask_nodes(), name="carme-slurm-nodes")
            # The caller may have stopped waiting; retrieve the exception, so that asyncio does not report it.
            self._nodes_task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._nodes_task)

    # -- the task ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            began = self._clock()
            await self._poll()
            await self._sleep(max(0.0, began + self._min_interval(began) - self._clock()), wake=False)
            await self._sleep(max(0.0, began + self._pause() - self._clock()), wake=True)
            self._count_early(began)

    def _min_interval(self, began: float) -> float:
        """Return the shortest time from this poll to the next, however many callers wait for it."""
        if self._breaker_open:
            return self._pause()  # do not poll more often during an outage
        return self.settings.fast_interval / (5 if self._early_polls(began) >= 1 else 1)

    def _early_polls(self, now: float) -> float:
        left, since = self._early_budget
        return min(EARLY_POLLS, left + (now - since) / (EARLY_EVERY * self.settings.fast_interval))

    def _count_early(self, began: float) -> None:
        now = self._clock()
        if now - began < 0.9 * self.settings.fast_interval:
            self._early_budget = (self._early_polls(now) - 1, now)

    async def _sleep(self, seconds: float, *, wake: bool) -> None:
        if not wake:
            await asyncio.sleep(seconds)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    @property
    def _breaker_open(self) -> bool:
        """Whether the circuit breaker is open, so that polls are rare."""
        return self._health.failures >= self.settings.breaker_failures

    def _pause(self) -> float:
        usual = self.settings.slow_interval
        if self._fast:
            usual = self.settings.fast_interval
        elif self._queued:
            usual = min(QUEUE_INTERVALS * self.settings.fast_interval, usual)
        if not self._health.failures:
            return usual
        if not self._breaker_open:
            return self.settings.fast_interval
        doublings = min(self._health.failures - self.settings.breaker_failures + 1, 16)
        return min(self.settings.fast_interval * 2.0**doublings, self.settings.slow_interval)

    async def _poll(self) -> None:
        asked = self._clock()
        self.queries["snapshot"] += 1
        snapshot: Snapshot | None = None
        error = ""
        try:
            async with asyncio.timeout(self.settings.poll_timeout):
                snapshot = await self.client.snapshot()
        except SlurmError as failure:
            error = str(failure) or type(failure).__name__
        except TimeoutError:
            error = f"no answer from Slurm in {self.settings.poll_timeout:g} s"
        except Exception as failure:  # a bug must not end the only task that polls
            self.log.exception("The poll of the queue failed with an unexpected error")
            error = f"{type(failure).__name__}: {failure}"
        self._record(asked, snapshot, error)
        if self._saver is not None and snapshot is not None:
            self._saver.note_starts(snapshot)
        self._notify(self._listeners, snapshot, error)
        async with self._changed:
            self._changed.notify_all()
        if snapshot is not None and any(job.phase is Phase.WAITING for job in snapshot.ours):
            try:
                await all_steps(count_in_steps(snapshot))
            except Exception:  # then the progress shows no queue position
                self.log.exception("The queue positions could not be counted")
        self._notify(self._late_listeners, snapshot, error)

    def _notify(self, listeners: Iterable[Listener], snapshot: Snapshot | None, error: str) -> None:
        for listener in tuple(listeners):
            try:
                listener(snapshot, error)
            except Exception:  # a bug in one listener must not affect the others
                self.log.exception("A listener of the Slurm watcher failed")

    def _record(self, asked: float, snapshot: Snapshot | None, error: str) -> None:
        before = self._health
        if snapshot is not None:
            self.latest = snapshot
            if not before.ok:
                self.log.info("Slurm answers again after %.0f s (%s)", self._clock() - before.since, before.error)
                self._health = Health(True, snapshot.answered)
            return
        self.queries["failed"] += 1
        self._failed_asked = asked
        if before.ok:
            self.log.warning("Slurm does not answer; sessions are kept as they are: %s", error)
        self._health = Health(False, asked if before.ok else before.since, error, before.failures + 1)

    async def _ask_nodes(self) -> tuple[float, tuple[Node, ...]]:
        asked = self._clock()
        self.queries["nodes"] += 1
        try:
            async with asyncio.timeout(self.settings.poll_timeout):
                nodes = await self.client.nodes()
        except TimeoutError as error:
            raise SlurmUnreachable(f"no answer from Slurm in {self.settings.poll_timeout:g} s") from error
        self._nodes = (asked, nodes)
        return self._nodes
