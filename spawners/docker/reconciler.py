"""The reconciler of one hub's containers: it allocates GPUs, enforces time limits, and ends unwanted containers.

It works from two records that survive a crash: the labels of the containers, and the hub's database, which has the
wanted sessions. It ends a container of this hub whose session is not in the database; so it completes a stop that the
engine did not answer, and cleans up after a start during which the hub died.
While the engine does not answer, nothing is ended and nothing is allocated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from jupyterhub import orm
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import EngineError, EngineRejected, EngineUnreachable
from carme_hub.spawners.docker.container import Arguments
from carme_hub.spawners.docker.engine import Container, Details, Engine
from carme_hub.spawners.docker.gpu_allocation import Box, Gpu, conflict

#: Seconds before the end of a container whose session is not wanted, and of one that was created and never started.
UNWANTED_KEPT = 30.0
UNSTARTED_KEPT = 600.0
#: Seconds that a container which has ended by itself is kept for its exit status and log.
ENDED_KEPT = 600.0
TIME_LIMIT = "The time limit was reached."


class ContainerReconciler:
    """The reconciler; one for each hub.

    Args:
        overcommit: how many times the machine's CPUs and memory may be allocated.
        whose: prefix and identity of this hub, as in the labels.
        interval: seconds between two refreshes.
    """

    def __init__(
        self,
        engine: Engine,
        gpus: Sequence[Gpu],
        hub_db: Callable[[], Any],
        log: logging.Logger,
        *,
        whose: tuple[str, str],
        overcommit: tuple[float, float] = (1.0, 1.0),
        grace: int = 10,
        interval: float = 5.0,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.log = log
        self.now = now
        self.monotonic = monotonic
        self._gpus = tuple(gpus)
        self._hub_db = hub_db
        self.whose = self._prefix, self._hub = whose
        self._overcommit = overcommit
        self._grace = grace
        self._interval = interval
        self._allocation_lock = asyncio.Lock()
        self._wanted: set[str] = set()
        self._suspects: dict[str, float] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._box: Box | None = None
        self._loop_task: asyncio.Task[None] | None = None
        self._refreshed_at = -1e9
        self.latest: tuple[Container, ...] = ()
        self.seen = 0.0
        self.silent_since = 0.0
        self.problem = ""
        #: (user, server name) to when and why the reconciler ended the last session.
        self.ends: dict[tuple[str, str], tuple[float, str]] = {}

    # -- start and end ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Refresh once, and start the loop; the engine need not answer yet."""
        await self.refresh()
        self._loop_task = asyncio.get_running_loop().create_task(self._keep(), name="carme-box")

    async def stop(self) -> None:
        """End the background tasks; containers continue."""
        for task in (self._loop_task, *self._ending.values()):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self.engine.close()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self.refresh()

    async def box(self) -> Box:
        """Return the machine's resources.

        Raises:
            EngineUnreachable: the engine has not reported the machine's size yet.
        """
        if self._box is None:
            cpus, memory = await self.engine.size()
            more_cpus, more_memory = self._overcommit
            self._box = Box(int(cpus * more_cpus), int(memory * more_memory), self._gpus)
        return self._box

    def cluster(self) -> Cluster:
        """Return the machine as of the last refresh, for pages."""
        if self._box is None:
            return Cluster(silent_since=self.silent_since, queue=False)
        return self._box.as_cluster(self.latest, seen=self.seen, silent_since=self.silent_since)

    # -- reconciling --------------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Query the engine once for all sessions, and act on the answer."""
        try:
            await self.box()
            await self._list()
        except EngineUnreachable as error:
            if not self.silent_since:
                self.log.error("%s. Nothing is ended and nothing is allocated until it answers", error)
            self.silent_since, self.problem = self.silent_since or self.now(), str(error)
            return
        if self.silent_since:
            self.log.info("The Docker engine answers again")
        self.silent_since, self.problem = 0.0, ""
        try:
            claimed = self._claimed()
        except SQLAlchemyError as error:
            self.log.error("The hub's database does not say which sessions are wanted: %s", error)
            return
        for container in self.latest:
            if container.labels.get("carme.prefix") == self._prefix:
                self._judge(container, claimed)
        for id in self._suspects.keys() - {c.id for c in self.latest}:
            del self._suspects[id]

    async def _list(self) -> tuple[Container, ...]:
        self.latest = await self.engine.containers()
        self._refreshed_at, self.seen = self.monotonic(), self.now()
        return self.latest

    def _judge(self, container: Container, claimed: set[str]) -> None:
        ours = container.labels.get("carme.hub") == self._hub
        if container.has_ended:
            self._end_after(container, ENDED_KEPT)
        elif container.ends and self.now() >= container.ends:
            self._end(container, TIME_LIMIT)
        elif ours and container.session not in claimed:
            self._end_after(container, UNWANTED_KEPT)
        elif container.state == "created":
            self._end_after(container, UNSTARTED_KEPT)
        else:
            self._suspects.pop(container.id, None)

    def _end_after(self, container: Container, max_wait: float) -> None:
        now = self.monotonic()
        if now - self._suspects.setdefault(container.id, now) > max_wait:
            self._end(container, "")

    def _claimed(self) -> set[str]:
        """Return the wanted sessions; the database is queried only for sessions unknown in memory."""
        unknown = [c for c in self.latest if c.session not in self._wanted]
        if not unknown:
            return self._wanted
        users = {c.server[0] for c in unknown}
        rows = self._hub_db().query(orm.Spawner).join(orm.User).filter(orm.User.name.in_(users))
        return self._wanted | {str((row.state or {}).get("session", "")) for row in rows}

    def _end(self, container: Container, why: str) -> None:
        if container.id in self._ending:
            return
        if why:
            self.ends[container.server] = (self.now(), why)
        self.log.info("Ending %s of %s: %s", container.session, container.server, why or "its session is not wanted")
        task = asyncio.get_running_loop().create_task(self._end_quietly(container))
        self._ending[container.id] = task
        task.add_done_callback(lambda _task: self._ending.pop(container.id, None))

    async def _end_quietly(self, container: Container) -> None:
        try:
            await self.end(container.id)
        except EngineError as error:
            self.log.warning(
                "Session %s is not ended yet: %s", container.session, error
            )  # the next refresh tries again

    async def end(self, id: str) -> None:
        """Stop a container and remove it."""
        await self.engine.stop(id, self._grace)
        await self.engine.remove(id)
        self.latest = tuple(c for c in self.latest if c.id != id)

    # -- sessions -----------------------------------------------------------------------------------------------------

    def remember_session(self, session: str) -> None:
        """Add a session to the wanted ones in memory; the hub's database has it too."""
        self._wanted.add(session)

    def forget_session(self, session: str) -> None:
        """Remove a session from the wanted ones; a later refresh ends its container if the database has none of it."""
        self._wanted.discard(session)

    async def create_container(
        self, request: Request, arguments: Callable[[tuple[str, ...]], Awaitable[Arguments]]
    ) -> str:
        """Allocate GPUs to a request and create its container, without starting it; return the container's id.

        The call that creates the container also writes the label, which is read back before the container is started.
        If another container names one of the same GPUs (by a second hub on this engine, or a call that timed out and
        took effect late), this container is removed. So of two that hold the same GPU at most one is ever started.

        Raises:
            Refused: not enough is free.
            EngineUnreachable: nothing has been started.
        """
        async with self._allocation_lock:
            box = await self.box()
            for attempt in range(4):
                ids = box.choose(request, await self._list())
                id = await self.engine.create(*await arguments(ids))
                twice = conflict(id, await self._list())
                if not twice:
                    return id
                self.log.warning("GPU %s is held by another container too; trying again", ", ".join(twice))
                await self.engine.remove(id)
                await asyncio.sleep(random.uniform(0.1, 0.5) * (attempt + 1))
        raise EngineRejected("another program allocates the GPUs of this machine too")

    async def run(self, id: str) -> None:
        """Start a container that was created, unless another one holds one of its GPUs.

        Raises:
            EngineRejected: the engine cannot start it, or another container has its GPU; it has been removed.
            EngineUnreachable: it is unknown whether it runs; a repeated call is safe.
        """
        twice = conflict(id, await self._list())
        try:
            if twice:
                raise EngineRejected(f"GPU {', '.join(twice)} is held by another container")
            await self.engine.start(id)
        except EngineRejected:
            await self.engine.remove(id)
            raise
        await self._list()

    async def find(self, session: str) -> Container | None:
        """Return a session's container; None only if two successive queries do not list it."""
        for _ in range(2):
            found = next((c for c in await self._list() if c.session == session), None)
            if found is not None:
                return found
        return None

    async def verdict(self, session: str) -> int | None:
        """Return None while a session may run, and its exit status once the engine shows that it has ended.

        Raises:
            EngineUnreachable: it is unknown.
        """
        recent = self.monotonic() - self._refreshed_at < 3 * self._interval
        known = next((c for c in self.latest if c.session == session), None)
        if recent and known is not None and not known.has_ended:
            return None
        container = await self.find(session)
        if container is None:
            return 1
        if not container.has_ended:
            return None
        details = await self.engine.inspect(container.id)
        return details.exit_code if details is not None else 1

    async def details(self, session: str) -> tuple[str, Details] | None:
        """Return the id and details of a session's container, None if it does not exist."""
        container = await self.find(session)
        details = await self.engine.inspect(container.id) if container is not None else None
        return (container.id, details) if container is not None and details is not None else None

    async def end_server(self, user: str, server: str) -> None:
        """End the containers of earlier sessions of a server, so that there are never two."""
        for container in await self._list():
            if container.server == (user, server) and container.labels.get("carme.prefix") == self._prefix:
                await self.end(container.id)
