"""A real JupyterHub application on a loopback port, without a proxy; its spawner notes starts and starts nothing."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import pytest
from jupyterhub.app import JupyterHub
from jupyterhub.handlers import pages
from jupyterhub.proxy import Proxy
from jupyterhub.spawner import Spawner, SpawnException
from tornado.httpserver import HTTPServer
from traitlets import default
from traitlets.config import Config

from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.profile_choice import choose, offered_profiles, parse_profiles
from carme_hub.errors import Refused
from carme_hub.spawners.form.form import Offer, render_form
from carme_hub.spawners.form.options import checked_options, options_from_form

PROFILES = parse_profiles(
    [
        {
            "slug": "gpu",
            "display_name": "GPU",
            "gpus": {"types": ["a100", "h100"], "max": 4},
            "cpus": {"max": 32, "default": 4},
            "memory_gib": {"max": 128, "default": 16},
            "time_hours": {"max": 8, "default": 2},
        },
        {"slug": "cpu", "display_name": "CPU only", "cpus": 2},
        {"slug": "class", "display_name": "Course", "groups": ["course"]},
    ]
)
NODES = (
    Node("n1", "mixed", True, ("gpu",), 64, 32, 256 * 1024, 0, {"a100": 4}, {"a100": 2}),
    Node("n2", "idle", True, ("gpu",), 64, 0, 256 * 1024, 0, {"a100": 4}, {}),
)


class SpawnerThatOnlyNotes(Spawner):
    """Takes our form and check, notes what it was asked to start, and then fails as the test wants."""

    started: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    accounts: ClassVar[tuple[str, ...] | None] = ("physics",)
    cluster: ClassVar[Cluster] = Cluster(NODES, seen=time.time())
    refusal: ClassVar[str] = ""

    async def offer(self) -> Offer:
        groups = [g.name for g in self.user.groups]
        profiles = offered_profiles(PROFILES, groups, self.accounts)
        return Offer(profiles, self.accounts, {"base": "Python"}, cluster=self.cluster)

    async def options_form(self, _spawner: Spawner | None = None) -> str:
        return render_form(await self.offer())

    def options_from_form(self, form_data: dict[str, list[str]]) -> dict[str, Any]:
        return options_from_form(form_data)

    async def apply_user_options(self, _spawner: Spawner, user_options: dict[str, Any]) -> None:
        offer = await self.offer()
        try:
            options = checked_options(user_options)
            choose(offer.profiles, options, accounts=offer.accounts, images=tuple(offer.images))
        except Refused as e:
            raise SpawnException(e.message, reason=e.reason) from e

    async def start(self) -> str:
        self.started.append((f"{self.user.name}/{self.name}", dict(self.user_options)))
        raise SpawnException(self.refusal or "This spawner starts nothing", reason="forged")

    async def stop(self, now: bool = False) -> None:
        return None

    async def poll(self) -> int:
        return 0


class SpawnerWithOurForm(SpawnerThatOnlyNotes):
    """Has our form as a setting's default, as our spawners do."""

    options_form = Spawner.options_form

    async def _render_offer(self) -> str:
        return render_form(await self.offer())

    @default("options_form")
    def _options_form(self) -> Any:
        return type(self)._render_offer


class SpawnerWithoutForm(SpawnerThatOnlyNotes):
    """Any other spawner class: no offer, no form."""

    offer = None  # type: ignore[assignment]
    options_form = ""  # type: ignore[assignment]
    options_from_form = staticmethod(lambda form_data: form_data)  # type: ignore[assignment]
    apply_user_options = staticmethod(lambda *_: None)  # type: ignore[assignment]


class ProxyThatRoutesNothing(Proxy):
    """Takes every route and leads nowhere."""

    async def add_route(self, routespec: str, target: str, data: dict[str, Any]) -> None:
        return None

    async def delete_route(self, routespec: str) -> None:
        return None

    async def get_all_routes(self) -> dict[str, Any]:
        return {}


class PatientAsyncio:
    """JupyterHub's page gives a start one second to fail before it goes on to the pending page; a test gives it more,
    so that what it is answered does not depend on how fast the machine is."""

    ALL = 120

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def wait(self, tasks: Any, **_more: Any) -> Any:
        return await asyncio.wait(tasks, timeout=self.ALL)


class Browser:
    """One person's browser: keeps cookies and follows no redirects."""

    def __init__(self, http: aiohttp.ClientSession, base: str) -> None:
        self.http = http
        self.base = base
        self.xsrf = ""

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, str, Mapping[str, str]]:
        headers = {"Sec-Fetch-Mode": "navigate", **more.pop("headers", {})}
        async with self.http.request(
            method, self.base + path, allow_redirects=False, headers=headers, **more
        ) as response:
            text = await response.text()
            if found := re.search(r'xsrf_token: "([^"]+)"', text):
                self.xsrf = found.group(1)
            return response.status, text, response.headers

    async def get(self, path: str, **more: Any) -> tuple[int, str, Mapping[str, str]]:
        return await self.ask("GET", path, **more)

    async def post(self, path: str, data: Mapping[str, str]) -> tuple[int, str, Mapping[str, str]]:
        return await self.ask("POST", path, data={"_xsrf": self.xsrf, **data})

    async def log_in(self, name: str) -> Browser:
        await self.get("/hub/login")
        status, _, _ = await self.post("/hub/login", {"username": name, "password": "x"})
        assert status == 302
        await self.get("/hub/home")
        return self


class ForgedHub:
    """The application and its address."""

    def __init__(self, app: JupyterHub, base: str) -> None:
        self.app = app
        self.base = base
        self._open: list[aiohttp.ClientSession] = []

    async def browser(self, name: str = "") -> Browser:
        http = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
        self._open.append(http)
        browser = Browser(http, self.base)
        return await browser.log_in(name) if name else browser

    async def close(self) -> None:
        for http in self._open:
            await http.close()


@contextlib.asynccontextmanager
async def forged_hub(
    tmp: str, spawner: type[Spawner] = SpawnerThatOnlyNotes, config: Config | None = None, **traits: Any
) -> AsyncIterator[ForgedHub]:
    """Run the application; leave nothing behind."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    none = Path(tmp) / "none.py"
    none.touch()
    config = config or Config()
    config.JupyterHub.update(
        db_url=f"sqlite:///{tmp}/hub.sqlite",
        config_file=str(none),  # the one in the working folder is for a real site
        cookie_secret_file=f"{tmp}/cookie",
        hub_port=port,
        bind_url=f"http://127.0.0.1:{port}",
        spawner_class=spawner,
        authenticator_class="dummy",
        proxy_class=ProxyThatRoutesNothing,
        log_level=40,
        tornado_settings={"slow_spawn_timeout": PatientAsyncio.ALL},
        **traits,
    )
    config.Authenticator.allow_all = True
    JupyterHub.clear_instance()
    app = JupyterHub.instance(config=config)
    await app.initialize([])
    server = HTTPServer(app.tornado_application)
    server.listen(port, "127.0.0.1")
    hub = ForgedHub(app, f"http://127.0.0.1:{port}")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pages, "asyncio", PatientAsyncio())
            yield hub
    finally:
        await hub.close()
        server.stop()
        await server.close_all_connections()
        app.log.handlers.clear()
        app.db.close()
        app.db.get_bind().dispose()
        JupyterHub.clear_instance()
        await asyncio.sleep(0)
