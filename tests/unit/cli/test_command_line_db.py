"""``carme-hub db``: the database is upgraded, copied and checked from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from rig.command_line import CommandLine, line
from rig.databases import OnePostgres, one_postgres

from carme_hub.cli.db import BackupApp, CheckApp, SumApp, UpgradeApp
from carme_hub.cli.quotas.show import ShowApp
from carme_hub.store.engine import current_revision, head_revision, make_engine, migrate

__all__ = ["line", "one_postgres"]


def test_the_database_is_copied_and_checked_from_the_command_line(line: CommandLine) -> None:
    line.grant("physics", "2h", "--reason", "x")
    code, out, _ = line.run(BackupApp, "--to", str(line.folder / "copy.sqlite"))
    assert (code, out) == (0, f"{line.folder / 'copy.sqlite'}\n")
    assert line.run(BackupApp, "--to", str(line.folder / "copy.sqlite"))[0] == 2
    code, out, _ = line.run(CheckApp)
    assert code == 0
    assert out.splitlines()[-1].split() == ["lab", "grant", "1", "2.000"]
    engine = make_engine(line.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER ledger_no_DELETE")
    engine.dispose()
    code, out, _ = line.run(CheckApp)
    assert code == 1
    assert "WRONG" in out
    found = line.json(CheckApp)
    assert [each["name"] for each in found["looked"] if not each["good"]] == ["triggers"]


def test_a_sum_that_differs_is_named_and_made_anew_from_the_command_line(line: CommandLine) -> None:
    line.grant("physics", "2h", "--reason", "x")
    assert line.run(SumApp)[:2] == (0, "every sum was equal to its entries; nothing is changed\n")
    engine = make_engine(line.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE ledger_sum SET amount = 7")
    engine.dispose()
    code, out, _ = line.run(CheckApp)
    assert code == 1
    assert "lab physics grant (kept 7, entries 7200000)" in out
    assert "carme-hub db sum" in out
    changed = {"cluster": "lab", "account": "physics", "kind": "grant", "timed": False, "kept": 7, "entries": 7_200_000}
    code, out, _ = line.run(SumApp)
    assert (code, out.splitlines()[1].split()) == (0, ["lab", "physics", "grant", "no", "7", "7200000"])
    assert line.run(CheckApp)[0] == 0
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE ledger_sum SET amount = 7")
    engine.dispose()
    assert line.json(SumApp) == {"changed": [changed]}
    assert line.run(ShowApp)[1].splitlines()[1].split() == ["physics", "2", "0", "0", "2"]


def test_an_upgrade_says_where_the_database_as_it_was_is_kept(
    line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    line.database.unlink()
    engine = make_engine(line.url)
    migrate(engine, "carme0001")
    engine.dispose()
    UpgradeApp(config_path=str(line.file)).start()
    first, second = capsys.readouterr().out.splitlines()
    assert Path(first.removeprefix("a copy from before the upgrade is in ")).is_file()
    assert second.startswith("the database has schema carme")


def test_a_postgresql_database_is_upgraded_once_somebody_says_that_there_is_a_backup(
    line: CommandLine, one_postgres: OnePostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    server = one_postgres.server()
    server._execute("CREATE DATABASE earlier")
    url = server.url("earlier")
    engine = make_engine(url)
    try:
        migrate(engine, "carme0002")
        line.file.write_text(line.file.read_text() + f"c.CarmeStore.url = {url!r}\n")
        with pytest.raises(SystemExit) as ended:
            UpgradeApp(config_path=str(line.file)).start()
        assert "add --yes" in str(ended.value.code)
        assert "pg_dump --format=custom" in capsys.readouterr().out
        assert current_revision(engine) == "carme0002"
        assert line.run(CheckApp)[0] == 1
        UpgradeApp(config_path=str(line.file), yes=True).start()
        assert current_revision(engine) == head_revision()
        assert line.run(CheckApp)[0] == 0
        assert line.run(BackupApp)[1].splitlines()[1].startswith("  pg_dump ")
        assert line.grant("physics", "100h", "--reason", "x")[0] == 0
        assert line.run(ShowApp)[1].splitlines()[1].split() == ["physics", "100", "0", "0", "100"]
    finally:
        engine.dispose()
        server._execute("DROP DATABASE earlier WITH (FORCE)")
