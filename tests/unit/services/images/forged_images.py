"""The images service without a hub and Slurm: its real web server and database; the rest is forged."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from jupyterhub.services.auth import HubOAuth
from tornado.httpclient import AsyncHTTPClient, HTTPResponse
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import create_signed_value
from traitlets.config import Config

from carme_hub.domain.cluster.resources import Gpus, Node
from carme_hub.domain.images.builds import Build, BuildState
from carme_hub.domain.images.offers import CatalogueImage
from carme_hub.domain.images.scopes import MANAGE, NODES, OFFER, READ, READ_ALL
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import SlurmUnreachable
from carme_hub.services.images.app import ImagesService

PREFIX = "/services/images/"
ACCESS = "access:services!service=images"
#: The hub expands scopes before it says so.
SCOPES: dict[str, tuple[str, ...]] = {
    **{"alice": (READ, OFFER), "bob": (READ, OFFER), "looker": (READ,), "stranger": ()},
    **{"operator": (READ, READ_ALL), "root": (READ, OFFER, READ_ALL, MANAGE), "node": (NODES,)},
}
GROUPS = {"alice": ["course", "account:physics"], "bob": ["account:physics"]}
DIGEST, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64
GIB = 1 << 30
PROFILES = [
    {"slug": "cpu", "display_name": "CPU", "default": True},
    {"slug": "a100", "display_name": "A100", "gpus": {"types": ["a100"], "max": 4, "default": 1}},
    {"slug": "b200", "display_name": "B200", "gpus": {"types": ["b200"], "max": 4, "default": 1}, "images": ["new"]},
]
_ENVIRONMENT = {
    "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
    "JUPYTERHUB_CLIENT_ID": "service-images",
    "JUPYTERHUB_API_TOKEN": "of-the-service",
    "JUPYTERHUB_API_URL": "http://127.0.0.1:9/hub/api",
    "JUPYTERHUB_BASE_URL": "/",
    "JUPYTERHUB_OAUTH_ACCESS_SCOPES": f'["{ACCESS}"]',
    "JUPYTERHUB_OAUTH_SCOPES": f'["{ACCESS}"]',
}


class SlurmThatCanFallSilent:
    """The nodes of a cluster: two with A100."""

    def __init__(self) -> None:
        self.silent = False

    async def nodes(self) -> tuple[Node, ...]:
        if self.silent:
            raise SlurmUnreachable("secret words of Slurm")
        return tuple(Node(f"n{number}", "idle", usable=True, cpus=8, gpus={"a100": 4}) for number in (1, 2))


class HubThatNotesMessages:
    """The hub's REST for messages. ``fails``: the errors that it answers, one after the other."""

    def __init__(self) -> None:
        self.messages: list[Mapping[str, Any]] = []
        self.fails: list[Exception] = []

    async def tell(self, path: str, body: Mapping[str, Any]) -> None:
        assert path == "carme/console/messages"
        if self.fails:
            raise self.fails.pop(0)
        self.messages.append(body)


def make_image(store: Path, name: str, digest: str = "", **more: Any) -> Path:
    """Write an image as the store has it; what is inside is in ``more["packages"]``."""
    folder = store / name
    (folder / "usr").mkdir(parents=True)
    about = {"name": name, "description": f"about {name}", "format": "dir", "base": "own", **more}
    (folder / "image.json").write_text(json.dumps({**about, **({"digest": digest} if digest else {})}))
    return folder


class Site:
    """The service and its visitors. ``now`` is moved by hand."""

    def __init__(self, service: ImagesService, port: int, secret: bytes, store: Path) -> None:
        self.service, self.store, self.hub = service, store, HubThatNotesMessages()
        self.slurm = SlurmThatCanFallSilent()
        self.now = time.time()
        self._port, self._secret = port, secret
        service.slurm = self.slurm
        service.clock = lambda: self.now  # type: ignore[method-assign]
        service.keeper._tell, service.keeper._clock = self.hub.tell, lambda: self.now

    def session(self, number: int, user: str, image: str) -> None:
        """Write a session that runs."""
        request = Request("a100", image, Gpus("a100", 1))
        id = f"0000000{number}-0000-4000-8000-000000000000"
        self.service.sessions.add(Session(id, "lab", user, "", request, SessionState.RUNNING, self.now, job_id=number))

    async def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> HTTPResponse:
        """Send one request; redirects are not followed."""
        return await AsyncHTTPClient().fetch(
            f"http://127.0.0.1:{self._port}{PREFIX}{path}",
            method=method,
            body=body,
            headers=headers,
            follow_redirects=False,
            raise_error=False,
            allow_nonstandard_methods=True,
            request_timeout=120,
        )

    async def rest(self, name: str, method: str, path: str, body: Any = None) -> HTTPResponse:
        """Ask REST with somebody's token."""
        more = {"Content-Type": "application/json"} if body is not None else {}
        text = json.dumps(body) if body is not None else None
        return await self.ask(method, f"api/v1/{path}", text, Authorization=f"token {name}", **more)

    async def images(self, name: str, query: str = "") -> dict[str, Any]:
        """Return the images that somebody sees, by name."""
        answer = await self.rest(name, "GET", f"images{query}")
        assert answer.code == 200, answer.body
        return {each["name"]: each for each in json.loads(answer.body)["images"]}

    def visitor(self, name: str) -> Visitor:
        """Return a browser in which somebody has logged in."""
        return Visitor(self, name, create_signed_value(self._secret, "service-images", name).decode())


