"""The folders service without a hub and Slurm: its real web server and database, and a disk in memory."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from jupyterhub.services.auth import HubOAuth
from tornado.httpclient import AsyncHTTPClient, HTTPResponse
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from traitlets.config import Config

from carme_hub.folders.scopes import ADMIN, READ, WRITE
from carme_hub.folders.settings import CarmeFolders
from carme_hub.services.folders.app import FoldersService
from carme_hub.sessions.associations import AssociationCache
from carme_hub.slurm.client import Association
from carme_hub.slurm.command import Answer
from carme_hub.store.engine import CarmeStore
from carme_hub.store.sessions import SessionStore

PREFIX = "/services/folders/"
ACCESS = "access:services!service=folders"
SCOPES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("ann", "ben", "cleo"), (READ, WRITE)),
    **{"reader": (READ,), "stranger": (), "root": (READ, WRITE, ADMIN)},
}
UIDS = {"ann": 2001, "ben": 2002, "cleo": 2003, "root": 2009}
_ENVIRONMENT = {
    "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
    "JUPYTERHUB_CLIENT_ID": "service-folders",
    "JUPYTERHUB_API_TOKEN": "of-the-service",
    "JUPYTERHUB_API_URL": "http://127.0.0.1:9/hub/api",
    "JUPYTERHUB_BASE_URL": "/",
    "JUPYTERHUB_OAUTH_ACCESS_SCOPES": f'["{ACCESS}"]',
    "JUPYTERHUB_OAUTH_SCOPES": f'["{ACCESS}"]',
}
_COUNTS = dict.fromkeys(("files", "folders", "links", "hard_links", "strange", "too_deep", "errors", "mended"), 0)


class SlurmWithAccounts:
    """Slurm as far as associations go: ann coordinates physics, where ben is, too."""

    cluster = "sun"

    async def associations(self) -> tuple[Association, ...]:
        return (
            Association("ann", "physics", default=True, coordinator=True),
            Association("ben", "physics", default=True),
        )


class DiskInMemory:
    """Answers as carme-folders does, and keeps who may do what in memory."""

    def __init__(self) -> None:
        self.folders: dict[str, dict[str, Any]] = {}
        self.refuses = ""

    async def run(self, argv: Sequence[str], *, timeout: float | None = None) -> Answer:
        if self.refuses:
            return Answer(2, "", json.dumps({"error": self.refuses, "reason": "disk-full"}))
        _, act, _root, *rest = argv
        if act == "list":
            return Answer(0, "\n".join(json.dumps(self._row(id)) for id in self.folders), "")
        id, *more = rest
        if act == "remove":
            self.folders.pop(id, None)
            return Answer(0, "{}", "")
        folder = self.folders.setdefault(id, {"members": {}, "published": False})
        if act in ("grant", "revoke"):
            uid = UIDS.get(more[0]) or int(more[0])
            folder["members"].pop(str(uid), None)
            folder["members"].update({str(uid): more[1]} if act == "grant" else {})
            return Answer(0, json.dumps({**self._row(id), "uid": uid}), "")
        if act == "publish":
            folder["published"] = more[0] == "yes"
        if act in ("scan", "repair", "spread"):
            return Answer(0, json.dumps({**_COUNTS, "files": 3, "unusable": {"2002": 1}, "names": ["a\nb"]}), "")
        return Answer(0, json.dumps(self._row(id)), "")

    def _row(self, id: str) -> Mapping[str, Any]:
        return {"id": id, "writers_outside": [], "odd": [], **self.folders[id]}


class Site:
    """The service, its database and disk, and those who call it."""

    def __init__(self, service: FoldersService, engine: Any, disk: DiskInMemory, port: int) -> None:
        self.service, self.disk, self.sessions = service, disk, SessionStore(engine)
        self.url = f"http://127.0.0.1:{port}{PREFIX}"

    async def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> HTTPResponse:
        """Send one request."""
        return await AsyncHTTPClient().fetch(
            self.url + path,
            method=method,
            body=body,
            headers=headers,
            raise_error=False,
            follow_redirects=False,
            allow_nonstandard_methods=True,
            request_timeout=60,
        )

    async def rest(self, name: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Call REST with somebody's token; return status and document."""
        sent = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"token {name}", **({"Content-Type": "application/json"} if sent else {})}
        answer = await self.ask(method, f"api/v1/{path}", sent, **headers)
        return answer.code, json.loads(answer.body or b"null")

    async def done(self, name: str, method: str, path: str, body: object = None) -> Any:
        """Call REST, which succeeds."""
        status, answer = await self.rest(name, method, path, body)
        assert status == 200, answer
        return answer

    async def page(self, name: str, path: str) -> str:
        """Return a page as somebody sees it; the token stands in for the login."""
        answer = await self.ask("GET", path, Authorization=f"token {name}")
        assert answer.code == 200, answer.body
        return answer.body.decode()

    async def form(self, who: str, path: str, /, **fields: str) -> tuple[int, str]:
        """Send a form; return status and what the page after it says, or the refusal."""
        answer = await self.ask("POST", path, urlencode(fields).encode(), **_form_headers(who))
        if answer.code != 303:
            return answer.code, re.sub(r"\s+", " ", answer.body.decode())
        cookie = answer.headers.get("Set-Cookie", "").partition(";")[0]
        after = await self.ask(
            "GET", answer.headers["Location"].removeprefix(PREFIX), Authorization=f"token {who}", Cookie=cookie
        )
        return answer.code, re.sub(r"\s+", " ", after.body.decode())


def _form_headers(name: str) -> dict[str, str]:
    return {"Authorization": f"token {name}", "Content-Type": "application/x-www-form-urlencoded"}


@asynccontextmanager
async def running(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Site]:
    """Run the service on a free port with an empty database."""
    monkeypatch.setattr(HubOAuth, "user_for_token", _user_for_token)
    for name, value in _ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    config = Config()
    config.CarmeStore.url = f"sqlite:///{folder / 'carme-hub.sqlite'}"
    config.CarmeFolders.merge(Config({"roots": {"projects": "/srv/folders"}, "command": ["carme-folders"], **settings}))
    service = FoldersService(config=config)
    engine, disk = CarmeStore(parent=service).open(), DiskInMemory()
    slurm: Any = SlurmWithAccounts()
    service.use(CarmeFolders(parent=service), engine, "sun", AssociationCache(slurm), disk, slurm)
    service.not_ready = ""
    socket, port = bind_unused_port()
    server = HTTPServer(service.web(), max_body_size=1 << 20)
    server.add_sockets([socket])
    try:
        yield Site(service, engine, disk, port)
    finally:
        HubOAuth.clear_instance()  # it keeps this service's variables for the tests of others
        await service.reconciler.walks_done()
        server.stop()
        await server.close_all_connections()
        engine.dispose()


async def _user_for_token(_auth: Any, token: str, *_args: Any, **_more: Any) -> Mapping[str, Any] | None:
    """Say what the hub would say: a token is the name of its owner."""
    if token not in SCOPES:
        return None
    groups = ["lab"] if token == "cleo" else []
    return {"kind": "user", "name": token, "groups": groups, "scopes": [ACCESS, *SCOPES[token]], "admin": False}
