"""The real jupyterhub-idle-culler with our arbiter culls only what the hub says is free; the hub's REST is forged."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import jupyterhub_idle_culler
import pytest
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

from carme_hub.activity.idle.culler import may_cull, server_of

#: What the hub says of each server; None = it does not answer.
SAID: dict[str, str | None] = {
    **{"ada/": "free", "bob/": "ours", "cem/": "busy", "dan/big": "free", "eve/": "unknown", "fay/": None},
    "new@lab/": "free",
}


class ForgedHub:
    """The REST API of a hub, as far as the culler and the arbiter ask; notes what is culled."""

    def __init__(self) -> None:
        self.culled: list[str] = []
        self.asked: list[str] = []
        self.idle_for: dict[str, int] = {}

    def users(self) -> list[dict[str, Any]]:
        return [self._user(*where.split("/")) for where in SAID]

    def _user(self, user: str, server: str) -> dict[str, Any]:
        last = datetime.now(UTC) - timedelta(seconds=self.idle_for.get(user, 7200))
        escaped = user.replace("@", "%40")
        model = {
            **{"name": server, "url": f"/hub-of-lab/user/{escaped}/{server}{'/' if server else ''}", "ready": True},
            **{"pending": None, "last_activity": last.isoformat(), "started": last.isoformat()},
        }
        return {"name": user, "admin": False, "last_activity": last.isoformat(), "servers": {server: model}}


def application(hub: ForgedHub) -> Application:
    class Root(RequestHandler):
        def get(self) -> None:
            self.finish({"version": "6.1.1"})

    class Users(RequestHandler):
        def get(self) -> None:
            self.finish(json.dumps(hub.users()))

    class Evidence(RequestHandler):
        def get(self, user: str) -> None:
            assert self.request.headers["Authorization"] == "token of-the-culler"
            where = f"{user}/{self.get_query_argument('server')}"
            hub.asked.append(where)
            said = SAID[where]
            if said is None:
                self.set_status(503)
            self.finish({"state": said, "because": "forged"})

    class Server(RequestHandler):
        def delete(self, user: str, server: str | None = None) -> None:
            hub.culled.append(f"{user}/{server or ''}")
            self.set_status(204)

    api = "/hub/api"
    return Application(
        [
            (f"{api}/", Root),
            (f"{api}/users", Users),
            (rf"{api}/carme/users/([^/]+)/idle", Evidence),
            (rf"{api}/users/([^/]+)/server", Server),
            (rf"{api}/users/([^/]+)/servers/([^/]+)", Server),
        ]
    )


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ForgedHub]:
    found = ForgedHub()
    socket, port = bind_unused_port()
    server = HTTPServer(application(found))
    server.add_sockets([socket])
    monkeypatch.setenv("JUPYTERHUB_API_URL", f"http://127.0.0.1:{port}/hub/api")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "of-the-culler")
    yield found
    server.stop()
    await server.close_all_connections()


async def cull(hub: ForgedHub, url: str, **more: Any) -> list[str]:
    await jupyterhub_idle_culler.cull_idle(
        url, "of-the-culler", 3600, logging.getLogger("culler"), cull_arbiter=may_cull, **more
    )
    return sorted(hub.culled)


@pytest.fixture
def url(hub: ForgedHub) -> str:
    return os.environ["JUPYTERHUB_API_URL"]


async def test_only_what_the_hub_says_is_free_is_culled(hub: ForgedHub, url: str) -> None:
    assert await cull(hub, url) == ["ada/", "dan/big", "new@lab/"]
    assert len(hub.asked) == len(SAID)


async def test_who_was_active_for_the_culler_is_not_even_asked_for(hub: ForgedHub, url: str) -> None:
    hub.idle_for = dict.fromkeys(("ada", "dan", "new@lab"), 60)
    assert await cull(hub, url) == []
    assert sorted(hub.asked) == ["bob/", "cem/", "eve/", "fay/"]


async def test_the_culler_takes_it_from_its_configuration() -> None:
    culler = jupyterhub_idle_culler.IdleCuller()
    culler.cull_arbiter_hook = may_cull
    assert culler.cull_arbiter_hook is may_cull


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ({"name": "", "url": "/user/ada/"}, ("ada", "")),
        ({"name": "big", "url": "/lab/user/ada/big/"}, ("ada", "big")),
        ({"name": "", "url": "/user/a%20b/"}, ("a%20b", "")),
        ({"name": "", "url": "/user/user/"}, ("user", "")),
        ({"name": "", "url": None}, None),
        ({"name": "big", "url": "/user/ada"}, None),
        ({}, None),
    ],
)
def test_a_server_is_known_by_its_model(model: dict[str, Any], found: tuple[str, str] | None) -> None:
    assert server_of(model) == found


async def test_a_server_without_a_place_or_a_time_is_not_culled() -> None:
    assert not await may_cull(inactive=None, inactive_limit=1, server={"name": "", "url": "/user/ada/"})
    assert not await may_cull(inactive=timedelta(hours=9), inactive_limit=1, server={})
