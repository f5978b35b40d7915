"""The databases on which the ledger is tested: SQLite in a file, and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine

from carme_hub.store.engine import CarmeStore, make_engine
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.threads import THREAD_COUNT

from .postgres import Postgres, PostgresMissing, postgres

#: How many processes the tests simulate: as many as send requests at the same time.
PROCESSES = THREAD_COUNT


class OnePostgres:
    """The server of this process, started by the first test that needs it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._server: Postgres | None = None

    def server(self) -> Postgres:
        if self._server is None:
            try:
                self._server = self._stack.enter_context(postgres())
            except PostgresMissing as error:
                pytest.fail(str(error), pytrace=False)
        return self._server


@pytest.fixture(scope="session")
def one_postgres() -> Iterator[OnePostgres]:
    one = OnePostgres()
    with one._stack:
        yield one


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, one_postgres: OnePostgres, tmp_path: Path) -> Iterator[str]:
    """The address of an empty database with our schema, once for each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'carme.sqlite'}"
        return
    with one_postgres.server().database() as url:
        yield url


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = CarmeStore(url=database_url).open()
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: Engine) -> LedgerStore:
    return LedgerStore(engine)


@pytest.fixture
def stores(database_url: str) -> Iterator[list[LedgerStore]]:
    """The ledger as in several processes, so that only the database's own lock serializes their writes.

    Threads with the same store would wait for each other in memory.
    """
    CarmeStore(url=database_url).open().dispose()
    engines = [make_engine(database_url) for _ in range(PROCESSES)]
    for engine in engines:
        engine.connect().close()  # so that the time of a connection delays no test
    yield [LedgerStore(engine) for engine in engines]
    for engine in engines:
        engine.dispose()
