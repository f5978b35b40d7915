"""Handlers that start a session again, or move or stop it before maintenance: the home page's forms, and REST."""

from __future__ import annotations

import json
from typing import Any

from jupyterhub.apihandlers.base import APIHandler
from jupyterhub.scopes import needs_scope
from jupyterhub.utils import url_escape_path, url_path_join
from tornado import web

from carme_hub.domain.sessions.session import Session
from carme_hub.errors import Refused, SlurmUnreachable, StoreError
from carme_hub.spawners.handlers.home.page import CarmeHomeHandler
from carme_hub.spawners.hub.shared import HubContext, started_hub
from carme_hub.spawners.maintenance.alternatives import PendingActions, move, restart, stop_for_maintenance

_WHICH = r"/carme/sessions/([0-9a-f-]{36})/(restart|move|make-way)"
API, FORM = rf"/api{_WHICH}", _WHICH
_OVER = "There is no such session, or it is over already."
_NOT_KNOWN = "Slurm or the calendar does not answer, so nothing was changed. Try it again in a moment."


async def _do(handler: Any, hub: HubContext, user: Any, session: Session, what: str) -> bool:
    """Restart, move or stop the session; return whether that is done by now."""
    doing: PendingActions = handler.settings.setdefault("carme_doing", PendingActions())
    work = {"restart": restart, "move": move, "make-way": stop_for_maintenance}[what]
    return await doing.once(session.id, what, lambda: work(handler, hub, user, session))


def _page_after(handler: Any, user: Any, session: Session, what: str) -> str:
    hub = handler.hub.base_url
    if what == "make-way":
        return str(url_path_join(hub, "home"))
    return str(url_path_join(hub, "spawn-pending", user.escaped_name, url_escape_path(session.server_name)))


class MaintenanceHandler(APIHandler):
    """Accepts the action from the session's user, and from users who may start and stop servers for them."""

    async def post(self, id: str, what: str) -> None:
        """Answer once the session is stopped, or after some seconds with 202 while it is being stopped."""
        if self.current_user is None:
            raise web.HTTPError(403)
        hub = started_hub()
        session = hub.registry.current(id) if hub is not None else None
        # Without access a caller does not learn whether the session exists.
        await self._post(hub, session, what, user_name=session.user if session else self.current_user.name)

    @needs_scope("servers")
    async def _post(self, hub: HubContext | None, session: Session | None, what: str, user_name: str) -> None:
        user = self.find_user(user_name)
        if hub is None or session is None or user is None or not _has_server(session, user):
            raise web.HTTPError(404, _OVER)
        if self.request.body.strip() not in (b"", b"{}"):
            raise web.HTTPError(400, "Send no body.")
        try:
            done = await _do(self, hub, user, session, what)
        except Refused as error:
            self.set_status(409)
            self.finish(json.dumps({"error": error.reason, "message": error.message}))
            return
        except (SlurmUnreachable, StoreError) as error:
            hub.log.warning("Session %s cannot be moved or stopped now: %s", session.id, error)
            raise web.HTTPError(503, _NOT_KNOWN) from error
        self.set_status(200 if done else 202)
        self.finish(json.dumps({"session": session.id, "page": _page_after(self, user, session, what)}))


def _has_server(session: Session, user: Any) -> bool:
    """Return whether a session is a server of its user; a companion is not."""
    return not session.parent and session.server_name in user.spawners


class MaintenanceFormHandler(CarmeHomeHandler):
    """The home page's forms; the page shows a refusal."""

    async def get(self, *_asked: str) -> None:
        """Redirect to the home page: a GET changes nothing."""
        self.redirect(url_path_join(self.hub.base_url, "home"))

    @web.authenticated
    async def post(self, id: str, what: str) -> None:
        """Move or stop the session, and redirect to the page that shows it."""
        hub = started_hub()
        session = hub.registry.current(id) if hub is not None else None
        await self._post(hub, session, what, user_name=session.user if session else self.current_user.name)

    @needs_scope("servers")
    async def _post(self, hub: HubContext | None, session: Session | None, what: str, user_name: str) -> None:
        user = self.current_user if user_name == self.current_user.name else self.find_user(user_name)
        if hub is None or session is None or user is None or not _has_server(session, user):
            await self._reply(404, _OVER)
            return
        try:
            await _do(self, hub, user, session, what)
        except Refused as error:
            await self._reply(409, error.message)
        except (SlurmUnreachable, StoreError) as error:
            hub.log.warning("Session %s cannot be moved or stopped now: %s", session.id, error)
            await self._reply(503, _NOT_KNOWN)
        else:
            self.redirect(_page_after(self, user, session, what), status=303)

    async def _reply(self, status: int, message: str) -> None:
        self.set_status(status)
        self._refused = message
        await self.show()
