"""What a scrape says of promises on the ledger: charges that are late, and accounts that got more than was granted."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from carme_hub.domain.ledger.entries import Entry, Kind, hold_key, release_key
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.services.quotas.application.metrics import metrics
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.sessions import SessionStore

NOW = 10_000.0


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()


def entry(kind: Kind, key: str, amount: int, account: str = "physics", session: str = "") -> Entry:
    return Entry(key, kind, "lab", account, amount, 5.0, "ada", session)


def hold(session: str, amount: int = 3_600_000, account: str = "physics") -> Entry:
    return entry(Kind.HOLD, hold_key(session), -amount, account, session)


def write(engine: Engine, *entries: Entry) -> None:
    with LedgerStore(engine).transaction("lab") as writes:
        writes.append(entries)


def row(id: str, ended: float, started: float = 100.0) -> Session:
    state = SessionState.ENDED if ended else SessionState.RUNNING
    return Session(id, "lab", "ada", "", Request("gpu", "base"), state, 50.0, started=started, ended=ended)


def value(engine: Engine, name: str) -> float:
    with LedgerStore(engine).reading("lab") as reads:
        text = metrics(reads, NOW).text()
    [line] = [line for line in text.splitlines() if line.startswith(f"carme_quotas_{name} ")]
    return float(line.split()[1])


def test_the_longest_wait_for_a_charge_is_that_of_the_session_that_ended_first(engine: Engine) -> None:
    rows = SessionStore(engine)
    assert value(engine, "longest_unsettled_seconds") == 0
    for session in (row("runs", 0.0), row("s1", NOW - 400), row("s2", NOW - 100), row("never", NOW - 900, started=0.0)):
        rows.add(session)
    write(engine, *(hold(id) for id in ("runs", "s1", "s2", "never")))
    assert value(engine, "longest_unsettled_seconds") == 400
    write(engine, entry(Kind.RELEASE, release_key("s1"), 3_600_000, session="s1"))
    assert value(engine, "longest_unsettled_seconds") == 100


def test_an_account_is_overdrawn_by_what_it_used_and_holds_and_one_without_grants_is_not(engine: Engine) -> None:
    write(engine, entry(Kind.GRANT, "g1", 7_200_000), hold("s1"), hold("s2", account="free"))
    assert value(engine, "accounts_overdrawn") == 0
    write(engine, entry(Kind.CHARGE, "charge:lab:1:5", -3_600_001).replace(start=1, end=2, job_id=1, submitted=5))
    assert value(engine, "accounts_overdrawn") == 1
