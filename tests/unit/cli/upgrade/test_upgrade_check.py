"""``carme-hub upgrade --check`` says what changes, and changes nothing."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import pytest
from rig.command_line import CommandLine, line
from sqlalchemy import inspect

from carme_hub.cli.upgrade.command import UpgradeCheckApp, _classes
from carme_hub.cli.upgrade.releases import GONE, earlier_releases
from carme_hub.paths import share_folder
from carme_hub.store.engine import CarmeStore, head_revision, make_engine, migrate

__all__ = ["line"]


def slurm(line: CommandLine, release: str) -> None:
    program = line.folder / "bin" / "scontrol"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\necho slurm {release}\n")
    program.chmod(0o755)


def add(line: CommandLine, *lines: str) -> None:
    line.file.write_text("\n".join([line.file.read_text(), *lines, ""]))


def parts(line: CommandLine, *argv: str) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for each in line.json(UpgradeCheckApp, "--check", *argv)["findings"]:
        found.setdefault(each["part"], []).append((each["need"], each["text"] + " | " + each["do"]))
    return found


def test_a_site_of_this_release_has_nothing_to_do(line: CommandLine) -> None:
    slurm(line, "24.11.3")
    code, out, err = line.run(UpgradeCheckApp, "--check")
    assert code == 0, out + err
    assert f"it has the schema of this release ({head_revision()}), so the way back is open" in out
    assert "Slurm: 24.11 is tested" in out


def test_a_site_without_the_extra_for_docker_is_checked_too(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm(line, "24.11.3")
    monkeypatch.setitem(sys.modules, "dockerspawner", None)
    monkeypatch.delitem(sys.modules, "carme_hub.spawners.docker.spawner", raising=False)
    code, out, err = line.run(UpgradeCheckApp, "--check")
    assert code == 0, out + err


def test_an_older_database_is_named_with_each_step_and_stays_as_it_is(line: CommandLine) -> None:
    slurm(line, "22.05.8")
    line.database.unlink()
    before = next(each for each in earlier_releases() if each.release == "0.2.0")
    engine = make_engine(line.url)
    migrate(engine, before.schema)
    engine.dispose()
    digest = hashlib.sha256(line.database.read_bytes()).digest()
    code, out, _ = line.run(UpgradeCheckApp, "--check")
    assert code == 1
    assert out.startswith("from 0.2.0 to ")
    assert f"from {before.schema} to {head_revision()} in " in out
    assert "carme0012: " in out
    assert "carme-hub db backup" in out
    assert "new since 0.2.0: CarmeSlurm." in out
    assert hashlib.sha256(line.database.read_bytes()).digest() == digest


def test_a_database_of_a_later_release_is_named(line: CommandLine) -> None:
    engine = make_engine(line.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE carme_alembic_version SET version_num = 'carme9999'")
    engine.dispose()
    (found,) = parts(line)["database"]
    assert found[0] == "act"
    assert "of a later release" in found[1]


def test_a_setting_that_does_not_exist_is_named_with_what_it_may_have_been(line: CommandLine) -> None:
    slurm(line, "24.11.3")
    add(line, "c.CarmeSlurm.submit_commnd = ['x']")
    assert parts(line)["settings"] == [
        (
            "act",
            "c.CarmeSlurm.submit_commnd does not exist in this release, and the hub ignores it | "
            "rename it to CarmeSlurm.submit_command, if that is meant",
        )
    ]


def test_a_helper_of_another_release_is_named_with_the_command_that_replaces_it(line: CommandLine) -> None:
    here = line.folder / "libexec"
    here.mkdir()
    (here / "carme-submit").write_bytes((share_folder() / "libexec/carme-submit").read_bytes())
    (here / "carme-token").write_text("changed by hand")
    add(line, f"c.CarmeSlurm.submit_command = [{str(here / 'carme-submit')!r}]")
    add(line, f"c.CarmeSlurm.token_command = ['sudo', '-n', {str(here / 'carme-token')!r}, 'token']")
    one, two = sorted(parts(line)["helpers"])
    assert one[0] == "act"
    assert "carme-token is that of another release, or was changed | install -o root" in one[1]
    assert two[0] == "fine"


@pytest.mark.parametrize(("release", "need"), [("20.11.9", "act"), ("22.05.8", "fine"), ("25.05.1", "note")])
def test_slurm_is_compared_with_what_is_tested(line: CommandLine, release: str, need: str) -> None:
    slurm(line, release)
    assert [found for found, _ in parts(line)["Slurm"]] == [need]


def test_without_slurm_it_is_not_known(line: CommandLine) -> None:
    assert line.run(UpgradeCheckApp, "--check")[0] == 3


def test_without_check_it_names_the_how_to(line: CommandLine) -> None:
    code, _, err = line.run(UpgradeCheckApp)
    assert code == 2
    assert "docs/howto/upgrade.md" in err


def test_every_setting_that_an_earlier_release_had_exists_or_is_named_as_gone() -> None:
    classes = _classes()
    for release in earlier_releases():
        for section, names in release.settings.items():
            gone = set(names) - set(classes[section].class_trait_names(config=True))
            assert {(section, name) for name in gone} <= set(GONE), release.release


def test_a_database_of_this_schema_is_opened_without_a_step(line: CommandLine) -> None:
    """The way back; test_upgrade_under_sessions.py goes it with a hub and its sessions."""
    digest = hashlib.sha256(line.database.read_bytes()).digest()
    CarmeStore(url=line.url).open().dispose()
    assert hashlib.sha256(line.database.read_bytes()).digest() == digest
    assert [file for file in line.database.parent.iterdir() if file.suffix == ".sqlite"] == [line.database]


def test_every_class_of_the_reference_is_checked() -> None:
    text = (Path(__file__).parents[4] / "docs" / "traits.py").read_text()
    written = set(re.findall(r'^    "carme_hub\.[\w.]+\.(\w+)",$', text, re.MULTILINE))
    assert "CarmeStatus" in written
    assert written == set(_classes())


def test_a_class_that_does_not_exist_is_named_with_what_it_may_have_been(line: CommandLine) -> None:
    slurm(line, "24.11.3")
    add(line, "c.CarmeStats.public = True", "c.CarmeProxy.api_url = 'https://proxy:8001'")
    assert parts(line)["settings"] == [
        (
            "act",
            "c.CarmeStats does not exist in this release, and the hub ignores it | "
            "rename it to c.CarmeStatus, if that is meant",
        )
    ]


def test_a_database_that_does_not_answer_is_not_known_and_the_rest_is_checked(line: CommandLine) -> None:
    slurm(line, "24.11.3")
    add(line, "c.CarmeStore.url = 'postgresql+psycopg://carme@/carme?host=/nowhere'")
    found = parts(line)
    assert [need for need, _ in found["database"] + found["sessions"]] == ["unknown", "unknown"]
    assert [need for need, _ in found["Slurm"]] == ["fine"]
    assert line.run(UpgradeCheckApp, "--check")[0] == 3


@pytest.mark.parametrize(("sessions", "need"), [(1, "act"), (0, "fine")])
def test_sessions_of_a_release_before_the_tested_ones_have_to_end(line: CommandLine, sessions: int, need: str) -> None:
    slurm(line, "24.11.3")
    line.database.unlink()
    engine = make_engine(line.url)
    migrate(engine, "carme0001")
    with engine.begin() as connection:
        columns = [each["name"] for each in inspect(connection).get_columns("session") if not each["nullable"]]
        values = ", ".join("'running'" if name == "state" else "1" for name in columns)
        names = ", ".join(f'"{name}"' for name in columns)
        for _ in range(sessions):
            connection.exec_driver_sql(f"INSERT INTO session ({names}) VALUES ({values})")
    engine.dispose()
    ((found, text),) = parts(line)["sessions"]
    assert found == need
    assert ("upgrade when they have ended" in text) is (need == "act")
