"""A user says to have seen a message: by the home page's form, or in JupyterLab by the session's own server."""

from __future__ import annotations

import json
from typing import Any

from jupyterhub.utils import url_path_join
from tornado import web

from carme_hub.administration.administration import Unknown
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import Refused, StoreError
from carme_hub.spawners.console.acts import administration
from carme_hub.spawners.handlers.companions import SessionHandler
from carme_hub.spawners.handlers.home.page import CarmeHomeHandler
from carme_hub.spawners.hub.shared import HubContext, started_hub

_UUID = "[0-9a-f-]{36}"
FORM, OF_SESSION = rf"/carme/messages/({_UUID})/seen", rf"/api/carme/sessions/({_UUID})/messages/({_UUID})/seen"


class SeenFormHandler(CarmeHomeHandler):
    """The form of the home page; it is for the visitor's own messages alone."""

    async def get(self, *_asked: str) -> None:
        """Redirect to the home page: a GET changes nothing."""
        self.redirect(url_path_join(self.hub.base_url, "home"))

    @web.authenticated
    async def post(self, id: str) -> None:
        """Store it, and redirect to the page."""
        hub = started_hub()
        try:
            if hub is not None:
                await administration(hub).seen(self.current_user.name, id)
        except Unknown:
            pass  # seen in another window
        except (Refused, StoreError) as error:
            self.log.warning("%s has seen message %s, which is not stored: %s", self.current_user.name, id, error)
            self.set_status(503)
            self._refused = "The database does not answer, so the message stays. Try it again in a moment."
            await self.show()
            return
        self.redirect(url_path_join(self.hub.base_url, "home"), status=303)


class SeenHandler(SessionHandler):
    """The click in JupyterLab, for messages of the session's user."""

    not_known = "The database does not answer, so the message comes again."

    async def post(self, id: str, message: str) -> None:
        """Store it."""
        await self._authorize(id, message)

    async def _answer(self, hub: HubContext, spawner: Any, session: Session, *more: str) -> None:  # noqa: ARG002
        if self.request.body.strip() not in (b"", b"{}"):
            raise web.HTTPError(400, "Send no body.")
        await administration(hub).seen(session.user, more[0])
        self.finish(json.dumps({"message": more[0]}))


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [(FORM, SeenFormHandler), (OF_SESSION, SeenHandler)]