class Visitor:
    """A browser: cookies, and forms with the token that the last page had."""

    def __init__(self, site: Site, name: str, cookie: str) -> None:
        self._site = site
        self._cookies = {"service-images": cookie, "jupyterhub-session-id": f"s-{name}"}

    async def get(self, path: str) -> HTTPResponse:
        """Open a page."""
        return await self._send("GET", path, None)

    async def text(self, path: str) -> str:
        """Return a page as text without tags; fails where it is none."""
        answer = await self.get(path)
        assert answer.code == 200, (answer.code, answer.body)
        return plain(answer)

    async def post(self, path: str, **fields: str) -> HTTPResponse:
        """Send a form as a browser does."""
        return await self._send("POST", path, urlencode({"_xsrf": self._cookies.get("_xsrf", ""), **fields}))

    async def _send(self, method: str, path: str, body: str | None) -> HTTPResponse:
        headers = {"Cookie": "; ".join(f"{k}={v}" for k, v in self._cookies.items()), "Sec-Fetch-Mode": "navigate"}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        answer = await self._site.ask(method, path, body, **headers)
        for line in answer.headers.get_list("Set-Cookie"):
            name, _, value = line.partition(";")[0].partition("=")
            self._cookies[name] = value.strip('"')
        return answer


def add(site: Site, **changes: object) -> Build:
    """Store an image of alice's that is ready, on a base that the administrator lists."""
    made = Build(str(uuid.uuid4()), "alice", "tools", "base", DIGEST, text="rich\n", state=BuildState.READY)
    made = replace(made, created=site.now, ended=site.now, **changes)  # type: ignore[arg-type]
    site.service.builds.add(made)
    if site.service.images.image("base") is None:
        site.service.images.put([CatalogueImage("base", "/store/base", digest=DIGEST, listed=True)], site.now)
    return made


def scanned(site: Site, build: Build, found: str = "", digest: str = OTHER) -> str:
    """Write down what ``carme-hub image publish`` has found for an administrator; return the digest."""
    wanted = site.service.builds.build(build.id, site.now).wanted  # type: ignore[union-attr]
    assert wanted is not None
    site.service.builds.change(build.id, wanted=wanted.prepared(digest, found))
    return digest


async def answer(site: Site, name: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Ask REST with somebody's token; return the status and what the answer says."""
    found = await site.rest(name, method, path, body)
    return found.code, json.loads(found.body)


def plain(answer: HTTPResponse) -> str:
    """Return what a page says, in one line."""
    text = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", answer.body.decode(), flags=re.DOTALL)
    text = re.sub(r"<[^>]+>", " ", text)
    for sign, meant in (("&lt;", "<"), ("&gt;", ">"), ("&#39;", "'"), ("&#34;", '"'), ("&amp;", "&")):
        text = text.replace(sign, meant)
    return " ".join(text.split())


@asynccontextmanager
async def running(
    folder: Path, monkeypatch: pytest.MonkeyPatch, images: list[dict[str, Any]] | None = None, **settings: Any
) -> AsyncIterator[Site]:
    """Run the service on a free port with an empty database and an empty store."""
    monkeypatch.setattr(HubOAuth, "user_for_token", _user_for_token)
    for name, value in _ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    store = folder / "store"
    store.mkdir(exist_ok=True)
    config = Config()
    config.CarmeStore.url = f"sqlite:///{folder / 'carme-hub.sqlite'}"
    config.CarmeSlurm.cluster = "lab"
    config.CarmeReservations.enabled = True
    config.SlurmContainerSpawner.images = images or []
    config.SlurmContainerSpawner.profile_list = PROFILES
    config.CarmeImages.merge(Config({"enabled": True, "stores": [str(store)], **settings}))
    service = ImagesService(config=config, log=logging.getLogger("test"))
    await service.open()
    service.not_ready = ""
    socket, port = bind_unused_port()
    application = service.web()
    server = HTTPServer(application, max_body_size=1 << 20)
    server.add_sockets([socket])
    try:
        yield Site(service, port, application.settings["cookie_secret"], store)
    finally:
        HubOAuth.clear_instance()  # it keeps this service's variables for the tests of others
        server.stop()
        await server.close_all_connections()
        await service.finish()


async def _user_for_token(_auth: Any, token: str, *_args: Any, **_more: Any) -> Mapping[str, Any] | None:
    """Say what the hub would say: a token is the name of its owner."""
    if token not in SCOPES:
        return None
    kind = "service" if token == "node" else "user"
    return {"kind": kind, "name": token, "groups": GROUPS.get(token, []), "scopes": [ACCESS, *SCOPES[token]]}
