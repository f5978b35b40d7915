"""A PostgreSQL that accepts connections and says nothing costs those who ask it an error, and nobody else anything."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.config import Config
from rig.databases import OnePostgres
from sqlalchemy import Engine, text

from carme_hub.accounting.ledger import Ledger
from carme_hub.domain.quotas.policy import Policy
from carme_hub.errors import StoreError
from carme_hub.sessions.registry import SessionRegistry
from carme_hub.store import threads
from carme_hub.store.check import check
from carme_hub.store.engine import CarmeStore, make_engine, migrate
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a port behind which nobody answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"postgresql+psycopg://carme@127.0.0.1:{server.getsockname()[1]}/carme"


@pytest.fixture
def on_server(one_postgres: OnePostgres) -> Iterator[Engine]:
    """A PostgreSQL that answers."""
    with one_postgres.server().database() as url:
        engine = make_engine(url)
        yield engine
        engine.dispose()


async def test_names_are_resolved_while_the_database_is_silent_and_who_asks_it_is_told(silent: str) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(2))  # as few as on a small machine, so that eight readers take them
    engine = make_engine(silent)
    book = SessionRegistry(SessionStore(engine), "lab")
    ledger = Ledger(LedgerStore(engine), "lab", policy=Policy, factor=lambda *_: 1000, clock=time.time)
    asked = [asyncio.ensure_future(each) for _ in range(4) for each in (book.get("s1"), ledger.balances())]
    await asyncio.sleep(0.1)
    assert await asyncio.wait_for(loop.getaddrinfo("localhost", 80), 60)
    assert not any(each.done() for each in asked)
    answers = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
    assert [type(each) for each in answers] == 8 * [StoreError]
    engine.dispose()


@pytest.mark.parametrize("ask", [lambda url: CarmeStore(url=url).open(), check])
def test_a_command_does_not_wait_for_ever_for_a_silent_database(silent: str, ask: object) -> None:
    assert callable(ask)
    with pytest.raises(StoreError, match="timeout"):
        ask(f"{silent}?connect_timeout=2")


async def test_what_finds_no_free_thread_is_refused_and_was_never_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    thaw, taken = threading.Event(), threading.Semaphore(0)
    begun: list[int] = []

    def freeze() -> bool:
        taken.release()
        return thaw.wait(120)

    frozen = [asyncio.ensure_future(in_store_thread(freeze)) for _ in range(threads.THREAD_COUNT)]
    for _ in frozen:
        await asyncio.to_thread(taken.acquire, timeout=60)
    try:
        monkeypatch.setattr(threads, "THREAD_TIMEOUT", 0.2)
        with pytest.raises(StoreError, match="does not answer"):
            await in_store_thread(begun.append, 1)
        monkeypatch.undo()
    finally:
        thaw.set()
    assert await asyncio.gather(*frozen) == threads.THREAD_COUNT * [True]
    assert await in_store_thread(lambda: begun) == []


def test_a_question_has_a_limit_on_postgresql_unless_the_site_set_another(on_server: Engine) -> None:
    assert limit_of(on_server) == "1min"
    own = make_engine(on_server.url.update_query_dict({"options": "-c statement_timeout=5000"}).render_as_string(False))
    assert limit_of(own) == "5s"
    own.dispose()


def test_an_upgrade_may_take_its_time(on_server: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def upgrade(config: Config, _revision: str) -> None:
        limits.append(config.attributes["connection"].execute(text("SHOW statement_timeout")).scalar())

    monkeypatch.setattr("carme_hub.store.engine.command.upgrade", upgrade)
    migrate(on_server)
    assert (limits, limit_of(on_server)) == (["0"], "1min")


def limit_of(engine: Engine) -> object:
    with engine.connect() as connection:
        return connection.execute(text("SHOW statement_timeout")).scalar()
