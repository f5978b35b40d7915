"""One hub's part of one box: it gives out GPUs, keeps time limits, and ends what nobody wants any more.

Everything it does follows from two things that survive a crash: the labels of the containers, and the hub's database,
which says which sessions are wanted. A container of this hub whose session the database does not know is ended; so a
stop that the engine did not answer, and a start that the hub did not live to see, are made good by looking.
An engine that does not answer proves nothing: then nothing is ended, and nothing is given.
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

#: Seconds that a container without a wanted session, or one that was made and not started, is left alone.
PATIENCE = 30.0
UNSTARTED = 600.0
#: Seconds that a container which has ended by itself is kept, for its exit status and its log.
KEPT = 600.0
TIME_LIMIT = "The time limit was reached."


class BoxReconciler:
    """One for a hub.

    Args:
        overcommit: how many times the machine's CPUs and its memory may be given out.
        whose: prefix and identity of this hub, as in the labels.
        interval: seconds between two looks.
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
        self._giving = asyncio.Lock()
        self._wanted: set[str] = set()
        self._doubtful: dict[str, float] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._box: Box | None = None
        self._loop_task: asyncio.Task[None] | None = None
        self._looked = -1e9
        self.latest: tuple[Container, ...] = ()
        self.seen = 0.0
        self.silent_since = 0.0
        self.silence = ""
        #: (user, server name) to when and why the last session was ended by the keeper itself.
        self.ends: dict[tuple[str, str], tuple[float, str]] = {}

    # -- its life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Look once, and go on looking; an engine that is not there yet is waited for."""
        await self.look()
        self._loop_task = asyncio.get_running_loop().create_task(self._keep(), name="carme-box")

    async def stop(self) -> None:
        """End the background work; containers go on."""
        for task in (self._loop_task, *self._ending.values()):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self.engine.close()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self.look()

    async def box(self) -> Box:
        """Return what there is to give.

        Raises:
            EngineUnreachable: the engine has not said yet how large the machine is.
        """
        if self._box is None:
            cpus, memory = await self.engine.size()
            more_cpus, more_memory = self._overcommit
            self._box = Box(int(cpus * more_cpus), int(memory * more_memory), self._gpus)
        return self._box

    def cluster(self) -> Cluster:
        """Return the box as it was at the last look, for pages."""
        if self._box is None:
            return Cluster(silent_since=self.silent_since, queue=False)
        return self._box.as_cluster(self.latest, seen=self.seen, silent_since=self.silent_since)

    # -- looking ------------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Ask the engine once for everybody, and do what follows from the answer."""
        try:
            await self.box()
            await self._list()
        except EngineUnreachable as error:
            if not self.silent_since:
                self.log.error("%s. Nothing is ended and nothing is given until it answers", error)
            self.silent_since, self.silence = self.silent_since or self.now(), str(error)
            return
        if self.silent_since:
            self.log.info("The Docker engine answers again")
        self.silent_since, self.silence = 0.0, ""
        try:
            claimed = self._claimed()
        except SQLAlchemyError as error:
            self.log.error("The hub's database does not say which sessions are wanted: %s", error)
            return
        for container in self.latest:
            if container.labels.get("carme.prefix") == self._prefix:
                self._judge(container, claimed)
        for id in self._doubtful.keys() - {c.id for c in self.latest}:
            del self._doubtful[id]

    async def _list(self) -> tuple[Container, ...]:
        self.latest = await self.engine.containers()
        self._looked, self.seen = self.monotonic(), self.now()
        return self.latest

    def _judge(self, container: Container, claimed: set[str]) -> None:
        ours = container.labels.get("carme.hub") == self._hub
        if container.over:
            self._doubt(container, KEPT)
        elif container.ends and self.now() >= container.ends:
            self._end(container, TIME_LIMIT)
        elif ours and container.session not in claimed:
            self._doubt(container, PATIENCE)
        elif container.state == "created":
            self._doubt(container, UNSTARTED)
        else:
            self._doubtful.pop(container.id, None)

    def _doubt(self, container: Container, patience: float) -> None:
        now = self.monotonic()
        if now - self._doubtful.setdefault(container.id, now) > patience:
            self._end(container, "")

    def _claimed(self) -> set[str]:
        """Return the sessions that are wanted; the database is asked only where memory does not say."""
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
        self.log.info("Ending %s of %s: %s", container.session, container.server, why or "nobody wants it")
        task = asyncio.get_running_loop().create_task(self._end_quietly(container))
        self._ending[container.id] = task
        task.add_done_callback(lambda _task: self._ending.pop(container.id, None))

    async def _end_quietly(self, container: Container) -> None:
        try:
            await self.end(container.id)
        except EngineError as error:
            self.log.warning("Session %s is not ended yet: %s", container.session, error)  # the next look tries again

    async def end(self, id: str) -> None:
        """End a container and remove it."""
        await self.engine.stop(id, self._grace)
        await self.engine.remove(id)
        self.latest = tuple(c for c in self.latest if c.id != id)

    # -- sessions -----------------------------------------------------------------------------------------------------

    def want(self, session: str) -> None:
        """Remember that a session is wanted; the hub's database says so too."""
        self._wanted.add(session)

    def unwant(self, session: str) -> None:
        """Forget a session; what is left of it is ended at one of the next looks, once the database forgets it too."""
        self._wanted.discard(session)

    async def place(self, request: Request, arguments: Callable[[tuple[str, ...]], Awaitable[Arguments]]) -> str:
        """Give GPUs to a request and make its container, without starting it; return the container's id.

        The label is written by the same call that makes the container, and read back before anybody starts it: should
        another container name one of the same GPUs (a second hub on this engine, or a call that was given up and came
        through late), this one steps back. So of two that hold the same GPU at most one is ever started.

        Raises:
            Refused: not enough is free.
            EngineUnreachable: nothing has been started.
        """
        async with self._giving:
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
        raise EngineRejected("another program gives out the GPUs of this machine too")

    async def run(self, id: str) -> None:
        """Start a container that has been made, unless another one holds one of its GPUs.

        Raises:
            EngineRejected: the engine cannot start it, or may not; it has been removed.
            EngineUnreachable: nobody knows whether it runs; asking again is safe.
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

    async def of(self, session: str) -> Container | None:
        """Return a session's container; None only where the engine says so twice, the second time asked afterwards."""
        for _ in range(2):
            found = next((c for c in await self._list() if c.session == session), None)
            if found is not None:
                return found
        return None

    async def verdict(self, session: str) -> int | None:
        """Return None while a session may run, its exit status once it is proved to have ended.

        Raises:
            EngineUnreachable: nobody knows.
        """
        recent = self.monotonic() - self._looked < 3 * self._interval
        known = next((c for c in self.latest if c.session == session), None)
        if recent and known is not None and not known.over:
            return None
        container = await self.of(session)
        if container is None:
            return 1
        if not container.over:
            return None
        details = await self.engine.inspect(container.id)
        return details.exit_code if details is not None else 1

    async def details(self, session: str) -> tuple[str, Details] | None:
        """Return a session's container looked at by itself, None where it is gone."""
        container = await self.of(session)
        details = await self.engine.inspect(container.id) if container is not None else None
        return (container.id, details) if container is not None and details is not None else None

    async def end_server(self, user: str, server: str) -> None:
        """End what is left of earlier sessions of a server, so that there are never two."""
        for container in await self._list():
            if container.server == (user, server) and container.labels.get("carme.prefix") == self._prefix:
                await self.end(container.id)
