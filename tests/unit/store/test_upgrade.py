"""Databases of earlier releases become ones of this release, whole or not at all, also when the upgrade is killed."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rig.databases import OnePostgres, one_postgres
from rig.nightly import NIGHTLY
from sqlalchemy import insert, text

from carme_hub.domain.ledger.entries import Balance, Entry, Kind
from carme_hub.domain.sessions.session import SessionState
from carme_hub.errors import SchemaMismatch
from carme_hub.store.backup import database_file
from carme_hub.store.check import check
from carme_hub.store.engine import CarmeStore, current_revision, head_revision, make_engine, migrate
from carme_hub.store.ledger.idempotency import SentNotice, notices_of
from carme_hub.store.ledger.rows import entry_row
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.sessions import SessionStore
from carme_hub.store.tables import ledger

__all__ = ["one_postgres"]
#: All earlier ones by night; else the oldest, which has the longest way and goes through all, and the newest, whose way
#: most sites go.
EARLIER = [f"carme{number:04}" for number in range(1, int(str(head_revision()).removeprefix("carme")))]
EARLIER = EARLIER if NIGHTLY else [EARLIER[0], EARLIER[-1]]
OPEN = "import sys; from carme_hub.store.engine import CarmeStore; CarmeStore(url=sys.argv[1], upgrade=True).open()"
_ROW = """
INSERT INTO session (id, cluster, "user", server_name, request, state, created, nonce_hash, port, node, job_id,
                     submitted, started, ended, end_reason, cancel_wanted, cancel_reason, token_id)
VALUES (:id, 'lab', 'ada', '', :request, :state, 100, 'abc', 8888, 'node1', 7, 101, 102, :ended, '', 0, '', 3)
"""
_REQUEST = (
    '{"profile": "a100", "image": "default", "gpus": {"type": "a100", "count": 1}, "cpus": 2, "memory_mib": 2048,'
    ' "time_limit": 60, "partition": "gpu", "account": "physics", "qos": ""}'
)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, one_postgres: OnePostgres, tmp_path: Path) -> Iterator[str]:
    """The address of a database with nothing in it."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'carme.sqlite'}"
        return
    server = one_postgres.server()
    server._execute("CREATE DATABASE empty")
    yield server.url("empty")
    server._execute("DROP DATABASE empty WITH (FORCE)")


def old(url: str, revision: str) -> None:
    """Make a database of an earlier release, with a session that runs and one that has ended."""
    engine = make_engine(url)
    migrate(engine, revision)
    with engine.begin() as connection:
        for id, state, ended in (("s1", SessionState.RUNNING, 0), ("s2", SessionState.ENDED, 200)):
            row = {"id": id, "request": _REQUEST, "state": state.value, "ended": ended}
            connection.execute(text(_ROW), row)
    engine.dispose()


def revision(url: str) -> str | None:
    engine = make_engine(url)
    try:
        return current_revision(engine)
    finally:
        engine.dispose()


def copies(url: str) -> list[Path]:
    file = database_file(url)
    return sorted(file.parent.glob(f"{file.name}.2*")) if file else []


def is_used(url: str) -> None:
    """Use a database of this release: what was there is there, and the ledger takes what it should and no more."""
    engine = CarmeStore(url=url).open()
    assert current_revision(engine) == head_revision()
    sessions = SessionStore(engine)
    assert [session.id for session in sessions.open_sessions("lab")] == ["s1"]
    kept = sessions.get("s1")
    assert kept is not None
    assert (kept.job_id, kept.port, kept.certificate, kept.request.account) == (7, 8888, "", "physics")
    sessions.save(kept.replace(certificate="f" * 64))
    hold = Entry("hold:s1", Kind.HOLD, "lab", "physics", -3_600_000, 300.0, "ada", "s1", start=300, end=3900)
    with LedgerStore(engine).transaction("lab") as writes:
        assert writes.append([hold])
        assert set(writes.open_holds()) == {"s1"}
    with pytest.raises(Exception, match="append-only"), engine.begin() as connection:
        connection.execute(text("UPDATE ledger SET amount = 0"))
    engine.dispose()
    assert check(url).passed


@pytest.mark.parametrize("earlier", EARLIER)
def test_an_earlier_database_is_upgraded_when_asked_and_keeps_its_sessions(empty_url: str, earlier: str) -> None:
    old(empty_url, earlier)
    with pytest.raises(SchemaMismatch, match=f"has schema {earlier}.*carme-hub db upgrade"):
        CarmeStore(url=empty_url).open()
    assert not check(empty_url).passed
    assert copies(empty_url) == []
    CarmeStore(url=empty_url, upgrade=True).open().dispose()
    is_used(empty_url)


@pytest.mark.parametrize("earlier", EARLIER)
def test_the_database_as_it_was_is_kept_beside_it(tmp_path: Path, earlier: str) -> None:
    url = f"sqlite:///{tmp_path / 'carme.sqlite'}"
    old(url, earlier)
    CarmeStore(url=url, upgrade=True).open().dispose()
    (copy,) = copies(url)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT version_num FROM carme_alembic_version").fetchall() == [(earlier,)]
        assert connection.execute("SELECT id FROM session ORDER BY id").fetchall() == [("s1",), ("s2",)]
    # The way back: the copy is a whole database, which the earlier release opens and this one upgrades again.
    CarmeStore(url=f"sqlite:///{copy}", upgrade=True).open().dispose()
    is_used(f"sqlite:///{copy}")


