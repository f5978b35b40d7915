"""Starts go in one after the other, so that the hub answers everybody else in between.

What JupyterHub itself does for a start (who asks, a token, scopes, rows of its database) holds its event loop for 15 to
25 ms, three times a start. asyncio runs whatever is due in one turn of the loop: when a class clicks at once, all of
that is due at once, and whoever only asks for a page waits for all of it. ``StartQueue.alone`` lets one such piece of
work in, and the next one, in the order in which they came, when one and a half times as long has passed as that one
took: what is left of the loop is for everybody else, and for what else a start does. Whoever starts alone waits for the
pause after its own look-up, 50 ms at most.

The longest piece is ``User.spawn`` until it has the spawner begin. ``StartInPieces`` gives the loop back at the hooks
that JupyterHub awaits in between: only where it has just stored what it did, for at the end of anybody's
request it rolls back what is not stored.

A request that has begun is answered before a start goes on. JupyterHub answers in several turns of the loop, and waits
for a thread where it looks again who asks; pieces of starts, of 2 to 10 ms each, would be done in between.
``StartQueue.paced`` runs a coroutine that waits, wherever it would go on after an await, until no request is being
answered, for ``PATIENCE`` seconds at most, where more than a ``FEW`` start; and between two pieces are ``TURNS`` turns,
in which a request begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from jupyterhub.apihandlers.users import SpawnProgressAPIHandler, UserServerAPIHandler
from jupyterhub.scopes import needs_scope
from tornado import web

if TYPE_CHECKING:
    from jupyterhub.spawner import Spawner as Base
else:
    Base = object  # JupyterHub wants start, stop and poll of each class of its own

T = TypeVar("T")

#: Time between two of them, as a multiple of what the first one took; and in seconds at most. 150 clicks within ten
#: seconds are let in within twenty on two slow processors; with 1.0 somebody else's request waited half as long again.
PAUSE, LONGEST_PAUSE = 0.5, 0.05
#: Seconds after which the next one is let in though the one before still waits for something.
LONGEST_TURN = 0.25
#: Seconds for which a piece of a start waits for requests that are being answered, and for which each request counts:
#: one that takes longer waits for something else.
PATIENCE, LONGEST_REQUEST = 0.03, 0.1
#: Starts at once of which none waits for requests: they do not take the loop from anybody for long.
FEW = 2
#: Turns of the loop between two pieces: in so many a request is taken from its connection.
TURNS = 4
#: Lets the next one in; of the start that the running task belongs to.
_leave: ContextVar[Callable[[], None] | None] = ContextVar("leave", default=None)


class StartQueue:
    """Lets one piece of work of a start begin at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._step = asyncio.Lock()
        self._requests: set[asyncio.Task[Any]] = set()
        #: How many starts are going on.
        self.starts = 0

    def request_begins(self) -> None:
        """Note that the running task answers a request, until it is done or takes too long."""
        if (task := asyncio.current_task()) is not None and task not in self._requests:
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
            asyncio.get_running_loop().call_later(LONGEST_REQUEST, self._requests.discard, task)

    async def step(self) -> None:
        """Return when only the caller's start goes on for ``TURNS`` turns, and after requests that have begun."""
        await self._step.acquire()
        loop = asyncio.get_running_loop()
        try:
            latest = loop.time() + PATIENCE if self.starts > FEW else 0.0
            while self._requests and (left := latest - loop.time()) > 0:
                await asyncio.wait(self._requests, timeout=left)
        finally:
            loop.call_soon(self._let_step, TURNS)

    def _let_step(self, turns: int) -> None:
        """Let the next piece go on, after so many turns of the loop more."""
        if turns > 1:
            asyncio.get_running_loop().call_soon(self._let_step, turns - 1)
        else:
            self._step.release()

    async def paced(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of a start; after each await it goes on when ``step`` lets it."""
        return await _Paced(work, self.step)

    async def enter(self) -> Callable[[], None]:
        """Wait for the caller's turn; return what lets the next one in, which may be called more than once."""
        await self._lock.acquire()
        try:
            await self.step()
        except BaseException:
            self._lock.release()
            raise
        loop = asyncio.get_running_loop()
        began = loop.time()
        over: asyncio.Future[None] = loop.create_future()
        # A directory of users that does not answer must not hold up everybody's starts and stops.
        latest = loop.call_later(LONGEST_TURN, over.cancel)

        def done(_over: object) -> None:  # in the loop's next turn, so when what comes after it is done too
            latest.cancel()
            loop.call_later(min(PAUSE * (loop.time() - began), LONGEST_PAUSE), self._lock.release)

        over.add_done_callback(done)

        def leave() -> None:
            over.cancel()

        return leave

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Wait for the caller's turn, and let the next one in when the block is left, or does not end in time."""
        leave = await self.enter()
        try:
            yield
        finally:
            leave()


#: One for each hub of this process, of which there are several only in tests.
_queues: WeakKeyDictionary[Any, StartQueue] = WeakKeyDictionary()


class _Paced(Awaitable[T]):
    """A coroutine that awaits ``step`` wherever it would go on."""

    def __init__(self, work: Coroutine[Any, Any, T], step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work, self._step = work, step

    def __await__(self) -> Generator[Any, None, T]:
        failed: BaseException | None = None
        while True:
            try:
                awaited = self._work.send(None) if failed is None else self._work.throw(failed)
            except StopIteration as over:
                result: T = over.value
                return result
            failed = None
            try:
                yield awaited
                yield from self._step().__await__()
            except BaseException as error:  # noqa: BLE001  a cancellation too is the coroutine's to deal with
                failed = error


def start_queue(settings: Mapping[str, Any]) -> StartQueue:
    """Return the queue of the hub with these tornado settings, of which its handlers have a copy.

    A spawner that is started outside of a hub waits for nobody.
    """
    hub = settings.get("hub")
    return StartQueue() if hub is None else _queues.setdefault(hub, StartQueue())


def queue_starts(user: type[Any]) -> None:
    """Let JupyterHub's own part of a start wait for its turn; the server is pending meanwhile, and can be stopped."""
    spawn = user.spawn
    if getattr(spawn, "in_turn", False):
        return

    @functools.wraps(spawn)
    async def in_turn(self: Any, *args: Any, **more: Any) -> Any:
        queue = start_queue(self.settings)
        queue.starts += 1
        leave: Callable[[], None] | None = None
        try:
            leave = await queue.enter()
            _leave.set(leave)
            return await queue.paced(spawn(self, *args, **more))
        finally:
            queue.starts -= 1
            if leave is not None:
                leave()

    setattr(in_turn, "in_turn", True)  # noqa: B010
    setattr(user, "spawn", in_turn)  # noqa: B010


def answer_requests_first(handler: type[Any]) -> None:
    """Let the queue know of each request to handlers of this class, but for those that start and stop servers."""
    prepare = handler.prepare
    if getattr(prepare, "counted", False):
        return

    @functools.wraps(prepare)
    async def counted(self: Any) -> None:
        if not (isinstance(self, QueuedHandler) and self.queued()):
            start_queue(self.settings).request_begins()
        await prepare(self)

    setattr(counted, "counted", True)  # noqa: B010
    setattr(handler, "prepare", counted)  # noqa: B010


class QueuedHandler:
    """Goes before the class of a handler that starts or stops servers, which waits for its turn and other requests."""

    if TYPE_CHECKING:
        settings: dict[str, Any]

    def queued(self) -> bool:
        """Return whether this request waits; it is not one that starts wait for."""
        return True

    async def prepare(self) -> None:
        """Look up who asks when it is this request's turn."""
        if not self.queued():
            await super().prepare()  # type: ignore[misc]
            return
        queue = start_queue(self.settings)
        async with queue.alone():
            await queue.paced(super().prepare())  # type: ignore[misc]
            await queue.step()  # what is asked for is a piece of its own, still in this turn


class StartInPieces(Base):
    """Goes before a spawner's class: during its start the loop serves others in between, until its own part begins."""

    async def _get_oauth_client_allowed_scopes(self) -> Any:
        await asyncio.sleep(0)
        return await super()._get_oauth_client_allowed_scopes()

    async def run_auth_state_hook(self, auth_state: Any) -> None:
        """Give the loop back first; the rest as JupyterHub does it."""
        await asyncio.sleep(0)
        await super().run_auth_state_hook(auth_state)

    async def apply_group_overrides(self) -> None:
        """Give the loop back first; the rest as JupyterHub does it."""
        await asyncio.sleep(0)
        await super().apply_group_overrides()

    def run_pre_spawn_hook(self) -> Any:
        """Let the next start in: what comes now waits for Slurm and threads."""
        if (leave := _leave.get()) is not None:
            leave()
        return super().run_pre_spawn_hook()


class QueuedServerHandler(QueuedHandler, UserServerAPIHandler):
    """``/hub/api/users/NAME/server…``: starts and stops go in one after the other."""

    def post(self, *args: Any, **more: Any) -> Awaitable[None]:
        """Start a server, as JupyterHub does it."""
        return start_queue(self.settings).paced(super().post(*args, **more))

    def delete(self, *args: Any, **more: Any) -> Awaitable[None]:
        """Stop a server, as JupyterHub does it."""
        return start_queue(self.settings).paced(super().delete(*args, **more))


class QueuedProgressHandler(QueuedHandler, SpawnProgressAPIHandler):
    """``…/progress``: the page of each start that is going on asks for this once."""

    @needs_scope("read:servers")
    async def get(self, user_name: str, server_name: str = "") -> None:
        """Tell of a start that has failed why, also while what is left of it is being ended.

        JupyterHub 6.1.1 says meanwhile that nothing starts here (400).
        """
        user = self.find_user(user_name)
        spawner = user.spawners.get(server_name or "") if user is not None else None
        if spawner is not None and (failing := failing_start(spawner)) is not None:
            # No proxy in between takes the silence for the end.
            asyncio.ensure_future(self.keepalive())  # noqa: RUF006  ends with the request
            await asyncio.wait([failing])
        await super().get(user_name, server_name)


def failing_start(spawner: Any) -> asyncio.Future[None] | None:
    """Return the future of a start that has failed and is not done: what is left of it is being ended."""
    future: asyncio.Future[None] | None = spawner._spawn_future
    return future if spawner.pending == "stop" and future is not None and not future.done() else None


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [
    (r"/api/users/([^/]+)/server", QueuedServerHandler),
    (r"/api/users/([^/]+)/server/progress", QueuedProgressHandler),
    (r"/api/users/([^/]+)/servers/([^/]*)", QueuedServerHandler),
    (r"/api/users/([^/]+)/servers/([^/]*)/progress", QueuedProgressHandler),
]
