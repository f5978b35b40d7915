"""A queue for starts of servers, so that the hub answers other requests in between.

JupyterHub's own work for a start (authentication, a token, scopes, rows of its database) blocks its event loop for 15
to 25 ms, three times per start. asyncio runs everything that is due in one iteration of the loop: when a class starts
servers at once, all of that is due at once, and every other request waits for all of it. ``StartQueue.alone`` admits
one such piece of work at a time, in the order of arrival; the next one follows after a pause of half as long as the
piece took, 50 ms at most. So other requests, and the other work of starts, get the rest of the loop's time.

The longest piece is ``User.spawn`` until it calls the spawner. ``StartInPieces`` returns to the loop at the hooks that
JupyterHub awaits in between, only where JupyterHub has just committed: at the end of any request it rolls back what is
not committed.

A request that has begun is answered before a start continues. JupyterHub answers in several iterations of the loop, and
waits for a thread during authentication; pieces of starts, of 2 to 10 ms each, would run in between.
``StartQueue.paced`` runs a coroutine that, after each await, waits until no request is being answered, for
``REQUEST_WAIT`` seconds at most, if more than ``FEW_STARTS`` servers start. Between two pieces are ``LOOP_ITERATIONS``
iterations, in which new requests begin.
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

#: The pause after a piece of work, as a multiple of its time, and its maximum in seconds. With these values 150 clicks
#: within ten seconds enter within twenty on two slow processors; with 1.0 other requests waited half as long again.
PAUSE, MAX_PAUSE = 0.5, 0.05
#: Seconds after which the next one enters although the one before has not finished.
MAX_HOLD = 0.25
#: Seconds for which a piece of a start waits for requests that are being answered, and for which each request counts
#: as such: a request that takes longer waits for something else.
REQUEST_WAIT, MAX_REQUEST = 0.03, 0.1
#: With so many starts at once none waits for requests: they block the loop for a short time only.
FEW_STARTS = 2
#: Iterations of the loop between two pieces: tornado needs so many to read a request from its connection.
LOOP_ITERATIONS = 4
#: Lets the next start enter; set for the start to which the running task belongs.
_leave: ContextVar[Callable[[], None] | None] = ContextVar("leave", default=None)


class StartQueue:
    """Admits one piece of work of a start at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._step = asyncio.Lock()
        self._requests: set[asyncio.Task[Any]] = set()
        #: Number of starts that are running.
        self.starts = 0

    def request_begins(self) -> None:
        """Register the running task as one that answers a request, until it is done or takes too long."""
        if (task := asyncio.current_task()) is not None and task not in self._requests:
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
            asyncio.get_running_loop().call_later(MAX_REQUEST, self._requests.discard, task)

    async def step(self) -> None:
        """Wait for requests that have begun; then only the caller's start runs for ``LOOP_ITERATIONS`` iterations."""
        await self._step.acquire()
        loop = asyncio.get_running_loop()
        try:
            latest = loop.time() + REQUEST_WAIT if self.starts > FEW_STARTS else 0.0
            while self._requests and (left := latest - loop.time()) > 0:
                await asyncio.wait(self._requests, timeout=left)
        finally:
            loop.call_soon(self._release_step, LOOP_ITERATIONS)

    def _release_step(self, turns: int) -> None:
        """Let the next piece run after so many iterations of the loop."""
        if turns > 1:
            asyncio.get_running_loop().call_soon(self._release_step, turns - 1)
        else:
            self._step.release()

    async def paced(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of a start; after each await it continues when ``step`` returns."""
        return await _Paced(work, self.step)

    async def enter(self) -> Callable[[], None]:
        """Wait in the queue; return a function that lets the next one enter, which may be called more than once."""
        await self._lock.acquire()
        try:
            await self.step()
        except BaseException:
            self._lock.release()
            raise
        loop = asyncio.get_running_loop()
        began = loop.time()
        over: asyncio.Future[None] = loop.create_future()
        # A user directory that does not answer must not block all starts and stops.
        latest = loop.call_later(MAX_HOLD, over.cancel)

        def done(_over: object) -> None:  # in the loop's next iteration, after the work that follows directly
            latest.cancel()
            loop.call_later(min(PAUSE * (loop.time() - began), MAX_PAUSE), self._lock.release)

        over.add_done_callback(done)

        def leave() -> None:
            over.cancel()

        return leave

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Wait in the queue; let the next one enter when the block ends, or does not end in time."""
        leave = await self.enter()
        try:
            yield
        finally:
            leave()


#: One queue for each hub of this process; only tests have several.
_queues: WeakKeyDictionary[Any, StartQueue] = WeakKeyDictionary()


class _Paced(Awaitable[T]):
    """A coroutine that awaits ``step`` each time before it continues."""

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
            except BaseException as error:  # noqa: BLE001  the coroutine handles cancellations too
                failed = error


def start_queue(settings: Mapping[str, Any]) -> StartQueue:
    """Return the queue of the hub with these tornado settings, of which its handlers have a copy.

    A spawner that is started outside of a hub gets a queue of its own.
    """
    hub = settings.get("hub")
    return StartQueue() if hub is None else _queues.setdefault(hub, StartQueue())


def queue_starts(user: type[Any]) -> None:
    """Make JupyterHub's own part of a start wait in the queue; the server is pending meanwhile, and can be stopped."""
    spawn = user.spawn
    if getattr(spawn, "queued", False):
        return

    @functools.wraps(spawn)
    async def queued(self: Any, *args: Any, **more: Any) -> Any:
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

    setattr(queued, "queued", True)  # noqa: B010
    setattr(user, "spawn", queued)  # noqa: B010


def answer_requests_first(handler: type[Any]) -> None:
    """Register each request to handlers of this class with the queue, except those that start or stop servers."""
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
    """A mixin before the class of a handler that starts or stops servers, which then waits in the queue."""

    if TYPE_CHECKING:
        settings: dict[str, Any]

    def queued(self) -> bool:
        """Return whether this request waits in the queue; starts do not wait for such requests."""
        return True

    async def prepare(self) -> None:
        """Wait in the queue, then let JupyterHub authenticate the request."""
        if not self.queued():
            await super().prepare()  # type: ignore[misc]
            return
        queue = start_queue(self.settings)
        async with queue.alone():
            await queue.paced(super().prepare())  # type: ignore[misc]
            await queue.step()  # the request's own work is a further piece


class StartInPieces(Base):
    """A mixin before a spawner's class: JupyterHub's part of its start returns to the event loop in between."""

    async def _get_oauth_client_allowed_scopes(self) -> Any:
        await asyncio.sleep(0)
        return await super()._get_oauth_client_allowed_scopes()

    async def run_auth_state_hook(self, auth_state: Any) -> None:
        """Return to the event loop first; then do as JupyterHub."""
        await asyncio.sleep(0)
        await super().run_auth_state_hook(auth_state)

    async def apply_group_overrides(self) -> None:
        """Return to the event loop first; then do as JupyterHub."""
        await asyncio.sleep(0)
        await super().apply_group_overrides()

    def run_pre_spawn_hook(self) -> Any:
        """Let the next start enter: from here on this start mostly waits for Slurm and threads."""
        if (leave := _leave.get()) is not None:
            leave()
        return super().run_pre_spawn_hook()


class QueuedServerHandler(QueuedHandler, UserServerAPIHandler):
    """``/hub/api/users/NAME/server…``: starts and stops wait in the queue."""

    def post(self, *args: Any, **more: Any) -> Awaitable[None]:
        """Start a server as JupyterHub does, in pieces."""
        return start_queue(self.settings).paced(super().post(*args, **more))

    def delete(self, *args: Any, **more: Any) -> Awaitable[None]:
        """Stop a server as JupyterHub does, in pieces."""
        return start_queue(self.settings).paced(super().delete(*args, **more))


class QueuedProgressHandler(QueuedHandler, SpawnProgressAPIHandler):
    """``…/progress``: the page of each pending start requests it once."""

    @needs_scope("read:servers")
    async def get(self, user_name: str, server_name: str = "") -> None:
        """Send progress events; for a failed start whose rest is still being ended, wait and then send the reason.

        JupyterHub 6.1.1 answers meanwhile that no server is starting (400).
        """
        user = self.find_user(user_name)
        spawner = user.spawners.get(server_name or "") if user is not None else None
        if spawner is not None and (failing := failing_start(spawner)) is not None:
            # Keeps a proxy in between from closing the idle connection.
            asyncio.ensure_future(self.keepalive())  # noqa: RUF006  ends with the request
            await asyncio.wait([failing])
        await super().get(user_name, server_name)


def failing_start(spawner: Any) -> asyncio.Future[None] | None:
    """Return the future of a start that has failed and whose rest is still being ended, None otherwise."""
    future: asyncio.Future[None] | None = spawner._spawn_future
    return future if spawner.pending == "stop" and future is not None and not future.done() else None


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [
    (r"/api/users/([^/]+)/server", QueuedServerHandler),
    (r"/api/users/([^/]+)/server/progress", QueuedProgressHandler),
    (r"/api/users/([^/]+)/servers/([^/]*)", QueuedServerHandler),
    (r"/api/users/([^/]+)/servers/([^/]*)/progress", QueuedProgressHandler),
]
