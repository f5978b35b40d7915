"""The doctor on the commands that say how full disks are: what this machine lacks of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from traitlets.config import Config

from carme_hub.cli.doctor import disk
from carme_hub.cli.doctor.findings import Finding, Level


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all programs that this machine has."""
    monkeypatch.setattr(disk, "SBIN", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def findings(*places: dict[str, object]) -> list[Finding]:
    config = Config()
    config.CarmeQuotas.disk_places = list(places)
    return list(disk.check(config))


HOMES: dict[str, object] = {"path": "/home/{user}", "reader": "xfs"}


def test_a_site_without_places_needs_nothing(programs: Path) -> None:
    assert findings() == []


@pytest.mark.parametrize(
    ("reader", "says"),
    [("xfs", "install xfsprogs"), ("lustre", "install Lustre's client"), ("gpfs", "Storage Scale"), ("zfs", "zfs")],
)
def test_a_command_that_is_missing_is_named_with_what_to_install(programs: Path, reader: str, says: str) -> None:
    [found] = findings({"path": "/data/{user}", "reader": reader, "file_system": "tank/data"})
    assert (found.level, found.value) == (Level.UNSAFE, "/data/{user}")
    assert "so nobody learns how full /data/{user} is" in found.why
    assert says in found.mend
    assert "prefix = ['ssh', 'fileserver']" in found.mend


def test_of_a_place_that_sudo_or_another_machine_asks_only_what_is_used_here_is_looked_at(programs: Path) -> None:
    [found] = findings({**HOMES, "prefix": ["sudo", "-n"]})
    assert "the program sudo is not" in found.why
    for name in ("sudo", "ssh"):
        (programs / name).touch(0o755)
    [found] = findings({**HOMES, "prefix": ["sudo", "-n"]})
    assert "the program xfs_quota is not" in found.why
    assert findings({**HOMES, "prefix": ["ssh", "fileserver"]}) == []
    (programs / "xfs_quota").touch(0o755)
    assert findings(HOMES, {**HOMES, "prefix": ["sudo", "-n"]}) == []


def test_an_entry_that_is_wrong_is_named(programs: Path) -> None:
    [found] = findings({"path": "home"})
    assert "entry 1: path is an absolute path" in found.why
