"""The sessions of the home page: their cards, a stream that keeps them up to date, and forms to stop and name one.

``GET /hub/carme/home/events`` is a stream of server-sent events (WHATWG HTML, section 9.2): the event ``sessions`` has
the cards as HTML whenever they have changed. Without JavaScript the page has them as they were when it was loaded.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from jupyterhub.handlers.base import BaseHandler
from jupyterhub.scopes import needs_scope
from jupyterhub.utils import url_path_join
from tornado import web
from tornado.iostream import StreamClosedError

from carme_hub.domain.sessions.session import Session
from carme_hub.spawners.handlers.home.news import SessionNews, page_values, seen_cluster, session_news
from carme_hub.spawners.handlers.home.page import CarmeHomeHandler
from carme_hub.spawners.hub.shared import HubContext, started_hub

EVENTS, STOP = r"/carme/home/events", r"/carme/sessions/([0-9a-f-]{36})/stop"
RENAME = r"/carme/sessions/([0-9a-f-]{36})/rename"
#: The most characters of a name.
MAX_NAME = 60
#: Seconds between two looks at memory, and at the database; without a change it is said that the hub is alive, so that
#: no proxy on the way takes the stream for dead, nor the page, since a proxy keeps a stream whose hub has died. At the
#: end the browser connects anew, and is authenticated anew.
LOOK, READ, KEEP_ALIVE, LONGEST = 3.0, 30.0, 10.0, 600.0
#: Streams of one user at a time: one for each open page.
MOST_STREAMS = 20


class HomeEventsHandler(BaseHandler):
    """The stream of one open home page."""

    async def get(self) -> None:
        """Send the cards whenever they change, until the page is closed."""
        user, hub = self.current_user, started_hub()
        if user is None:
            raise web.HTTPError(403)
        if hub is None:
            raise web.HTTPError(404)
        streams: Counter[str] = self.settings.setdefault("carme_home_streams", Counter())
        if streams[user.name] >= MOST_STREAMS:
            raise web.HTTPError(429, "Too many of your pages are open.")
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Accel-Buffering", "no")  # nginx would keep events back
        streams[user.name] += 1
        try:
            await self._send(hub, user)
        except StreamClosedError:
            pass
        finally:
            streams[user.name] -= 1

    def on_connection_close(self) -> None:
        """Note that the page was closed."""
        self._closed = True

    _closed = False

    async def _send(self, hub: HubContext, user: Any) -> None:
        began = sent_at = time.monotonic()
        read_at, news, cluster, before = float("-inf"), SessionNews(), None, None
        while not self._closed and time.monotonic() - began < LONGEST:
            if time.monotonic() - read_at >= READ:
                news, cluster = await asyncio.gather(session_news(self), seen_cluster(hub))
                read_at = time.monotonic()
            values = page_values(hub, user, news, cluster, time.time())
            if values != before:  # rendering takes ten times as long as making the values
                before, sent_at = values, time.monotonic()
                html = await self.render_template("carme_sessions.html", **values)
                lines = "".join(f"data: {line}\n" for line in html.splitlines())
                self.write(f"event: sessions\n{lines}\n")
                await self.flush()
            elif time.monotonic() - sent_at >= KEEP_ALIVE:
                sent_at = time.monotonic()
                self.write("event: alive\ndata: nothing has changed\n\n")
                await self.flush()
            await asyncio.sleep(LOOK)


class StopFormHandler(CarmeHomeHandler):
    """The form of a card that stops its session."""

    async def get(self, *_asked: str) -> None:
        """Redirect to the home page: a GET changes nothing."""
        self.redirect(url_path_join(self.hub.base_url, "home"))

    @web.authenticated
    async def post(self, id: str) -> None:
        """Stop the session, and redirect to the page."""
        hub = started_hub()
        session = hub.registry.current(id) if hub is not None else None
        await self._post(session, user_name=session.user if session else self.current_user.name)

    @needs_scope("delete:servers")
    async def _post(self, session: Session | None, user_name: str) -> None:
        user = self.current_user if user_name == self.current_user.name else self.find_user(user_name)
        if session is None or user is None or session.parent or session.server_name not in user.spawners:
            await self._reply(404, "There is no such session, or it has ended already.")
            return
        spawner = user.spawners[session.server_name]
        if spawner.pending or not spawner.active:
            doing = {"spawn": "It is being started; stop it once it runs.", "stop": "It is being stopped already."}
            await self._reply(409, doing.get(str(spawner.pending), "It does not run any more."))
            return
        await self.stop_single_user(user, session.server_name)
        self.redirect(url_path_join(self.hub.base_url, "home"), status=303)

    async def _reply(self, status: int, message: str) -> None:
        self.set_status(status)
        self._refused = message
        await self.show()


class RenameFormHandler(StopFormHandler):
    """The form of a card that names its server; JupyterHub calls it the display name."""

    @needs_scope("servers")
    async def _post(self, session: Session | None, user_name: str) -> None:
        user = self.current_user if user_name == self.current_user.name else self.find_user(user_name)
        if session is None or user is None or session.parent or session.server_name not in user.spawners:
            await self._reply(404, "There is no such session, or it has ended already.")
            return
        name = " ".join(self.get_body_argument("title", "").split())
        if len(name) > MAX_NAME or not name.isprintable():
            await self._reply(400, f"A name has at most {MAX_NAME} characters, and is one line of text.")
            return
        user.spawners[session.server_name].orm_spawner.display_name = name or None
        self.db.commit()
        self.redirect(url_path_join(self.hub.base_url, "home"), status=303)


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [
    (EVENTS, HomeEventsHandler),
    (STOP, StopFormHandler),
    (RENAME, RenameFormHandler),
]
