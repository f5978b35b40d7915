"""The calendar's pages and REST without a hub and without Slurm: the real web server, desk and database.

What is not real: what the hub says about a token, and what Slurm says about nodes and associations.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from forged_login import Site as AnySite
from forged_login import forged_association
from jupyterhub.services.auth import HubOAuth
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import create_signed_value
from traitlets.config import Config

from carme_hub.booking.bookings import Booker
from carme_hub.booking.calendar import BookingRequest, RequestedTime
from carme_hub.booking.settings import CarmeReservations
from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.recurrence import Recurrence
from carme_hub.domain.calendar.reservations import Reservation
from carme_hub.domain.cluster.jobs import Job, Snapshot
from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.quotas.group_names import accounts_in, person_in
from carme_hub.errors import SlurmUnreachable
from carme_hub.services.reservations.app import ReservationsService
from carme_hub.services.reservations.scopes import ADMIN, READ, WRITE
from carme_hub.slurm.client import Association
from carme_hub.store.engine import CarmeStore

PREFIX = "/services/reservations/"
ACCESS = "access:services!service=reservations"
#: A Friday noon, UTC.
NOW = 1_795_176_000.0
HOUR = 3600
SCOPES: dict[str, tuple[str, ...]] = {
    "tina": (READ, WRITE),
    "alice": (READ, WRITE),
    "bob": (READ, WRITE),
    "reader": (READ,),
    "root": (READ, WRITE, ADMIN),
    "stranger": (),
}
GROUPS = {
    "tina": ("account:teaching", "role:teacher"),
    "alice": ("account:physics", "ml-course"),
    "bob": ("account:biology",),
}
NODES = tuple(
    Node(name, "idle", True, ("gpu",), cpus, gpus={type: 4})
    for name, type, cpus in (("gpu1", "a100", 32), ("gpu2", "a100", 32), ("gpu3", "h100", 64))
)
PROFILES = [{"slug": "pytorch", "display_name": "PyTorch, one GPU", "gpus": {"types": ["a100"], "max": 1}}]


class Slurm:
    """What Slurm says; ``silent`` is one that does not answer."""

    cluster = "lab"

    def __init__(self) -> None:
        self.silent = False
        self.running: tuple[Job, ...] = ()

    async def nodes(self) -> tuple[Node, ...]:
        if self.silent:
            raise SlurmUnreachable("slurmctld does not answer")
        return NODES

    async def snapshot(self) -> Snapshot:
        if self.silent:
            raise SlurmUnreachable("slurmctld does not answer")
        return Snapshot(0.0, 0.0, {job.id: job for job in self.running})

    async def associations(self) -> list[Association]:
        found = [
            (user, group.removeprefix("account:"))
            for user, groups in GROUPS.items()
            for group in groups
            if group.startswith("account:")
        ]
        return [forged_association(user, account, True, False) for user, account in found]


class Site(AnySite):
    """The service and its visitors. ``now`` is moved by hand."""

    service: ReservationsService  # type: ignore[assignment]
    slurm: Slurm  # type: ignore[assignment]

    def __init__(self, service: ReservationsService, port: int, slurm: Slurm, secret: bytes) -> None:
        self.service, self.port, self.slurm, self._secret = service, port, slurm, secret
        self.prefix, self.now = PREFIX, NOW

    def cookie(self, name: str) -> str:
        """Return the cookie of somebody's login."""
        value = create_signed_value(self._secret, "service-reservations", name).decode()
        return f"service-reservations={value}; jupyterhub-session-id=s-{name}; carme-zone=Europe/Berlin"

    def booker(self, user: str) -> Booker:
        """Return as whom somebody books."""
        person = person_in(user, GROUPS.get(user, ()))
        return Booker(person, accounts_in(GROUPS.get(user, ())), admin=user == "root")

    async def book(
        self,
        user: str,
        title: str,
        start: float,
        hours: float = 2,
        *,
        need: Need | None = None,
        recurrence: Recurrence | None = None,
        wait: bool = False,
        **more: Any,
    ) -> tuple[Reservation, ...]:
        """Book something, as somebody would."""
        who, time = self.booker(user), RequestedTime(Period(int(start), int(start + hours * HOUR)))
        wish = BookingRequest(
            user, who.accounts[0], title, need or Need("a100", 1), (time,), zone="Europe/Berlin", **more
        )
        return await self.service.bookings.book(who, wish, recurrence, wait=wait)


@asynccontextmanager
async def running(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: str = "",
    *,
    port: int = 0,
    by_node: bool = False,
    **settings: Any,
) -> AsyncIterator[Site]:
    """Run the service on a free port with an empty calendar.

    Args:
        by_node: whether Slurm keeps whole nodes only. settings: of ``CarmeReservations``.
    """
    HubOAuth.clear_instance()  # there is one in a process, and that of another service knows other scopes
    monkeypatch.setattr(HubOAuth, "user_for_token", _user_for_token)
    for name, value in _ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    (folder / "policy.yaml").write_text(policy or "zone: Europe/Berlin\n")
    config = Config()
    config.CarmeStore.url = f"sqlite:///{folder / 'carme-hub.sqlite'}"
    config.CarmeQuotas.policy_file = str(folder / "policy.yaml")
    config.CarmeQuotas.enabled = True
    config.SlurmContainerSpawner.profile_list = PROFILES
    config.CarmeReservations.merge(Config({"share": 100, **settings}))
    service, slurm = ReservationsService(config=config), Slurm()
    site: Site | None = None
    service.clock = lambda: site.now if site else NOW
    engine = CarmeStore(parent=service).open()
    service.compose(
        CarmeReservations(parent=service),
        engine,
        "lab",
        client=slurm,
        reservations=None,
        usage=_nothing_used,
        by_node=by_node,
    )
    service.hub_users.people = {user: person_in(user, groups) for user, groups in GROUPS.items()}
    service.hub_users._answered_at = float("inf")  # as fresh as it gets
    await service.slurm_view.look()
    service.reconciler.seen = ()  # Slurm has said that there are none
    service.not_ready = ""
    application = service.web()
    server = HTTPServer(application)
    server.add_sockets(bind_sockets(port, "127.0.0.1"))
    there = port or next(iter(server._sockets.values())).getsockname()[1]
    site = Site(service, there, slurm, application.settings["cookie_secret"])
    try:
        yield site
    finally:
        server.stop()
        await server.close_all_connections()
        engine.dispose()
        HubOAuth.clear_instance()


async def _nothing_used(_start: float, *_more: Any) -> tuple[Any, ...]:
    return ()


_ENVIRONMENT = {
    "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
    "JUPYTERHUB_CLIENT_ID": "service-reservations",
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
    groups = list(GROUPS.get(token, ()))
    return {"kind": "user", "name": token, "groups": groups, "scopes": [ACCESS, *SCOPES[token]], "admin": False}
