"""Two databases in one PostgreSQL: Carme Hub's own, and JupyterHub's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from jupyterhub import orm
from rig.databases import OnePostgres
from sqlalchemy import text

from carme_hub.fencing import Ticket
from carme_hub.store.engine import make_engine
from carme_hub.store.lease.lease import Lease, LeaseStore


@dataclass
class Databases:
    """The addresses of both."""

    ours: str
    theirs: str

    def host(self) -> LeaseStore:
        """Return the lease as one more host sees it."""
        return LeaseStore(self.ours, self.theirs, "lab")

    def let_pass(self, seconds: float) -> None:
        """Have the lease's last renewal be so much longer ago."""
        engine = make_engine(self.ours)
        with engine.begin() as connection:
            connection.execute(text("UPDATE carme_hub_lease SET beat = beat - :some"), {"some": seconds})
        engine.dispose()


@pytest.fixture
def databases(one_postgres: OnePostgres) -> Iterator[Databases]:
    with one_postgres.server().database() as ours, one_postgres.server().database() as theirs:
        orm.new_session_factory(theirs)().get_bind().dispose()
        yield Databases(ours, theirs)


def take(host: LeaseStore, name: str) -> Lease:
    """Request the lease; the caller compares the holder."""
    return host.acquire(name, f"host of {name}", 12.0, "secrets", "0.3.0")


def ticket(host: LeaseStore, name: str) -> Ticket:
    """Take the lease, which is free, and both fences."""
    lease = take(host, name)
    assert lease.holder == name
    assert host.take_fences(lease.ticket)
    return lease.ticket


@pytest.fixture
def host(databases: Databases) -> Iterator[LeaseStore]:
    """One host's look at the lease."""
    host = databases.host()
    yield host
    host.close()
