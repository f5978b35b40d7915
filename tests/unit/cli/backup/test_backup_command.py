"""``carme-hub backup``: one private file with all that a hub needs, which is read again; a check finds damage."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import stat
import tarfile
import time
from contextlib import closing
from pathlib import Path

import pytest
from backup_parts import line, site
from rig.command_line import CommandLine
from rig.databases import OnePostgres, one_postgres

from carme_hub.cli.backup import command
from carme_hub.cli.backup.archive import BadBackup, read_manifest, verify
from carme_hub.cli.backup.command import BackupApp, CheckApp
from carme_hub.store.engine import CarmeStore, head_revision

__all__ = ["line", "one_postgres", "site"]


def backup(site: CommandLine, *argv: str) -> Path:
    code, out, err = site.run(BackupApp, *argv)
    assert code == 0, err
    return Path(out.strip())


def roles(archive: Path) -> set[str]:
    return {each.role for each in read_manifest(archive).entries}


def test_all_that_a_hub_needs_is_in_one_private_file(site: CommandLine) -> None:
    (site.folder / "secrets").write_text("OAUTH_CLIENT_SECRET=x\n")
    site.grant("physics", "2h", "--reason", "x")
    archive = backup(site, "--also", str(site.folder / "secrets"))
    assert archive.parent == site.folder / "state" / "backups"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (archive, archive.parent)] == [0o600, 0o700]
    assert roles(archive) == {
        *("JupyterHub.db_url", "CarmeStore.url", "JupyterHub.cookie_secret_file", "the proxy's token", "--also"),
        *("JupyterHub.internal_certs_location", "the configuration file", "CarmeQuotas.policy_file"),
        "CarmeQuotas.audit_file",
    }
    manifest = verify(archive)
    assert manifest.schemas["CarmeStore.url"] == head_revision()
    assert manifest.cluster == "lab"
    assert any("systemd" in text for text in manifest.elsewhere)
    assert list(archive.parent.iterdir()) == [archive], "no copy stays beside it"


def test_the_copies_are_of_one_moment_while_others_write(site: CommandLine) -> None:
    engine = CarmeStore(url=site.url).open()
    with engine.begin() as connection:  # a transaction that is not committed is not in the copy
        connection.exec_driver_sql("CREATE TABLE half_done (x)")
        with tarfile.open(backup(site)) as tar:
            (name,) = [each for each in tar.getnames() if each.endswith("carme-hub.sqlite")]
            tar.extract(name, site.folder / "out")
    engine.dispose()
    with closing(sqlite3.connect(site.folder / "out" / name)) as copy:
        assert ("half_done",) not in copy.execute("select name from sqlite_master").fetchall()


def test_older_ones_are_removed_once_the_new_one_is_verified(
    site: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = site.folder / "kept"
    folder.mkdir()
    old = [folder / f"carme-hub-2026010{day}T000000Z.tar.gz" for day in (1, 2, 3)]
    for each in (*old, folder / "carme-hub-of-mine.tar.gz"):
        each.write_text("x")
    (folder / ".carme-hub-left").mkdir()
    os.utime(folder / ".carme-hub-left", (0, 0))

    def damaged(_archive: Path) -> None:
        raise BadBackup("damaged")

    with monkeypatch.context() as patch:
        patch.setattr(command, "verify", damaged)
        assert site.run(BackupApp, "--to", str(folder), "--keep", "2")[0] == 2
    assert {each.name for each in folder.iterdir()} == {*(each.name for each in old), "carme-hub-of-mine.tar.gz"}
    found = site.json(BackupApp, "--to", str(folder), "--keep", "2")
    assert found["removed"] == [str(each) for each in old[:2]]
    assert {each.name for each in folder.iterdir()} == {
        *(old[2].name, "carme-hub-of-mine.tar.gz", Path(found["file"]).name)
    }


def test_a_check_names_what_is_damaged(site: CommandLine) -> None:
    archive = backup(site)
    code, out, _ = site.run(CheckApp, str(archive))
    assert (code, out.startswith("whole; of ")) == (0, True)
    text = gzip.decompress(archive.read_bytes())
    for change, said in (
        (lambda t: t.replace(b"5" * 64, b"6" * 64, 1), "jupyterhub_cookie_secret (JupyterHub.cookie_secret_file)"),
        (lambda t: t[: len(t) // 2], "damaged"),
        (lambda t: t.replace(b"manifest.json", b"manifest.josn", 1), "no backup of carme-hub"),
        (lambda t: t.replace(b'"format": 1', b'"format": 9', 1), "newer release"),
    ):
        bad = archive.with_name("bad.tar.gz")
        bad.write_bytes(gzip.compress(change(text)))
        code, _, err = site.run(CheckApp, str(bad))
        assert (code, said in err) == (2, True), err
    (archive.with_name("none")).write_text("hello")
    assert site.run(CheckApp, str(archive.with_name("none")))[0] == 2
    assert site.run(CheckApp, str(archive.with_name("missing")))[0] == 2


def test_a_second_in_the_same_second_replaces_nothing(site: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    archive = backup(site)
    before = archive.read_bytes()
    assert site.run(BackupApp)[0] == 1
    assert archive.read_bytes() == before


def test_secrets_of_the_environment_are_named_and_not_written(
    site: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONFIGPROXY_AUTH_TOKEN", "canary-of-the-proxy")
    archive = backup(site)
    assert any("CONFIGPROXY_AUTH_TOKEN" in text for text in read_manifest(archive).elsewhere)
    assert b"canary-of-the-proxy" not in gzip.decompress(archive.read_bytes())


def test_postgresql_is_dumped_by_its_own_program_or_named_as_missing(
    site: CommandLine, one_postgres: OnePostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one_postgres.server().database() as url:
        site.file.write_text(site.file.read_text() + f"c.CarmeStore.url = {url!r}\n")
        archive = backup(site)
        (entry,) = [each for each in read_manifest(archive).entries if each.kind == "postgresql"]
        assert (entry.role, verify(archive).schemas[entry.role]) == ("CarmeStore.url", head_revision())
        with tarfile.open(archive) as tar:
            dump = tar.extractfile(entry.member)
            assert dump is not None
            assert dump.read(5) == b"PGDMP"
        monkeypatch.setenv("PATH", "/nonexistent")
        archive.unlink()
        code, _, err = site.run(BackupApp)
        assert (code, "pg_dump is not on the PATH" in err) == (2, True)
        assert list(archive.parent.iterdir()) == []


def test_the_json_output_says_what_was_written(site: CommandLine) -> None:
    found = site.json(BackupApp, "--to", str(site.folder / "there"))
    assert found["bytes"] == Path(found["file"]).stat().st_size
    checked = site.json(CheckApp, found["file"])
    assert checked["whole"]
    assert len(checked["files"]) == found["files"]
    assert json.dumps(found).count("secret") == 0
