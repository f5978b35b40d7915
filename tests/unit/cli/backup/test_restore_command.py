"""``carme-hub restore FILE``: everything back in its place, nothing overwritten, and nothing done by halves."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import stat
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from backup_parts import close, hub_rows, line, site
from jupyterhub import orm
from rig.command_line import CommandLine
from rig.databases import OnePostgres, one_postgres

from carme_hub.cli.backup import restore
from carme_hub.cli.backup.command import BackupApp
from carme_hub.cli.backup.restore import RestoreApp
from carme_hub.cli.hub_config import hub_of, load_config
from carme_hub.errors import StoreError
from carme_hub.store.check import check
from carme_hub.store.engine import VERSION_TABLE, CarmeStore, make_engine
from carme_hub.store.lease.lease import LeaseStore

__all__ = ["line", "one_postgres", "site"]


@pytest.fixture
def archive(site: CommandLine) -> Path:
    """A backup of the site, outside of its folders."""
    site.grant("physics", "2h", "--reason", "x")
    code, out, err = site.run(BackupApp, "--to", str(site.folder / "backups"))
    assert code == 0, err
    return Path(out.strip())


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in sorted(folder.rglob("*"))
        if each.is_file() and not each.name.endswith(("-wal", "-shm"))
    }


def changed(archive: Path, **fields: Any) -> Path:
    """Return a copy of a backup whose manifest says something else."""
    text = gzip.decompress(archive.read_bytes())
    start, end = text.index(b"{"), text.index(b"\0", text.index(b"{"))
    manifest = json.loads(text[start:end])
    for name, value in fields.items():
        manifest[name] = value(manifest[name]) if callable(value) else value
    new = json.dumps(manifest).encode()
    assert len(new) <= end - start
    other = archive.with_name("changed.tar.gz")
    other.write_bytes(gzip.compress(text[:start] + new.ljust(end - start) + text[end:]))
    return other


def test_what_is_lost_comes_back_as_it_was(site: CommandLine, archive: Path) -> None:
    state = site.folder / "state"
    before = contents(state)
    shutil.rmtree(state)
    (site.folder / "policy.yaml").unlink()
    code, out, err = site.run(RestoreApp, str(archive))
    assert code == 0, err
    assert set(contents(state)) == set(before)
    for name in ("jupyterhub_cookie_secret", "proxy-token", "internal-ssl/certipy.json", "audit.jsonl"):
        assert contents(state)[name] == before[name]
    assert check(site.url).passed
    rows = hub_rows(site)
    assert [user.name for user in rows.query(orm.User)] == ["ada"]
    close(rows)
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in state.rglob("*.sqlite")} == {0o600}
    assert (site.folder / "policy.yaml").exists()
    assert "restore --from-slurm" in out
    assert "carme-hub doctor" in out


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_root_gives_each_file_to_whom_it_belonged(site: CommandLine, tmp_path: Path) -> None:
    database = site.folder / "state" / "carme-hub.sqlite"
    shutil.chown(database, "daemon", "daemon")
    _, out, _ = site.run(BackupApp, "--to", str(site.folder / "backups"))
    assert site.run(RestoreApp, out.strip(), "--into", str(tmp_path / "new"))[0] == 0
    restored = tmp_path / "new" / "carme-hub.sqlite"
    assert (restored.owner(), restored.group()) == ("daemon", "daemon")


def test_it_refuses_while_a_hub_answers(site: CommandLine, archive: Path) -> None:
    hub = hub_of(load_config(site.file))
    with closing(socket.create_server(("127.0.0.1", urlsplit(hub.hub_bind_url).port or 0))):
        code, _, err = site.run(RestoreApp, str(archive), "--replace", "--yes")
    assert (code, "A hub answers on 127.0.0.1" in err) == (1, True)


def test_the_configuration_is_found_where_the_backup_had_it(site: CommandLine, archive: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        text = site.file.read_text()
        site.file.write_text(f"{text}c.JupyterHub.hub_bind_url = 'http://127.0.0.1:{other.getsockname()[1]}'\n")
        site.file = site.folder / "of-no-working-folder.py"
        code, _, err = site.run(RestoreApp, str(archive), "--replace", "--yes")
    assert (code, "A hub answers on 127.0.0.1" in err) == (1, True)


def test_what_is_there_is_never_overwritten(site: CommandLine, archive: Path) -> None:
    site.grant("physics", "5h", "--reason", "later")
    before = contents(site.folder / "state")
    for argv in (["--dry-run"], []):
        code, _, err = site.run(RestoreApp, str(archive), *argv)
        assert code == (0 if argv else 1), err
        assert contents(site.folder / "state") == before
    assert "--replace" in err
    code, _, err = site.run(RestoreApp, str(archive), "--replace")
    assert (code, "add --yes" in err) == (2, True)
    assert site.run(RestoreApp, str(archive), "--replace", "--yes")[0] == 0
    after = contents(site.folder / "state")
    kept = {name.partition(".before-restore-")[0]: text for name, text in after.items() if ".before-restore-" in name}
    assert kept["carme-hub.sqlite"] == before["carme-hub.sqlite"]
    assert "jupyterhub_cookie_secret" not in kept, "what is the same stays as it is"
    assert after["audit.jsonl"] == before["audit.jsonl"], "its newest lines are not in the backup"
    assert [(sum.kind, sum.amount) for sum in check(site.url).sums] == [("grant", 7_200_000)]


def test_a_log_of_another_database_is_not_applied_to_the_restored_one(site: CommandLine, archive: Path) -> None:
    log = site.database.with_name("carme-hub.sqlite-wal")
    log.write_bytes(b"of another database")
    assert site.run(RestoreApp, str(archive), "--replace", "--yes")[0] == 0
    assert not log.exists()
    assert check(site.url).passed


def test_below_another_folder_certificates_are_found_there(site: CommandLine, archive: Path, tmp_path: Path) -> None:
    code, out, err = site.run(RestoreApp, str(archive), "--into", str(tmp_path / "new"))
    assert code == 0, err
    new = tmp_path / "new"
    assert str(site.folder / "state") not in (new / "internal-ssl" / "certipy.json").read_text()
    elsewhere = new / "elsewhere" / site.file.relative_to("/")
    assert elsewhere.read_text() == site.file.read_text()
    assert f"Name {new} as the state folder" in out
    before = (site.folder / "state/internal-ssl/hub-internal/hub-internal.crt").read_bytes()
    assert (new / "internal-ssl/hub-internal/hub-internal.crt").read_bytes() == before


def test_a_dry_run_says_what_would_become_of_each_file(site: CommandLine, archive: Path) -> None:
    (site.folder / "state" / "proxy-token").unlink()
    found = site.json(RestoreApp, str(archive), "--dry-run")
    acts = {Path(each["path"]).name: each["act"] for each in found["would"]}
    assert acts["proxy-token"] == "write"
    assert acts["carme-hub.sqlite"] == "rename the present one, write"
    assert acts["jupyterhub_cookie_secret"] == "is there already"
    assert acts["audit.jsonl"].startswith("stays")
    assert not (site.folder / "state" / "proxy-token").exists()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"schemas": {"CarmeStore.url": "carme9999"}}, "install carme-hub"),
        ({"schemas": {"JupyterHub.db_url": "f00f00"}}, "install jupyterhub"),
        ({"entries": lambda old: [{**old[0], "path": "/../x"}, *old[1:]]}, "no absolute path"),
    ],
)
def test_a_backup_that_does_not_fit_changes_nothing(
    site: CommandLine, archive: Path, fields: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carme_hub.cli.backup.archive._check_database", lambda *_: None)
    other = changed(archive, **fields)
    before = contents(site.folder / "state")
    code, _, err = site.run(RestoreApp, str(other), "--replace", "--yes")
    assert (code in (1, 2), said in err) == (True, True), err
    assert contents(site.folder / "state") == before


def test_where_a_folder_cannot_be_written_nothing_is_put_in_place(site: CommandLine, archive: Path) -> None:
    state, policy = site.folder / "state", site.folder / "policy.yaml"
    shutil.rmtree(state / "internal-ssl")
    (state / "internal-ssl").write_text("a file in the place of the folder")
    before = contents(state)
    assert site.run(RestoreApp, str(archive), "--replace", "--yes")[0] == 2
    assert contents(state) == before
    assert policy.read_text() == "zone: Europe/Berlin\nquotas: []\n"


def test_a_restore_that_was_killed_is_run_again(site: CommandLine, archive: Path) -> None:
    (site.folder / "state" / "proxy-token").unlink()
    (site.folder / "state" / ".proxy-token.4711.half").write_text("half a tok")
    assert site.run(RestoreApp, str(archive), "--replace", "--yes")[0] == 0
    assert (site.folder / "state" / "proxy-token").read_text() == "5" * 64
    assert list((site.folder / "state").rglob("*.half")) == []


def test_files_whose_names_begin_alike_are_all_restored(site: CommandLine) -> None:
    files = [site.folder / name for name in ("key.old", "key")]
    for each in files:
        each.write_text(each.name)
    also = [word for each in files for word in ("--also", str(each))]
    _, out, _ = site.run(BackupApp, "--to", str(site.folder / "backups"), *also)
    for each in files:
        each.unlink()
    code, _, err = site.run(RestoreApp, out.strip(), "--replace", "--yes")
    assert code == 0, err
    assert [each.read_text() for each in files] == ["key.old", "key"]


def test_settings_that_name_another_host_are_explained(site: CommandLine, archive: Path, tmp_path: Path) -> None:
    address = {"JupyterHub.hub_bind_url": "https://192.0.2.7:8081", "JupyterHub.bind_url": "http://192.0.2.7"}
    other = changed(archive, addresses=address)
    _, out, _ = site.run(RestoreApp, str(other), "--into", str(tmp_path / "new"))
    assert "192.0.2.7 is not an address of this machine" in out
    assert "Give this host the address or the name" in out


def test_postgresql_is_restored_and_what_it_had_is_kept(
    site: CommandLine, one_postgres: OnePostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one_postgres.server().database() as url:
        site.file.write_text(site.file.read_text() + f"c.CarmeStore.url = {url!r}\n")
        CarmeStore(url=url).open().dispose()
        site.grant("physics", "2h", "--reason", "x")
        _, out, err = site.run(BackupApp, "--to", str(site.folder / "backups"))
        archive = out.strip()
        site.grant("physics", "5h", "--reason", "later")
        code, _, err = site.run(RestoreApp, archive)
        assert (code, "CarmeStore.url" in err or "there already" in err) == (1, True)
        code, out, err = site.run(RestoreApp, archive, "--replace", "--yes")
        assert code == 0, err
        assert [(sum.kind, sum.amount) for sum in check(url).sums] == [("grant", 7_200_000)]
        assert len(list((site.folder / "state").glob("*-database.dump.before-restore-*"))) == 1
        assert "CarmeStore.url is restored" in out
        into = site.run(RestoreApp, archive, "--into", str(site.folder / "new"))[1]
        assert "pg_restore --clean" in into, "a server that this folder has no settings for is not touched"
        for each in (site.folder / "state").glob("*-database.dump.before-restore-*"):
            each.unlink()
        with monkeypatch.context() as patch:
            patch.setattr(restore, "restore_postgresql", fails)
            code, _, err = site.run(RestoreApp, archive, "--replace", "--yes")
        assert (code, "CarmeStore.url is not restored, and is as it was: no room" in err) == (2, True)
        engine = make_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = 'carme0001'")
        engine.dispose()
        before = contents(site.folder / "state")
        code, _, err = site.run(RestoreApp, archive, "--replace", "--yes")
        assert (code, "CarmeStore.url has schema carme0001" in err) == (1, True)
        assert contents(site.folder / "state") == before


def fails(*_: object) -> None:
    raise StoreError("no room")


def test_it_refuses_while_the_hub_of_another_host_has_the_lease(site: CommandLine, one_postgres: OnePostgres) -> None:
    server = one_postgres.server()
    with server.database() as url, server.database() as hub_url:
        site.file.write_text(f"{site.file.read_text()}c.CarmeStore.url = {url!r}\nc.JupyterHub.db_url = {hub_url!r}\n")
        CarmeStore(url=url).open().dispose()
        close(orm.new_session_factory(hub_url)())
        archive = site.run(BackupApp, "--to", str(site.folder / "backups"))[1].strip()
        leases = LeaseStore(url, hub_url, "lab")
        held = leases.acquire("x", "host-a", 3600.0, "", "1")
        for argv in ([archive, "--replace", "--yes"], ["--from-slurm"]):
            code, _, err = site.run(RestoreApp, *argv)
            assert (code, "The hub on host-a is active" in err) == (1, True), err
        assert leases.release(held.ticket)
        leases.close()
        code, _, err = site.run(RestoreApp, archive, "--replace", "--yes")
        assert code == 0, err
