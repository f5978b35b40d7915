"""Session rows survive, are private, and never come back from the dead."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import text

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import SchemaMismatch, StoreError
from carme_hub.store.engine import VERSION_TABLE, CarmeStore, _alembic, backup, make_engine
from carme_hub.store.sessions import SessionStore, _to_row

REQUEST = Request(profile="a100", image="default", gpus=Gpus("a100", 2), cpus=4, memory_mib=8192, time_limit=120)


def session(id: str = "s1", **changes: object) -> Session:
    row = Session(
        id=id,
        cluster="lab",
        user="alice",
        server_name="",
        request=REQUEST,
        state=SessionState.INTENDED,
        created=1000.0,
        nonce_hash="x",
    )
    return row.replace(**changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "carme.sqlite"


@pytest.fixture
def store(path: Path) -> SessionStore:
    return SessionStore(CarmeStore(url=f"sqlite:///{path}").open())


def test_a_row_comes_back_as_it_was_written(store: SessionStore) -> None:
    store.add(session())
    assert store.get("s1") == session()
    assert store.last_of("alice", "") == session()
    assert store.get("other") is None


def test_open_sessions_are_of_one_cluster_and_without_ended_ones(store: SessionStore) -> None:
    store.add(session("s1", created=2.0))
    store.add(session("s2", created=1.0))
    store.add(session("s3", cluster="elsewhere"))
    store.add(session("s4", state=SessionState.ENDED))
    assert [s.id for s in store.open_sessions("lab")] == ["s2", "s1"]


def test_an_ended_session_is_never_reopened(store: SessionStore) -> None:
    store.add(session())
    store.save(session(state=SessionState.ENDED, end_reason="time limit"))
    with pytest.raises(StoreError, match="has ended"):
        store.save(session(state=SessionState.RUNNING))
    found = store.get("s1")
    assert found is not None
    assert (found.state, found.end_reason) == (SessionState.ENDED, "time limit")


def test_a_second_row_of_the_same_id_is_refused(store: SessionStore) -> None:
    store.add(session())
    with pytest.raises(StoreError):
        store.add(session(user="bob"))
    found = store.get("s1")
    assert found is not None
    assert found.user == "alice"


def test_the_database_is_created_private_and_an_open_one_is_refused(path: Path) -> None:
    CarmeStore(url=f"sqlite:///{path}").open()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(StoreError, match="chmod 600"):
        CarmeStore(url=f"sqlite:///{path}").open()


def test_another_schema_is_refused_until_upgraded_with_a_backup(path: Path) -> None:
    url = f"sqlite:///{path}"
    CarmeStore(url=url).open().dispose()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = 'carme9999'")
    connection.close()
    with pytest.raises(SchemaMismatch, match="carme-hub db upgrade"):
        CarmeStore(url=url).open()


#: Columns that the first release did not have.
LATER = ("certificate", "saved", "parent", "server_ended", "server_exit")


def test_sessions_of_the_release_before_are_kept_by_the_upgrade(path: Path) -> None:
    engine = make_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config = _alembic()
        config.attributes["connection"] = connection
        command.upgrade(config, "carme0001")
    old = {n: v for n, v in _to_row(session()).items() if n not in LATER}
    with engine.begin() as connection:
        names = ", ".join(f'"{n}"' for n in old)
        marks = ", ".join(f":{n}" for n in old)
        old["request"] = json.dumps(old["request"])
        connection.execute(text(f"INSERT INTO session ({names}) VALUES ({marks})"), old)
    engine.dispose()
    store = SessionStore(CarmeStore(url=f"sqlite:///{path}", upgrade=True).open())
    assert store.get("s1") == session()
    store.save(session(certificate="f" * 64))
    assert store.get("s1") == session(certificate="f" * 64)


def test_a_backup_holds_what_was_committed_and_is_private(path: Path, store: SessionStore) -> None:
    store.add(session())
    copy = backup(store._engine)
    assert copy is not None
    assert copy.stat().st_mode & 0o777 == 0o600
    assert SessionStore(make_engine(f"sqlite:///{copy}")).get("s1") == session()


def test_a_row_that_cannot_be_understood_is_an_error_not_a_guess(path: Path, store: SessionStore) -> None:
    store.add(session())
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE session SET state = 'sleeping'")
    connection.close()
    with pytest.raises(StoreError, match="s1 cannot be understood"):
        store.get("s1")


def test_companions_are_their_sessions_and_no_server_s(store: SessionStore) -> None:
    store.add(session("s1"))
    big = Request(profile="a100", image="default", gpus=Gpus("a100", 4), nodes=2)
    for at, id in enumerate(("c1", "c2", "c3")):
        store.add(session(id, parent="s1", request=big, created=2000.0 + at))
    store.save(session("c2", parent="s1", request=big, created=2001.0, state=SessionState.ENDED, ended=3000.0))
    last = store.last_of("alice", "")
    assert last is not None
    assert last.id == "s1"
    assert store.last_ends("lab", 0) == []
    assert [s.id for s in store.companions_of("s1", 2)] == ["c2", "c3"]
    assert [s.id for s in store.open_sessions("lab")] == ["s1", "c1", "c3"]
    kept = store.get("c1")
    assert kept is not None
    assert (kept.parent, kept.request.nodes) == ("s1", 2)
