"""The quotas service without a hub and without Slurm: its real web server and ledger, logins that are forged.

Only two things are not real: what the hub says about a token, and what Slurm says about associations. Cookies, the
token against forged forms, scopes and errors are checked by the code that checks them at a site.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
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

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.price_list import PriceList
from carme_hub.accounting.settings import CarmeQuotas, PolicyInForce
from carme_hub.disk.reader import DiskReader
from carme_hub.domain.ledger.entries import ONE
from carme_hub.domain.ledger.usage import Usage
from carme_hub.services.hub_users import HubUsers
from carme_hub.services.quotas.app import QuotasService
from carme_hub.services.quotas.application.notices import Notices
from carme_hub.services.quotas.application.settlement import SettlementLoop
from carme_hub.services.quotas.scopes import GRANT, MANAGE, POLICY, READ, READ_ALL
from carme_hub.sessions.associations import AssociationCache
from carme_hub.slurm.client import Association
from carme_hub.store.engine import CarmeStore
from carme_hub.store.idle import IdleStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.sessions import SessionStore

PREFIX = "/services/quotas/"
ACCESS = "access:services!service=quotas"
#: A Friday noon, UTC.
NOW = 1_795_176_000.0
#: Who may do what, as the roles of a site give it: all users MANAGE. The hub expands scopes before it says so.
SCOPES: dict[str, tuple[str, ...]] = {
    "alice": (READ, MANAGE),
    "bob": (READ, MANAGE),
    "tina": (READ, MANAGE),
    "root": (READ, READ_ALL, MANAGE, GRANT, POLICY),
    "operator": (READ, READ_ALL, MANAGE),
    "stranger": (),
}
MEMBERS = (
    ("alice", "physics", True, False),
    ("alice", "teaching", False, False),
    ("bob", "physics", True, False),
    ("tina", "teaching", True, True),
)


class SlurmWithAccounts:
    """Slurm as far as associations go."""

    cluster = "lab"
    is_silent = False

    async def associations(self) -> list[Association]:
        if self.is_silent:
            raise OSError("silent")
        return [forged_association(*row) for row in MEMBERS]


def forged_association(user: str, account: str, default: bool, coordinator: bool) -> Association:
    """Return one association with what matters here."""
    known = {"user": user, "account": account, "default": default, "coordinator": coordinator}
    return Association(**{name: value for name, value in known.items() if name in Association.__dataclass_fields__})


@dataclass
class Slurm:
    """What accounting says."""

    usages: list[Usage] = field(default_factory=list)

    async def usage(self, start: float, end: float | None = None, **_more: Any) -> tuple[Usage, ...]:
        return tuple(each for each in self.usages if not each.end or each.end >= start)


class Site:
    """The service and its visitors. ``now`` is moved by hand."""

    prefix = PREFIX

    def __init__(self, service: QuotasService, port: int, slurm: Slurm, secret: bytes) -> None:
        self.service, self.slurm, self.port = service, slurm, port
        self.ledger = service.ledger
        self._secret = secret
        self.now = NOW

    def visitor(self, name: str) -> Visitor:
        """Return a browser in which somebody has logged in; "" = nobody."""
        return Visitor(self, name)

    async def ask(
        self, path: str, method: str = "GET", body: str | None = None, headers: Mapping[str, str] | None = None
    ) -> HTTPResponse:
        """Send one request; redirects are not followed."""
        return await AsyncHTTPClient().fetch(
            f"http://127.0.0.1:{self.port}{self.prefix}{path}",
            method=method,
            body=body,
            headers=dict(headers or {}),
            follow_redirects=False,
            raise_error=False,
            allow_nonstandard_methods=True,
            connect_timeout=120,
            request_timeout=120,
        )

    async def api(self, name: str, method: str, path: str, body: str | None = None, **headers: str) -> HTTPResponse:
        """Ask REST with somebody's token."""
        sent = {"Authorization": f"token {name}", **({"Content-Type": "application/json"} if body else {}), **headers}
        return await self.ask(path, method, body, sent)

    def cookie(self, name: str) -> str:
        """Return the cookie of somebody's login."""
        value = create_signed_value(self._secret, "service-quotas", name).decode()
        return f"service-quotas={value}; jupyterhub-session-id=s-{name}"


