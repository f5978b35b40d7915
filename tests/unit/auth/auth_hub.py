"""A real JupyterHub with our authenticator over the dummy login, a forged user directory and a forged Slurm."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from jupyterhub.app import JupyterHub
from jupyterhub.auth import Authenticator
from jupyterhub.httpclient import JupyterHubHTTPClient
from jupyterhub.proxy import Proxy
from jupyterhub.utils import random_port
from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse
from traitlets.config import Config

from carme_hub.auth import authenticator, system_users
from carme_hub.auth.authenticator import CarmeAuthenticator
from carme_hub.auth.system_users import SystemUser
from carme_hub.errors import SlurmUnreachable
from carme_hub.sessions.associations import AssociationCache
from carme_hub.slurm.client import Association


class DirectoryOfThree:
    """Forges the system's user database; ``silent`` is LDAP being away."""

    def __init__(self) -> None:
        self.users = {
            "alice": SystemUser("alice", 2001, 2001, "/bin/bash", ("alice", "gpu-users")),
            "bob": SystemUser("bob", 2002, 2002, "/bin/bash", ("bob",)),
            "Carol": SystemUser("Carol", 2003, 2003, "/bin/bash", ("Carol", "gpu-users", "hub-admins")),
            "daemon": SystemUser("daemon", 1, 1, "/usr/sbin/nologin", ("daemon", "gpu-users")),
            "nobody": SystemUser("nobody", 65534, 65534, "/usr/sbin/nologin", ("nogroup", "gpu-users")),
        }
        self.closed: dict[str, str] = {}
        self.silent = False

    def look_up(self, name: str) -> SystemUser | None:
        return None if self.silent else self.users.get(name)

    def closed_reason(self, name: str) -> str:
        return self.closed.get(name, "")


class SlurmThatCanFallSilent:
    """Forges the associations of a cluster."""

    def __init__(self) -> None:
        self.cluster = "forged"
        self.rows: list[Association] = [
            Association("alice", "chem"),
            Association("alice", "physics", default=True),
            Association("bob", "chem", default=True),
        ]
        self.silent = False
        self.asked = 0

    async def associations(self) -> tuple[Association, ...]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.silent:
            raise SlurmUnreachable("forged silence")
        return tuple(self.rows)


class LoginThatChecks(Authenticator):
    """Forges a login: the password is the name with a capital P before it."""

    async def authenticate(self, handler: Any, data: dict[str, str]) -> str | None:
        await asyncio.sleep(0)
        return data["username"] if data["password"] == "P" + data["username"] else None


class ProxyOfNothing(Proxy):
    """Forges the proxy: routes are remembered and lead nowhere."""

    should_start = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.routes: dict[str, dict[str, Any]] = {}

    async def add_route(self, routespec: str, target: str, data: dict[str, Any]) -> None:
        self.routes[routespec] = {"routespec": routespec, "target": target, "data": data}

    async def delete_route(self, routespec: str) -> None:
        self.routes.pop(routespec, None)

    async def get_all_routes(self) -> dict[str, dict[str, Any]]:
        return self.routes


