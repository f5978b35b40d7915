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
from carme_hub.store.backup import give_away
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
    content = backup(site).read_bytes()
    for each in (*old, folder / "carme-hub-of-mine.tar.gz"):
        each.write_bytes(content)
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


def test_neither_the_new_one_nor_those_of_another_site_are_removed(site: CommandLine) -> None:
    folder = site.folder / "shared"
    later = backup(site, "--to", str(folder))
    later = later.rename(folder / "carme-hub-20990101T000000Z.tar.gz")  # of a clock that was wrong
    text = site.file.read_text()
    site.file.write_text(f"{text}c.CarmeSlurm.cluster = 'other'\n")
    theirs = backup(site, "--to", str(folder))
    theirs = theirs.rename(folder / "carme-hub-20200101T000000Z.tar.gz")
    site.file.write_text(text)
    (folder / "carme-hub-20200102T000000Z.tar.gz").write_text("of somebody else")
    found = site.json(BackupApp, "--to", str(folder), "--keep", "1")
    assert found["removed"] == [str(later)]
    assert Path(found["file"]).exists()
    assert theirs.exists()
    assert (folder / "carme-hub-20200102T000000Z.tar.gz").exists()


def test_a_backup_without_a_database_is_none(site: CommandLine) -> None:
    kept = backup(site)
    (site.folder / "state" / "jupyterhub.sqlite").unlink()
    code, _, err = site.run(BackupApp, "--keep", "1")
    assert (code, "there is no database JupyterHub.db_url" in err, "working folder" in err) == (2, True, True)
    assert list(kept.parent.iterdir()) == [kept]


def test_a_list_of_certificates_that_is_being_written_is_read_again(
    site: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = site.folder / "state" / "internal-ssl" / "certipy.json"
    whole = file.read_text()
    file.write_text(whole[: len(whole) // 2])
    with monkeypatch.context() as patch:
        patch.setattr(command, "_PAUSE", 0.001)
        code, _, err = site.run(BackupApp)
        assert (code, "certipy.json is no list of certificates" in err) == (2, True)
        assert list((site.folder / "state" / "backups").iterdir()) == []
    monkeypatch.setattr(command.time, "sleep", lambda _: file.write_text(whole))
    verify(backup(site))


def test_no_link_is_followed_where_root_gives_a_file_away(tmp_path: Path) -> None:
    (tmp_path / "theirs").touch(0o600)
    (tmp_path / "link").symlink_to("theirs")
    with pytest.raises(OSError, match="link"):
        give_away(tmp_path / "link", os.getuid(), os.getgid(), 0o666)
    assert stat.S_IMODE((tmp_path / "theirs").stat().st_mode) == 0o600
    give_away(tmp_path / "theirs", os.getuid(), os.getgid(), 0o640)
    assert stat.S_IMODE((tmp_path / "theirs").stat().st_mode) == 0o640


def test_of_a_folder_that_has_the_hubs_own_files_nothing_is_copied_twice(site: CommandLine) -> None:
    state = site.folder / "state"
    (state / "of-the-site").write_text("x")
    engine = CarmeStore(url=site.url).open()
    first = backup(site, "--also", str(state), "--also", str(site.file))
    second = backup(site, "--also", str(state), "--to", str(site.folder / "others"))
    engine.dispose()
    assert first.parent == state / "backups"
    paths = [each.path for each in read_manifest(first).entries]
    assert len(paths) == len(set(paths))
    assert [Path(each.path).name for each in read_manifest(second).entries if each.role == "--also"] == ["of-the-site"]


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
