"""A hub that may not be the active one ends before JupyterHub touches its database."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub import orm
from jupyterhub.app import JupyterHub
from leased_databases import Databases, take, ticket
from traitlets.config import Config

from carme_hub import fencing
from carme_hub.fencing import NOT_ACTIVE, VARIABLE, Ticket
from carme_hub.spawners.hub.startup import _check_lease_first
from carme_hub.store.lease.lease import LeaseStore


class OurSpawner:
    """A class of spawners that the hub has."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The hubs whose database JupyterHub has opened."""
    found: list[Any] = []

    def init_db(app: Any) -> None:
        app.db = orm.new_session_factory(app.db_url)()
        found.append(app)

    monkeypatch.setattr(JupyterHub, "init_db", init_db)
    _check_lease_first(OurSpawner)
    yield found
    fencing.check_with(None)
    for app in found:
        app.db.close()
        app.db.get_bind().dispose()


def start(databases: Databases, monkeypatch: pytest.MonkeyPatch, holder: Ticket | None, ours: str = "") -> int:
    """Start a hub as far as its database; return its exit status, 0 if it goes on."""
    monkeypatch.delenv(VARIABLE, raising=False)
    if holder is not None:
        monkeypatch.setenv(VARIABLE, str(holder))
    config = Config({"CarmeStore": {"url": ours or databases.ours}, "CarmeSlurm": {"cluster": "lab"}})

    class Proxy:
        async def add_route(self) -> None: ...
        async def delete_route(self) -> None: ...

    def leave(status: int) -> None:
        raise SystemExit(status)

    app = SimpleNamespace(
        _start_future=object(),
        spawner_class=OurSpawner,
        proxy_class=Proxy,
        config=config,
        db_url=databases.theirs,
        log=logging.getLogger("hub"),
        exit=leave,
    )
    try:
        JupyterHub.init_db(app)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_active_hub_begins_and_one_that_was_frozen_in_its_start_stands_by_again(
    databases: Databases, host: LeaseStore, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ticket(host, "one")
    assert start(databases, monkeypatch, mine) == 0
    databases.let_pass(13)
    ticket(host, "two")
    assert start(databases, monkeypatch, mine) == NOT_ACTIVE
    assert len(opened) == 1, "the second one has not touched the database"


def test_a_hub_without_lease_begins_only_where_certainly_nobody_has_one(
    databases: Databases, host: LeaseStore, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start(databases, monkeypatch, None) == 0
    gone = databases.ours.partition("?")[0] + "?host=/nowhere"
    assert start(databases, monkeypatch, None, gone) == 1
    take(host, "one")
    assert start(databases, monkeypatch, None) == 1
    assert len(opened) == 1
