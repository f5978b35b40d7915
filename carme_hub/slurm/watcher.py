"""One look at the queue per interval for everybody: fast while something changes, slow at rest, patient in an outage.

One task asks ``client.snapshot()``. Whoever needs to know registers a key (``want_fast``) and waits (``fresh``,
``changed``); nobody asks on their own, so the number of queries does not depend on the number of sessions: a few looks
may come before their interval, which is what a lone start needs, and then they come at the interval. A failure
never replaces the last answer and never ends the task: after ``breaker_failures`` of them in a row the pause doubles
up to ``slow_interval``, and ``health`` says since when.
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

#: Looks that may come before their interval, and after how many intervals there is one more such look.
EARLY, EARLY_EVERY = 4, 5
#: Intervals between two looks while all that is not settled waits in the queue.
QUEUE = 3

#: Called on the loop after every look: the snapshot, or None when it failed, and the failure's words.
Listener = Callable[[Snapshot | None, str], None]


@dataclass(frozen=True, slots=True)
class WatcherSettings:
    """Intervals in seconds; see the traits of ``CarmeSlurm``."""

    fast_interval: float = 1.0
    slow_interval: float = 15.0
    nodes_interval: float = 10.0
    breaker_failures: int = 3
    look_timeout: float = 30.0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether Slurm answers. Times are readings of the monotonic clock.

    Attributes:
        since: when the present condition began: the first failure of this outage, or the first answer after one.
        error: the newest failure, "" while all is well.
        failures: in a row.
    """

    ok: bool
    since: float
    error: str = ""
    failures: int = 0


