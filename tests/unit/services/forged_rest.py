"""The quotas service on a real server and a real ledger; only what the hub and Slurm would say is made up."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyterhub.services.auth import HubOAuth
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from carme_hub.accounting.audit import audit_records
from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.reconciliation import Reconciliation
from carme_hub.accounting.settings import CarmeQuotas, PolicyInForce, write_policy
from carme_hub.accounting.settlement import SettlementResult
from carme_hub.disk.reader import DiskReader
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR, Entry, Kind
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.policy import parse_policy
from carme_hub.errors import SlurmUnreachable
from carme_hub.services.hub_users import HubUsers
from carme_hub.services.quotas.app import QuotasService
from carme_hub.services.quotas.application.notices import Notices
from carme_hub.services.quotas.application.settlement import RECONCILED, as_note
from carme_hub.services.quotas.scopes import GRANT, MANAGE, POLICY, READ, READ_ALL, READ_SESSION
from carme_hub.store.engine import CarmeStore
from carme_hub.store.idle import IdleStore
from carme_hub.store.ledger.writes import CommittedChanges, LedgerStore
from carme_hub.store.sessions import SessionStore

PREFIX = "/services/quotas/"
REST = PREFIX + "api/v1/"
#: 2026-11-21 12:00 UTC.
NOW = 1_795_262_400.0
ACCESS = "access:services!service=quotas"
ALL = (READ, READ_ALL, MANAGE, GRANT, POLICY)
POLICY_NOW = {"quotas": [{"id": "month", "user": "*", "gpu_time": 10, "window": "month"}], "currency": "EUR"}


def model(name: str, *scopes: str, kind: str = "user") -> dict[str, Any]:
    """What the hub says of somebody."""
    return {"name": name, "kind": kind, "groups": [], "scopes": [ACCESS, *scopes], "session_id": None}


#: By token: a user, a user with two accounts, the owner of one, administrators, and others.
PEOPLE = {
    "alice": model("alice", READ, MANAGE),
    "looker": model("tina", READ),
    "bob": model("bob", READ, MANAGE),
    "tina": model("tina", READ, MANAGE),
    "ada": model("ada", *ALL),
    "olga": model("olga", READ, READ_ALL),
    "nobody": model("nobody"),
    "alices-session": model("alice", READ_SESSION),
    "tinas-session": model("tina", READ_SESSION),
    "robot": model("alice", READ, kind="service"),
    "namesake": model("tina", *ALL[:3], kind="service"),
    "giver": model("tina", *ALL, kind="service"),
    "prometheus": model("prometheus", READ_ALL, kind="service"),
}


class ForgedLogin(HubOAuth):
    """Knows the tokens of PEOPLE, and asks no hub."""

    async def _check_hub_authorization(self, url: str, api_token: str, **_cache: Any) -> Any:
        return PEOPLE.get(api_token)


class ForgedBook:
    """Who may charge and coordinates what."""

    known = True
    _accounts = {"alice": ("physics", "teaching"), "bob": ("physics",), "tina": ("teaching",)}

    async def refresh(self) -> bool:
        return True

    def accounts_of(self, user: str) -> tuple[str, ...]:
        return self._accounts.get(user, ())

    def coordinates(self, user: str) -> tuple[str, ...]:
        return ("teaching",) if user == "tina" else ()

    def coordinators_of(self, account: str) -> tuple[str, ...]:
        return tuple(user for user in self._accounts if account in self.coordinates(user))

    def users_of(self, account: str) -> tuple[str, ...]:
        return tuple(user for user, names in self._accounts.items() if account in names)

    def accounts(self) -> tuple[str, ...]:
        return ("physics", "teaching")


class ForgedSettling:
    """Settles nothing, and compares what it is told to."""

    problem = ""

    def __init__(self, ledger: Ledger) -> None:
        self.running: tuple[Usage, ...] = ()
        self.silent = False
        self._ledger = ledger

    async def settle(self, *, days: float | None = None) -> SettlementResult:
        if self.silent:
            raise SlurmUnreachable("sacct: error: secret words of Slurm")
        return SettlementResult()

    async def reconcile(self, start: float, end: float, *, actor: str) -> Reconciliation:
        found = Reconciliation(start, end, 0, 0, 0)
        await self._ledger.add_note(RECONCILED, as_note(found), actor=actor)
        return found


@dataclass
class Answer:
    """One answer."""

    status: int
    text: str
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Service(QuotasService):
    """The service, ready, without its loop."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.log = logging.getLogger("forged-service")
        file = folder / "policy.yaml"
        write_policy(file, parse_policy(POLICY_NOW))
        self.settings = CarmeQuotas(
            policy_file=str(file), price_of_gpu_hour="2.00", audit_file=str(folder / "audit.jsonl")
        )
        self.policy = PolicyInForce(self.settings)
        self._engine = CarmeStore(url=f"sqlite:///{folder / 'carme.sqlite'}").open()
        self.now = NOW
        self.ledger = Ledger(
            LedgerStore(self._engine, self._tell),
            "lab",
            policy=self.policy,
            factor=lambda _type, _partition, _qos: 1000,
            clock=lambda: self.now,
            running=lambda: self.settlement.running,
        )
        self.associations = ForgedBook()  # type: ignore[assignment]
        self.settlement: Any = ForgedSettling(self.ledger)
        self.sessions, self.idle_events = SessionStore(self._engine), IdleStore(self._engine, "lab")
        self.disk = DiskReader(self.settings, self.log)
        self.hub_users = HubUsers(self.log)
        self.notices = Notices(self.settings, self.ledger, self.associations, self.hub_users, self.log)
        self.not_ready = ""
        self.written: list[tuple[str, str, Mapping[str, str]]] = []
        sockets = bind_sockets(0, "127.0.0.1", family=socket.AF_INET)
        self.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        self.app = self.web()
        self._server = HTTPServer(self.app)
        self._server.add_sockets(sockets)

    def _tell(self, done: CommittedChanges) -> None:
        self.audit()(done)
        self.written += [(each.action, each.actor, each.details) for each in audit_records(done)]

    async def close(self) -> None:
        self._server.stop()
        await self._server.close_all_connections()
        self._engine.dispose()

    async def ask(
        self,
        path: str,
        who: str = "",
        *,
        method: str = "GET",
        body: Any = None,
        key: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request to REST; ``who`` is a token of PEOPLE."""
        sent = dict(headers or {})
        if who:
            sent["Authorization"] = f"token {who}"
        if key:
            sent["Idempotency-Key"] = key
        data = None
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
            data = body if isinstance(body, str) else json.dumps(body)
        request = HTTPRequest(
            self.url + (path if path.startswith("/") else REST + path),
            method=method,
            headers=sent,
            body=data,
            follow_redirects=False,
            allow_nonstandard_methods=True,
            connect_timeout=120,
            request_timeout=120,
        )
        answer = await AsyncHTTPClient().fetch(request, raise_error=False)
        return Answer(answer.code, answer.body.decode(), {k.title(): v for k, v in answer.headers.items()})

    async def post(self, path: str, who: str, body: Any, key: str = "k1") -> Answer:
        return await self.ask(path, who, method="POST", body=body, key=key)


def charge(job: int, user: str = "alice", account: str = "teaching", hours: int = 1, **more: object) -> Entry:
    end = int(NOW) - job * 10
    return Entry(
        f"charge:lab:{job}:5",
        Kind.CHARGE,
        "lab",
        account,
        -hours * GPU_HOUR,
        NOW - job,
        user,
        job_id=job,
        submitted=5,
        start=end - hours * 3600,
        end=end,
        gpus=(Gpus("a100", 1),),
        reason=f"job {job}",
    ).replace(**more)


def used(service: Service, *entries: Entry) -> None:
    with service.ledger.context.store.transaction("lab") as writes:
        writes.append(entries)
