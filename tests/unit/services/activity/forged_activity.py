"""The activity service without a hub and Slurm: its real web server and database; logins and accounts are forged."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from jupyterhub.services.auth import HubOAuth
from tornado.httpclient import AsyncHTTPClient, HTTPResponse
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from traitlets.config import Config

from carme_hub.activity.recorder import Recorder
from carme_hub.activity.settings import CarmeActivity
from carme_hub.activity.tokens import MailTokens, ReporterTokens
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.services.activity.app import ActivityService
from carme_hub.services.activity.application.nodes import ReportingNodes
from carme_hub.services.activity.application.sessions import KnownSessions
from carme_hub.services.activity.scopes import READ, READ_ALL, UNUSED
from carme_hub.sessions.associations import AssociationCache
from carme_hub.slurm.client import Association
from carme_hub.store.activity import ActivityStore
from carme_hub.store.engine import CarmeStore
from carme_hub.store.finished_jobs import FinishedJobStore
from carme_hub.store.sessions import SessionStore

PREFIX = "/services/activity/"
ACCESS = "access:services!service=activity"
#: The hub expands scopes before it says so. ``owner`` coordinates the account physics in Slurm.
SCOPES: dict[str, tuple[str, ...]] = {
    **{"alice": (READ,), "bob": (READ,), "owner": (READ,), "stranger": ()},
    **{"operator": (READ, READ_ALL), "root": (READ, READ_ALL, UNUSED)},
}
ONE, TWO, OTHER = (f"0000000{number}-0000-4000-8000-000000000000" for number in (1, 2, 3))
_ENVIRONMENT = {
    "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
    "JUPYTERHUB_CLIENT_ID": "service-activity",
    "JUPYTERHUB_API_TOKEN": "of-the-service",
    "JUPYTERHUB_API_URL": "http://127.0.0.1:9/hub/api",
    "JUPYTERHUB_BASE_URL": "/",
    "JUPYTERHUB_OAUTH_ACCESS_SCOPES": f'["{ACCESS}"]',
    "JUPYTERHUB_OAUTH_SCOPES": f'["{ACCESS}"]',
}


class SlurmWithAccounts:
    """Slurm as far as associations go."""

    cluster = "lab"

    async def associations(self) -> tuple[Association, ...]:
        return (
            Association("alice", "physics", default=True),
            Association("owner", "physics", default=True, coordinator=True),
        )


class Site:
    """The service, its database, and those who call it."""

    def __init__(self, service: ActivityService, engine: Any, port: int) -> None:
        self.service, self.rows, self.port = service, SessionStore(engine), port
        self.url = f"http://127.0.0.1:{port}{PREFIX}"
        self.tokens = service.tokens

    def session(self, id: str = ONE, user: str = "alice", gpus: int = 2, **changes: Any) -> Session:
        """Write a session that has run for an hour."""
        request = Request("gpu", "base", Gpus("a100", gpus) if gpus else Gpus(), partition="gpu")
        row = Session(id, "lab", user, "", request, SessionState.RUNNING, time.time() - 3600, job_id=7)
        self.rows.add(row.replace(**changes))
        return row

    async def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> HTTPResponse:
        """Send one request."""
        return await AsyncHTTPClient().fetch(
            self.url + path,
            method=method,
            body=body,
            headers=headers,
            raise_error=False,
            allow_nonstandard_methods=True,
            request_timeout=60,
        )

    async def get(self, name: str, path: str) -> HTTPResponse:
        """Ask REST with somebody's token."""
        return await self.ask("GET", f"api/v1/{path}", Authorization=f"token {name}")

    async def report(self, body: bytes, session: str = ONE, token: str | None = None, **headers: str) -> HTTPResponse:
        """Send minutes as a session's reporter does."""
        sent = {
            "Authorization": f"carme-activity {self.tokens.token(session) if token is None else token}",
            "Content-Type": "application/json",
            **headers,
        }
        return await self.ask("POST", f"api/v1/sessions/{session}/minutes", body, **sent)


@asynccontextmanager
async def running(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Site]:
    """Run the service on a free port with an empty database."""
    monkeypatch.setattr(HubOAuth, "user_for_token", _user_for_token)
    for name, value in _ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    config = Config()
    config.CarmeStore.url = f"sqlite:///{folder / 'carme-hub.sqlite'}"
    config.CarmeSlurm.cluster = "lab"
    config.CarmeActivity.merge(Config(settings))
    service = ActivityService(config=config)
    engine = CarmeStore(parent=service).open()
    service.settings = CarmeActivity(parent=service)
    service.tokens = ReporterTokens("key of the test")
    service.sessions = KnownSessions(SessionStore(engine), "lab")
    service.store = ActivityStore(engine, "lab")
    service.recorder = Recorder(service.store, logging.getLogger("test"), collect=0.01)
    service.nodes = ReportingNodes(service.store)
    service.finished_jobs = FinishedJobStore(engine, "lab")
    service.mail_tokens = MailTokens("key of the mails")
    slurm: Any = SlurmWithAccounts()
    service.associations = AssociationCache(slurm)
    service.not_ready = ""
    socket, port = bind_unused_port()
    server = HTTPServer(service.web(), max_body_size=1 << 20)
    server.add_sockets([socket])
    try:
        yield Site(service, engine, port)
    finally:
        HubOAuth.clear_instance()  # it keeps this service's variables for the tests of others
        server.stop()
        await server.close_all_connections()
        engine.dispose()


async def _user_for_token(_auth: Any, token: str, *_args: Any, **_more: Any) -> Mapping[str, Any] | None:
    """Say what the hub would say: a token is the name of its owner."""
    if token not in SCOPES:
        return None
    return {"kind": "user", "name": token, "groups": [], "scopes": [ACCESS, *SCOPES[token]], "admin": False}