class SlurmWatcher:
    """Looks at the queue for all sessions; the only place that asks for snapshots and nodes."""

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
        #: Number of queries put so far, by kind ("snapshot", "nodes"), and of those that failed ("failed").
        self.queries: Counter[str] = Counter()
        self.latest: Snapshot | None = None
        self._clock = clock
        self._health = Health(True, clock())
        self._fast: set[Hashable] = set()
        self._queued: set[Hashable] = set()
        self._listeners: list[Listener] = []
        self._later: list[Listener] = []
        self._task: asyncio.Task[None] | None = None
        self._now = asyncio.Event()  # somebody cannot wait for the interval
        self._early = (float(EARLY), clock())  # how many early looks there were at that time
        self._changed = asyncio.Condition()
        self._failed_asked = float("-inf")
        self._nodes: tuple[float, tuple[Node, ...]] | None = None
        self._nodes_task: asyncio.Task[tuple[float, tuple[Node, ...]]] | None = None

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look; does nothing when it already does."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="carme-slurm-watcher")

    async def stop(self) -> None:
        """End the task and wait for it."""
        tasks = [t for t in (self._task, self._nodes_task) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = self._nodes_task = None
        if self._saver is not None:
            await self._saver.stop()

    # -- what it knows ----------------------------------------------------------------------------------------------

    @property
    def health(self) -> Health:
        """Whether Slurm answers, and since when it does or does not."""
        return self._health

    def subscribe(self, listener: Listener, *, lined_up: bool = False) -> Callable[[], None]:
        """Call the listener after every look, failed ones too. Returns the function that ends this.

        Args:
            lined_up: call it a little later, once it is known who stands in line before the jobs of ours that wait.
        """
        listeners = self._later if lined_up else self._listeners
        listeners.append(listener)

        def unsubscribe() -> None:
            if listener in listeners:
                listeners.remove(listener)

        return unsubscribe

    def want_fast(self, key: Hashable) -> None:
        """Look at the fast interval until ``done_fast`` was called with the same key."""
        if not self._fast:
            self._now.set()
        self._queued.discard(key)
        self._fast.add(key)

    def want_queue(self, key: Hashable) -> None:
        """Look every few intervals instead: it waits in the queue, and its start is told by its server's callback."""
        self._fast.discard(key)
        self._queued.add(key)

    def done_fast(self, key: Hashable) -> None:
        """Take back ``want_fast`` and ``want_queue``; an unknown key does nothing."""
        self._fast.discard(key)
        self._queued.discard(key)

    @property
    def wanted(self) -> frozenset[Hashable]:
        """The keys for which it looks more often than at rest."""
        return frozenset(self._fast | self._queued)

    async def fresh(self, after: float | None = None, *, timeout: float = 30.0) -> Snapshot:
        """Return a snapshot that was asked for at or after that time (default: now).

        Callers that wait at the same time share one query.

        Raises:
            SlurmUnreachable: no such snapshot within ``timeout`` seconds, or the look made for it failed.
        """
        wanted = self._clock() if after is None else after
        try:
            async with asyncio.timeout(timeout), self._changed:
                while self.latest is None or self.latest.asked < wanted:
                    if self._failed_asked >= wanted:
                        raise SlurmUnreachable(self._health.error)
                    self._now.set()
                    await self._changed.wait()
                return self.latest
        except TimeoutError as error:
            raise SlurmUnreachable(self._health.error or f"no answer from Slurm in {timeout:g} s") from error

    async def changed(self) -> None:
        """Return after the next look, whatever came of it."""
        async with self._changed:
            await self._changed.wait()

    async def nodes(self, max_age: float | None = None) -> tuple[Node, ...]:
        """Return all nodes, not older than ``max_age`` seconds (default: ``nodes_interval``).

        Asked only when somebody wants to know; callers share one query.

        Raises:
            SlurmUnreachable: Slurm did not answer now, and no answer that young is there.
        """
        return (await self.nodes_asked(max_age))[1]

    async def nodes_asked(self, max_age: float | None = None) -> tuple[float, tuple[Node, ...]]:
        """Return when Slurm was asked for its nodes, and what ``nodes`` returns."""
        oldest = self._clock() - (self.settings.nodes_interval if max_age is None else max_age)
        if self._nodes is not None and self._nodes[0] >= oldest:
            return self._nodes
        if self._nodes_task is None or self._nodes_task.done():
            self._nodes_task = asyncio.get_running_loop().create_task(self._ask_nodes(), name="carme-slurm-nodes")
            # Whoever asked may have stopped waiting; a failure that nobody is there to hear is not a fault of ours.
            self._nodes_task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._nodes_task)

    # -- the task ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            began = self._clock()
            await self._look()
            await self._sleep(max(0.0, began + self._floor(began) - self._clock()), wake=False)
            await self._sleep(max(0.0, began + self._pause() - self._clock()), wake=True)
            self._count_early(began)

    def _floor(self, began: float) -> float:
        """Return the shortest time from this look to the next, however many wait for it."""
        if self._open:
            return self._pause()  # an outage is not asked more often than that
        return self.settings.fast_interval / (5 if self._early_looks(began) >= 1 else 1)

    def _early_looks(self, now: float) -> float:
        left, since = self._early
        return min(EARLY, left + (now - since) / (EARLY_EVERY * self.settings.fast_interval))

    def _count_early(self, began: float) -> None:
        now = self._clock()
        if now - began < 0.9 * self.settings.fast_interval:
            self._early = (self._early_looks(now) - 1, now)

    async def _sleep(self, seconds: float, *, wake: bool) -> None:
        if not wake:
            await asyncio.sleep(seconds)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._now.wait()
        except TimeoutError:
            pass
        self._now.clear()

    @property
    def _open(self) -> bool:
        """Whether the breaker keeps us from asking often."""
        return self._health.failures >= self.settings.breaker_failures

    def _pause(self) -> float:
        usual = self.settings.slow_interval
        if self._fast:
            usual = self.settings.fast_interval
        elif self._queued:
            usual = min(QUEUE * self.settings.fast_interval, usual)
        if not self._health.failures:
            return usual
        if not self._open:
            return self.settings.fast_interval
        doublings = min(self._health.failures - self.settings.breaker_failures + 1, 16)
        return min(self.settings.fast_interval * 2.0**doublings, self.settings.slow_interval)

    async def _look(self) -> None:
        asked = self._clock()
        self.queries["snapshot"] += 1
        snapshot: Snapshot | None = None
        error = ""
        try:
            async with asyncio.timeout(self.settings.look_timeout):
                snapshot = await self.client.snapshot()
        except SlurmError as failure:
            error = str(failure) or type(failure).__name__
        except TimeoutError:
            error = f"no answer from Slurm in {self.settings.look_timeout:g} s"
        except Exception as failure:  # a fault of ours must not end the only task that looks
            self.log.exception("The look at the queue failed in an unforeseen way")
            error = f"{type(failure).__name__}: {failure}"
        self._note(asked, snapshot, error)
        if self._saver is not None and snapshot is not None:
            self._saver.look(snapshot)
        self._tell(self._listeners, snapshot, error)
        async with self._changed:
            self._changed.notify_all()
        if snapshot is not None and any(job.phase is Phase.WAITING for job in snapshot.ours):
            try:
                await all_steps(count_in_steps(snapshot))
            except Exception:  # then nobody is told who is ahead of them
                self.log.exception("Who stands in line cannot be said")
        self._tell(self._later, snapshot, error)

    def _tell(self, listeners: Iterable[Listener], snapshot: Snapshot | None, error: str) -> None:
        for listener in tuple(listeners):
            try:
                listener(snapshot, error)
            except Exception:  # one listener's fault is not another's
                self.log.exception("A listener of the Slurm watcher failed")

    def _note(self, asked: float, snapshot: Snapshot | None, error: str) -> None:
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
            async with asyncio.timeout(self.settings.look_timeout):
                nodes = await self.client.nodes()
        except TimeoutError as error:
            raise SlurmUnreachable(f"no answer from Slurm in {self.settings.look_timeout:g} s") from error
        self._nodes = (asked, nodes)
        return self._nodes
