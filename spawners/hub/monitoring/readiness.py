"""Whether the hub is ready: its databases, Slurm and the proxy answer. ``GET /hub/ready`` for load balancers.

Nobody logs in for it, so it gives away no name, address or error text, changes nothing, and costs little: all callers
of two seconds share one check, and a part that does not answer is not asked again while the last question is open.
``/hub/health``, JupyterHub's own, says only that the process answers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from jupyterhub.handlers.pages import HealthCheckHandler
from jupyterhub.proxy import ConfigurableHTTPProxy
from tornado import web

from carme_hub.spawners.hub.shared import HubContext

log = logging.getLogger(__name__)

#: A part's question: returns why it is not ready, "" if it is. An exception means that it does not answer.
Ask = Callable[[], Awaitable[str]]
#: Seconds for which an answer is used again, and for which a part has time to answer.
MAX_AGE, TIMEOUT = 2.0, 3.0
#: Key of the tornado settings with the hub's ``Readiness``.
SETTING = "carme_readiness"
#: Answers of the proxy about all routes can be large, and nobody needs them here.
_NO_ROUTES = "?inactive_since=1970-01-01T00:00:00.000Z"


class Readiness:
    """Asks each part, and keeps the answers. Attribute ``last``: why each part was not ready, "" = it was."""

    def __init__(self, parts: Mapping[str, Ask], clock: Callable[[], float] = time.monotonic) -> None:
        self._parts, self._clock = dict(parts), clock
        self._asked = float("-inf")
        self._open: dict[str, tuple[float, asyncio.Task[str]]] = {}  # questions without an answer, and since when
        self._check: asyncio.Task[Mapping[str, str]] | None = None
        self.last: Mapping[str, str] = {}

    async def check(self) -> Mapping[str, str]:
        """Return why each part is not ready, "" for those that are."""
        if self._check is not None and not self._check.done():
            return await asyncio.shield(self._check)
        if self._clock() - self._asked < MAX_AGE:
            return self.last
        self._asked = self._clock()
        self._check = asyncio.get_running_loop().create_task(self._ask_all(), name="carme-ready")
        return await asyncio.shield(self._check)

    async def stop(self) -> None:
        """Cancel open questions."""
        tasks = [task for _, task in self._open.values()] + ([self._check] if self._check is not None else [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_all(self) -> Mapping[str, str]:
        answers = await asyncio.gather(*(self._ask(name, ask) for name, ask in self._parts.items()))
        for name, said in zip(self._parts, answers, strict=True):
            if said != self.last.get(name, ""):
                log.log(logging.WARNING if said else logging.INFO, "The hub's %s: %s", name, said or "answers again")
        self.last = dict(zip(self._parts, answers, strict=True))
        return self.last

    async def _ask(self, name: str, ask: Ask) -> str:
        since, task = self._open.get(name) or (self._clock(), asyncio.ensure_future(ask()))
        self._open[name] = since, task
        done, _ = await asyncio.wait([task], timeout=TIMEOUT)
        if not done:
            return silent(self._clock() - since)
        del self._open[name]
        if task.cancelled() or (error := task.exception()) is not None:
            log.debug("The hub's %s is not ready", name, exc_info=None if task.cancelled() else error)
            return "It does not answer."
        return task.result()


def silent(seconds: float) -> str:
    """Return how long something has not answered, as a sentence."""
    return f"It has not answered for {seconds:.0f} s."


def parts_of(app: Any, hub: HubContext | None) -> dict[str, Ask]:
    """Return the parts of a hub.

    Args:
        hub: None on a hub without Slurm.
    """
    parts: dict[str, Ask] = {"hub-database": lambda: _hub_database(app)}
    if hub is not None:
        parts |= {"database": lambda: _database(hub), "slurm": lambda: _slurm(hub)}
    return {**parts, "proxy": lambda: _proxy(app.proxy)}


async def _hub_database(app: Any) -> str:
    engine = app.db.get_bind()
    if str(engine.url).endswith((":memory:", "://")):
        return ""  # its one connection is the event loop's

    def ask() -> None:
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")

    await asyncio.to_thread(ask)
    return ""


async def _database(hub: HubContext) -> str:
    await hub.registry.ping()
    return ""


async def _slurm(hub: HubContext) -> str:
    health = hub.watcher.health
    if health.ok and hub.watcher.latest is not None:
        return ""
    return silent(time.monotonic() - health.since)


async def _proxy(proxy: Any) -> str:
    if isinstance(proxy, ConfigurableHTTPProxy):
        await proxy.api_request(_NO_ROUTES)
    else:
        await proxy.get_all_routes()
    return ""


class ReadyHandler(HealthCheckHandler):
    """``GET /hub/ready``: 200 if every part is ready, else 503; the body says which is not."""

    async def prepare(self) -> None:
        """Skip JupyterHub's authentication, which reads and writes its database."""

    def finish(self, *args: Any, **kwargs: Any) -> Any:
        """Leave the hub's database session alone, which JupyterHub's own handlers roll back here."""
        return web.RequestHandler.finish(self, *args, **kwargs)

    async def get(self) -> None:
        """Ask, or use an answer of the last seconds."""
        readiness: Readiness = self.settings[SETTING]
        answers = await readiness.check()
        ready = not any(answers.values())
        self.set_status(200 if ready else 503)
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        parts = {name: {"ready": not said, **({"message": said} if said else {})} for name, said in answers.items()}
        self.finish(json.dumps({"ready": ready, "parts": parts}))

    head = get
