"""A copy is the database at one moment, whoever writes; a check sees what is wrong, and writes nothing."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.databases import OnePostgres
from rig.postgres import programs
from sqlalchemy import Engine, text

from carme_hub.domain.ledger.entries import Entry, Kind
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import StoreError
from carme_hub.store.backup import copy_sqlite, database_file, dump_command
from carme_hub.store.check import Sum, check
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.sessions import SessionStore


def entry(key: str, kind: Kind, amount: int, session: str = "", **more: Any) -> Entry:
    return Entry(key, kind, "lab", "physics", amount, 100.0, "ada", session, **more)


HOLD, MORE = entry("hold:s1", Kind.HOLD, -600, "s1"), entry("hold:s1:1", Kind.HOLD, -300, "s1")
RELEASE = entry("release:s1", Kind.RELEASE, 900, "s1")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    engine = CarmeStore(url=f"sqlite:///{tmp_path / 'carme.sqlite'}").open()
    with LedgerStore(engine).transaction("lab") as writes:
        writes.append([entry("grant:a", Kind.GRANT, 1000)])
    yield tmp_path / "carme.sqlite"
    engine.dispose()


def write(engine: Engine, *entries: Entry) -> None:
    with LedgerStore(engine).transaction("lab") as writes:
        writes.append(entries)


def row(engine: Engine, id: str) -> None:
    request = Request("a100", "default", account="physics")
    SessionStore(engine).add(Session(id, "lab", "ada", "", request, SessionState.RUNNING, 100.0))


def wrong(url: str) -> dict[str, str]:
    return {each.name: each.text for each in check(url).results if not each.passed}


def test_a_copy_holds_whole_transactions_while_others_write(file: Path, tmp_path: Path) -> None:
    engine = CarmeStore(url=f"sqlite:///{file}").open()
    over, wrote = threading.Event(), threading.Event()

    def move() -> None:
        number = 0
        while not over.is_set():
            number += 1
            write(
                engine,
                entry(f"transfer:{number}:out", Kind.GRANT, -7),
                entry(f"transfer:{number}:in", Kind.GRANT, 7),
            )
            wrote.set()

    writer = threading.Thread(target=move)
    writer.start()
    sums: list[Sum] = []
    try:
        assert wrote.wait(20)
        while len(sums) < 100 and (len(sums) < 8 or sums[-1].entries < sums[0].entries + 20):
            sums += check(f"sqlite:///{copy_sqlite(file, tmp_path / f'copy-{len(sums)}')}").sums
    finally:
        over.set()
        writer.join()
        engine.dispose()
    assert {each.amount for each in sums} == {1000}
    assert sums[-1].entries > sums[0].entries > 1


def test_a_copy_is_private_and_one_file_and_replaces_nothing(file: Path, tmp_path: Path) -> None:
    first, second = copy_sqlite(file), copy_sqlite(file)
    assert first != second
    for copy in (first, second):
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        assert check(f"sqlite:///{copy}").passed
    with pytest.raises(StoreError, match="exists already"):
        copy_sqlite(file, first)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_copy_that_root_makes_belongs_to_the_hubs_user(file: Path) -> None:
    os.chown(file, 4711, 4712)
    status = copy_sqlite(file).stat()
    assert (status.st_uid, status.st_gid) == (4711, 4712)


def test_a_damaged_database_is_not_copied_as_if_it_were_whole(file: Path, tmp_path: Path) -> None:
    whole = copy_sqlite(file, tmp_path / "whole")
    content = bytearray(whole.read_bytes())
    content[4096 * 3 : 4096 * 8] = b"\xff" * (4096 * 5)
    whole.write_bytes(content)
    with pytest.raises(StoreError, match=r"damaged|cannot be copied"):
        copy_sqlite(whole, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_backup_of_postgresql_is_made_by_the_command_that_is_said(one_postgres: OnePostgres, tmp_path: Path) -> None:
    server = one_postgres.server()
    with server.database() as url, server.database() as other:
        engine = CarmeStore(url=url).open()
        write(engine, entry("grant:a", Kind.GRANT, 1000), HOLD)
        row(engine, "s1")
        engine.dispose()
        name, *argv = dump_command(url, tmp_path / "carme.dump")
        subprocess.run([programs() / name, *argv], check=True, timeout=120)
        where = [
            f"--host={server.folder}",
            "--username=postgres",
            f"--dbname={other.partition('?')[0].rpartition('/')[2]}",
        ]
        restore = [programs() / "pg_restore", "--clean", *where, tmp_path / "carme.dump"]
        subprocess.run(restore, check=True, timeout=120)
        assert check(other) == check(url)
        assert [(each.kind, each.amount) for each in check(other).sums] == [("grant", 1000), ("hold", -600)]


def test_a_command_for_postgresql_holds_no_password() -> None:
    argv = dump_command("postgresql+psycopg://carme:secret@db.example.org:5433/carme", Path("x.dump"))
    assert argv[1:] == [
        *("--format=custom", "--file=x.dump", "--host=db.example.org", "--port=5433"),
        *("--username=carme", "--dbname=carme"),
    ]


def test_a_whole_ledger_is_found_good_and_summed_by_kind(database_url: str, engine: Engine) -> None:
    write(engine, entry("grant:a", Kind.GRANT, 5000), HOLD, MORE, RELEASE, entry("hold:s2", Kind.HOLD, -50, "s2"))
    row(engine, "s1")
    row(engine, "s2")
    found = check(database_url)
    assert found.passed, found
    assert [(each.kind, each.entries, each.amount) for each in found.sums] == [
        ("grant", 1, 5000),
        ("hold", 3, -950),
        ("release", 1, 900),
    ]


@pytest.mark.parametrize(
    ("entries", "name"),
    [
        ([RELEASE], "releases"),
        ([HOLD, RELEASE], "releases"),
        ([HOLD, MORE, RELEASE.replace(account="teaching")], "releases"),
        ([HOLD], "sessions"),
    ],
)
def test_what_does_not_belong_together_is_found(
    database_url: str, engine: Engine, entries: list[Entry], name: str
) -> None:
    write(engine, *entries)
    assert "s1" in wrong(database_url)[name]


def test_a_list_of_open_holds_that_lost_one_is_found(database_url: str, engine: Engine) -> None:
    row(engine, "s1")
    write(engine, HOLD)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM open_hold"))
    assert "s1" in wrong(database_url)["open holds"]


def test_triggers_that_somebody_dropped_are_named(database_url: str, engine: Engine) -> None:
    sqlite = database_file(database_url) is not None
    drop = "DROP TRIGGER ledger_no_UPDATE" if sqlite else "ALTER TABLE ledger DISABLE TRIGGER ledger_append_only"
    with engine.begin() as connection:
        connection.execute(text(drop))
    assert list(wrong(database_url)) == ["triggers"]


def test_looking_writes_nothing_and_makes_no_database(file: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".sqlite-shm"}
    assert check(f"sqlite:///{file}").passed
    after = {path: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".sqlite-shm"}
    assert {path: content for path, content in after.items() if not path.name.endswith("-shm")} == {
        path: content for path, content in before.items() if not path.name.endswith("-shm")
    }
    with pytest.raises(StoreError, match="There is no database"):
        check(f"sqlite:///{tmp_path / 'none.sqlite'}")
    assert not (tmp_path / "none.sqlite").exists()
