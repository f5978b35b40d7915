"""The handler by which the hub has a session put in order, and what ``orderly_end`` needs of this Jupyter server."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from .orderly_end import OrderlyEnd, ServerParts

#: Characters of a key.
MOST_KEY = 64


class EndHandler(APIHandler):
    """Puts the session in order; nothing of it is work, and nothing here ends the session."""

    auth_resource = "kernels"
    _track_activity = False

    def initialize(self, orderly_end: OrderlyEnd) -> None:
        """Keep what all requests share."""
        self._orderly_end = orderly_end

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Answer with what was done, which may take some minutes."""
        body = self.get_json_body()
        key = body.get("key") if isinstance(body, dict) else None
        if not isinstance(body, dict) or not isinstance(key, str) or not 0 < len(key) <= MOST_KEY:
            raise web.HTTPError(400, 'Send {"key": "…", "unless_at_work": true}.')
        found = await self._orderly_end.end(key, unless_at_work=bool(body.get("unless_at_work")))
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(found))


def orderly_end_of(server: Any, page: Any) -> OrderlyEnd:
    """Return what puts the session of a Jupyter server in order. ``page``: the page of runs."""
    settings = server.web_app.settings

    def terminals() -> Iterable[Any]:
        manager = settings.get("terminal_manager")  # None where terminals are switched off
        return list(manager.terminals.values()) if manager is not None else ()

    async def interrupt(id: str) -> None:
        done = server.kernel_manager.interrupt_kernel(id)
        if inspect.isawaitable(done):
            await done

    async def notebooks() -> list[tuple[str, float]]:
        found = []
        sessions = server.session_manager.list_sessions()
        for model in await sessions if inspect.isawaitable(sessions) else sessions:
            path = str(model.get("path") or "")
            if model.get("type") == "notebook" and path:
                entry = server.contents_manager.get(path, content=False)
                entry = await entry if inspect.isawaitable(entry) else entry
                found.append((str(model.get("name") or path), entry["last_modified"].timestamp()))
        return found

    def announce(id: str, seconds: float) -> None:
        from carme_hub.training.run import control

        control.ask(id, {"op": "checkpoint", "seconds": seconds})

    return OrderlyEnd(
        ServerParts(
            kernels=server.kernel_manager.list_kernels,
            terminals=terminals,
            runs=lambda: page.rows()["runs"],
            interrupt=interrupt,
            notebooks=notebooks,
            announce=announce,
        )
    )