@dataclass
class Hub:
    """A running hub and a way to talk with it as a browser would, past the proxy."""

    app: JupyterHub
    directory: DirectoryOfThree
    slurm: SlurmThatCanFallSilent
    jar: dict[str, str] = field(default_factory=dict)

    @property
    def authenticator(self) -> CarmeAuthenticator:
        return self.app.authenticator  # type: ignore[no-any-return]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.app.hub_port}/hub"

    async def fetch(self, url: str, method: str = "GET", body: Any = None, **headers: str) -> HTTPResponse:
        if self.jar:
            headers["Cookie"] = "; ".join(f"{k}={v}" for k, v in self.jar.items())
        request = HTTPRequest(
            url if url.startswith("http") else self.url + url,
            method=method,
            body=urlencode(body) if isinstance(body, dict) else body,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
            follow_redirects=False,
            connect_timeout=120,
            request_timeout=120,
        )
        response = await AsyncHTTPClient(force_instance=True).fetch(request, raise_error=False)
        for cookie in response.headers.get_list("Set-Cookie"):
            name, _, value = cookie.partition(";")[0].partition("=")
            self.jar[name] = value
        return response

    async def login(
        self, name: str, password: str | None = None, base: str = "", fresh: bool = True, **headers: str
    ) -> HTTPResponse:
        """Fill in the form on the login page."""
        if fresh:
            self.jar.clear()
        page = await self.fetch(base + "/login", **headers)
        found = re.search(r'name="_xsrf"\s+value="([^"]+)"', page.body.decode())
        form = {"username": name, "password": "P" + name if password is None else password}
        if found:
            form["_xsrf"] = found[1]
        return await self.fetch(base + "/login", "POST", form, **headers)

    def groups_of(self, name: str) -> set[str]:
        user = self.app.users[name]
        self.app.db.expire_all()
        return {group.name for group in user.groups}


def base_config(folder: Path) -> Config:
    c = Config()
    c.JupyterHub.proxy_class = ProxyOfNothing
    c.JupyterHub.authenticator_class = CarmeAuthenticator
    c.JupyterHub.db_url = f"sqlite:///{folder / 'jupyterhub.sqlite'}"
    c.JupyterHub.cookie_secret_file = str(folder / "cookie_secret")
    c.JupyterHub.pid_file = ""
    c.JupyterHub.hub_port = random_port()
    c.JupyterHub.bind_url = f"http://127.0.0.1:{random_port()}"
    c.JupyterHub.log_level = 30
    c.JupyterHub.spawner_class = "simple"
    c.CarmeAuthenticator.authenticator_class = LoginThatChecks
    c.CarmeAuthenticator.allowed_groups = {"gpu-users"}
    c.CarmeAuthenticator.revoke_interval = 0
    c.CarmeAuthenticator.accounts_age = 0
    return c


@asynccontextmanager
async def running(
    folder: Path, directory: DirectoryOfThree, change: Callable[[Config], None] | None = None
) -> AsyncIterator[Hub]:
    slurm = SlurmThatCanFallSilent()
    c = base_config(folder)
    c.CarmeAuthenticator.make_book = lambda: AssociationCache(slurm, retry=0)  # type: ignore[arg-type]
    if change is not None:
        change(c)
    JupyterHub.clear_instance()
    app = JupyterHub.instance(config=c)
    app.init_signal = lambda: None
    before = Path.cwd()
    os.chdir(folder)
    try:
        await app.initialize([])
        app.log.propagate = True
        await app.start()
        yield Hub(app, directory, slurm)
    finally:
        os.chdir(before)
        app.authenticator.revoker.stop()
        if app.http_server:
            app.http_server.stop()
        if app.metrics_collector:
            app.metrics_collector.stop()
        for callback in app._periodic_callbacks.values():
            callback.stop()
        app._atexit_ran = True
        await JupyterHubHTTPClient.instance().close()
        await JupyterHubHTTPClient.loop_instance().close()
        JupyterHubHTTPClient.clear_instance()
        app.db.close()
        JupyterHub.clear_instance()


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> DirectoryOfThree:
    forged = DirectoryOfThree()
    monkeypatch.setattr(system_users, "look_up", forged.look_up)
    monkeypatch.setattr(system_users, "closed_reason", forged.closed_reason)
    # What a request does not wait for is a test's own matter; how fast the machine is is nobody's.
    monkeypatch.setattr(authenticator, "WAIT_FOR_UPDATE", 60.0)
    monkeypatch.setattr(authenticator, "WAIT_FOR_FIRST", 60.0)
    return forged


@pytest.fixture
async def hub(tmp_path: Path, directory: DirectoryOfThree) -> AsyncIterator[Hub]:
    tmp_path.chmod(0o700)
    async with running(tmp_path, directory) as hub:
        yield hub
