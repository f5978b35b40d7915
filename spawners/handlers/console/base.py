"""What the pages of the console share: who may see them, the tabs, and how a page is sent.

Nothing changes by a GET; what acts is a form with JupyterHub's XSRF token, and works without JavaScript.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from jupyterhub.handlers.base import BaseHandler
from jupyterhub.utils import url_path_join
from tornado import web

from carme_hub.domain.administration.acts import Actor
from carme_hub.domain.administration.scopes import READ
from carme_hub.spawners.hub.shared import HubContext, started_hub

ROOT = "/carme/console"
#: Tabs: the path below ``ROOT``, and the name.
TABS = (
    ("", "Sessions"),
    ("/jobs", "Jobs"),
    ("/nodes", "Nodes"),
    ("/messages", "Messages"),
    ("/starts", "New starts"),
    ("/acts", "Audit"),
)


def may(handler: Any, scope: str) -> bool:
    """Return whether the visitor has a scope of the console; deny is the default."""
    return scope in getattr(handler, "expanded_scopes", ())


def actor_of(handler: Any, interface: str) -> Actor:
    """Return who acts."""
    user = handler.current_user
    return Actor(user.name if user.kind == "user" else f"service:{user.name}", interface)


class ConsoleHandler(BaseHandler):
    """The base of the console's pages. ``scope``: what a visitor needs; ``tab``: the path of its tab."""

    scope = READ
    tab = ""

    def checked_hub(self, scope: str = "") -> HubContext:
        """Return the hub's context for a visitor with the scope; 403 without it, 404 on a hub without Slurm."""
        if not may(self, scope or self.scope):
            raise web.HTTPError(403, "The console is for administrators.")
        hub = started_hub()
        if hub is None or hub.administration is None:
            raise web.HTTPError(404, "The console is there on a hub with Slurm, once it has started.")
        return hub

    async def show(self, template: str, *, heading: str, status: int = 200, **values: Any) -> None:
        """Send a page of the console."""
        self.set_status(status)
        self.set_header("Cache-Control", "no-store")
        tabs = [{"href": self.address(path), "name": name, "current": path == self.tab} for path, name in TABS]
        html = await self.render_template(f"console/{template}", heading=heading, tabs=tabs, may=self._may, **values)
        self.finish(html)

    def _may(self, name: str) -> bool:
        return may(self, f"custom:carme:console:{name}")

    def address(self, path: str, query: Mapping[str, Any] | None = None) -> str:
        """Return the address of a page of the console."""
        url = str(url_path_join(self.hub.base_url, ROOT + path))
        return f"{url}?{urlencode(query)}" if query else url

    def asked(self, name: str, most: int = 255) -> str:
        """Return a value of the query, "" if there is none or it is longer than any such value."""
        value = str(self.get_query_argument(name, "")).strip()
        return value if len(value) <= most else ""