@pytest.mark.parametrize("earlier", EARLIER)
def test_an_upgrade_that_is_killed_has_done_nothing_and_is_done_again(empty_url: str, earlier: str) -> None:
    old(empty_url, earlier)
    crash = {**os.environ, "CARME_TEST_BUILD": "1", "CARME_CRASH_AT": "migrating"}
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", OPEN, empty_url], env=crash, timeout=120, check=False)
        assert done.returncode == -9
        assert revision(empty_url) == earlier
    with pytest.raises(SchemaMismatch):
        CarmeStore(url=empty_url).open()
    CarmeStore(url=empty_url, upgrade=True).open().dispose()
    is_used(empty_url)


def test_balances_of_entries_from_before_are_right_after_the_upgrade_and_stay_so(empty_url: str) -> None:
    old(empty_url, "carme0010")
    engine = make_engine(empty_url)
    at = {"at": 300.0, "user": "ada", "actor": "carme-hub"}
    before = [
        Entry("grant:1", Kind.GRANT, "lab", "physics", 9000, **at),
        Entry("correct:1", Kind.CORRECTION, "lab", "physics", -500, **at),
        Entry("hold:s1", Kind.HOLD, "lab", "physics", -700, session="s1", start=300, end=307, **at),
        Entry("release:s1", Kind.RELEASE, "lab", "physics", 700, session="s1", start=300, end=307, **at),
        Entry("hold:s2", Kind.HOLD, "lab", "physics", -70, session="s2", start=300, end=307, **at),
        Entry("charge:1", Kind.CHARGE, "lab", "physics", -300, job_id=1, submitted=1, start=300, end=303, **at),
        Entry("refund:1", Kind.CORRECTION, "lab", "physics", 20, job_id=1, submitted=1, start=300, end=303, **at),
        Entry("grant:2", Kind.GRANT, "lab", "biology", 40, **at),
        Entry("grant:3", Kind.GRANT, "elsewhere", "physics", 3, **at),
    ]
    with engine.begin() as connection:  # as the release of then writes them
        connection.execute(insert(ledger), [entry_row(each) for each in before])
    engine.dispose()
    engine = CarmeStore(url=empty_url, upgrade=True).open()
    physics = Balance(granted=8500, used=280, held=70)
    with LedgerStore(engine).reading("lab") as reads:
        assert reads.balances() == {"physics": physics, "biology": Balance(40)}
    with LedgerStore(engine).reading("elsewhere") as reads:
        assert reads.balances() == {"physics": Balance(3)}
    assert check(empty_url).passed
    with engine.begin() as connection:  # a service of the earlier release that was not stopped
        connection.execute(insert(ledger), [entry_row(before[0].replace(key="grant:4", amount=1))])
    with LedgerStore(engine).reading("lab") as reads:
        assert reads.balances() == {"physics": replace(physics, granted=8501), "biology": Balance(40)}
    engine.dispose()


def test_notices_that_were_sent_are_not_sent_again_after_the_upgrade(empty_url: str) -> None:
    old(empty_url, "carme0003")
    engine = make_engine(empty_url)
    said = '{"key": "week/ada/0/75/ada", "user": "ada", "level": "warning", "text": "75 %"}'
    with engine.begin() as connection:
        for name, value in (("notice", said), ("notice", said), ("rest:0f", '{"digest": ""}'), ("policy", "{}")):
            row = {"name": name, "value": value}
            connection.execute(
                text("INSERT INTO note (cluster, name, at, actor, value) VALUES ('lab', :name, 5, '', :value)"), row
            )
    engine.dispose()
    engine = CarmeStore(url=empty_url, upgrade=True).open()
    with LedgerStore(engine).transaction("lab") as writes:
        assert [(told.user, told.text, told.at) for told in notices_of(writes, "ada", 0)] == [("ada", "75 %", 5)]
        again = SentNotice("week/ada/0/75/ada", "ada", "warning", "75 %", 6)
        assert writes.add_notices([(again, ()), (replace(again, about="week/ada/0/90/ada"), ())]) == [
            replace(again, about="week/ada/0/90/ada")
        ]
        assert (writes.note_history("notice", 9), len(writes.note_history("policy", 9))) == ([], 1)
    engine.dispose()


def test_a_first_start_that_is_killed_leaves_nothing_and_is_done_again(empty_url: str) -> None:
    crash = {**os.environ, "CARME_TEST_BUILD": "1", "CARME_CRASH_AT": "migrating"}
    done = subprocess.run([sys.executable, "-c", OPEN, empty_url], env=crash, timeout=120, check=False)
    assert done.returncode == -9
    assert revision(empty_url) is None
    CarmeStore(url=empty_url).open().dispose()
    assert check(empty_url).passed


@pytest.mark.parametrize("earlier", ["", *(EARLIER if NIGHTLY else EARLIER[-1:])])
def test_the_hub_and_its_services_may_find_an_old_or_new_database_together(empty_url: str, earlier: str) -> None:
    if earlier:
        old(empty_url, earlier)
    several = [subprocess.Popen([sys.executable, "-c", OPEN, empty_url], stderr=subprocess.PIPE) for _ in range(4)]
    ends = [(each.communicate(timeout=120)[1].decode(), each.returncode) for each in several]
    assert [code for _, code in ends] == [0] * 4, ends
    assert check(empty_url).passed