class Visitor:
    """A browser: cookies, and forms that are sent as the page has them."""

    def __init__(self, site: Site, name: str) -> None:
        self._site = site
        self._cookies: dict[str, str] = {}
        if name:
            for part in site.cookie(name).split("; "):
                key, _, value = part.partition("=")
                self._cookies[key] = value

    async def get(self, path: str, **headers: str) -> HTTPResponse:
        """Open a page."""
        return await self._send("GET", path, None, {"Sec-Fetch-Mode": "navigate", **headers})

    async def text(self, path: str) -> str:
        """Return a page as text without tags; fails where it is none."""
        answer = await self.get(path)
        assert answer.code == 200, (answer.code, answer.body)
        return plain(answer)

    async def post(self, path: str, **fields: str) -> HTTPResponse:
        """Send a form as a browser does, with the token that the last page had."""
        return await self.raw(path, {"_xsrf": self._cookies.get("_xsrf", ""), **fields})

    async def raw(self, path: str, fields: Mapping[str, str]) -> HTTPResponse:
        """Send just these fields."""
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Mode": "navigate"}
        return await self._send("POST", path, urlencode(fields), headers)

    async def _send(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> HTTPResponse:
        cookie = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        answer = await self._site.ask(path, method, body, {**headers, "Cookie": cookie})
        for line in answer.headers.get_list("Set-Cookie"):
            name, _, value = line.partition(";")[0].partition("=")
            self._cookies[name] = value.strip('"')
            if not value or value == '""':
                del self._cookies[name]
        return answer


def plain(answer: HTTPResponse) -> str:
    """Return what a page says, in one line."""
    text = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", answer.body.decode(), flags=re.DOTALL)
    text = re.sub(r"<[^>]+>", " ", text)
    for sign, meant in (("&lt;", "<"), ("&gt;", ">"), ("&#39;", "'"), ("&#34;", '"'), ("&amp;", "&")):
        text = text.replace(sign, meant)
    return " ".join(text.split())


@asynccontextmanager
async def running(
    folder: Path, monkeypatch: pytest.MonkeyPatch, policy: str = "", **settings: Any
) -> AsyncIterator[Site]:
    """Run the service on a free port with an empty ledger."""
    monkeypatch.setattr(HubOAuth, "user_for_token", _user_for_token)
    for name, value in _ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    config = Config()
    config.CarmeStore.url = f"sqlite:///{folder / 'carme-hub.sqlite'}"
    config.CarmeQuotas.merge(Config(settings))
    if policy:
        (folder / "policy.yaml").write_text(policy)
        config.CarmeQuotas.policy_file = str(folder / "policy.yaml")
    service, slurm = QuotasService(config=config), Slurm()
    site: Site | None = None
    engine = CarmeStore(parent=service).open()
    service.settings = CarmeQuotas(parent=service)
    service.policy = PolicyInForce(service.settings)
    clock: Callable[[], float] = lambda: site.now if site else NOW  # noqa: E731
    service.ledger = Ledger(
        LedgerStore(engine, service.audit()),
        "lab",
        policy=service.policy,
        factor=lambda _type, _partition, _qos: ONE,
        clock=clock,
        running=lambda: service.settlement.running,
    )
    client: Any = SlurmWithAccounts()
    service.associations = AssociationCache(client)
    service.sessions, service.idle_events = SessionStore(engine), IdleStore(engine, "lab")
    service.settlement = SettlementLoop(
        service.settings,
        Any,  # type: ignore[arg-type]
        client,
        service.ledger,
        service.sessions,
        PriceList(service.settings),
        logging.getLogger("test"),
    )
    service.disk = DiskReader(service.settings, logging.getLogger("test"))
    service.hub_users = HubUsers(logging.getLogger("test"))
    service.notices = Notices(
        service.settings, service.ledger, service.associations, service.hub_users, logging.getLogger("test")
    )
    service.settlement._reader = slurm  # type: ignore[assignment]
    service.not_ready = ""
    socket, port = bind_unused_port()
    application = service.web()
    server = HTTPServer(application)
    server.add_sockets([socket])
    site = Site(service, port, slurm, application.settings["cookie_secret"])
    try:
        yield site
    finally:
        server.stop()
        await server.close_all_connections()
        engine.dispose()


_ENVIRONMENT = {
    "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
    "JUPYTERHUB_CLIENT_ID": "service-quotas",
    "JUPYTERHUB_API_TOKEN": "of-the-service",
    "JUPYTERHUB_API_URL": "http://127.0.0.1:9/hub/api",
    "JUPYTERHUB_BASE_URL": "/",
    "JUPYTERHUB_OAUTH_ACCESS_SCOPES": f'["{ACCESS}"]',
    "JUPYTERHUB_OAUTH_SCOPES": f'["{ACCESS}"]',
}


async def _user_for_token(_auth: Any, token: str, *_args: Any, **_more: Any) -> dict[str, Any] | None:
    """Say what the hub would say: a token is the name of its owner."""
    if token not in SCOPES:
        return None
    groups = [f"account:{account}" for user, account, *_ in MEMBERS if user == token]
    return {"kind": "user", "name": token, "groups": groups, "scopes": [ACCESS, *SCOPES[token]], "admin": False}


async def logged_in(site: Site, name: str) -> Visitor:
    """Return the browser of somebody who has logged in, and so has the value that forms carry back."""
    visitor = site.visitor(name)
    await visitor.get("")
    return visitor


async def left(site: Site, account: str = "teaching") -> int:
    """Return what an account has left, in milli-GPU-seconds."""
    return (await site.ledger.balances([account]))[account].left
