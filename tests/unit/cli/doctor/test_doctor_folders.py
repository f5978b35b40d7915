"""The doctor on shared folders: the program, its settings, sudo and the roots, each fault by its setting."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from jupyterhub.app import JupyterHub
from traitlets.config import Config

from carme_hub.cli.doctor import folders
from carme_hub.cli.doctor.findings import Finding, Level
from carme_hub.paths import share_folder

AS_ROOT = os.geteuid() == 0
pytestmark = pytest.mark.skipif(not AS_ROOT, reason="the program belongs to root")


class Machine:
    """A machine on which shared folders are installed, with a sudo that a test writes."""

    def __init__(self, place: Path) -> None:
        self.program, self.settings = place / "libexec" / "carme-folders", place / "etc" / "carme-folders.json"
        for folder in ("libexec", "etc", "root"):
            (place / folder).mkdir(mode=0o755)
        for name in ("carme-folders", "carme-folders-acls", "carme-folders-tree"):
            shutil.copyfile(share_folder() / "libexec" / name, place / "libexec" / name)
            (place / "libexec" / name).chmod(0o755)
        self.root, self.sudo = place / "root", place / "sudo"
        self.settings.write_text(json.dumps({"group": "root", "roots": {"projects": str(self.root)}}))
        self.settings.chmod(0o644)
        self.write_sudo('shift; exec "$@"')
        self.config = Config()
        self.config.CarmeFolders.enabled = True
        self.config.CarmeFolders.roots = {"projects": str(self.root)}
        self.config.CarmeFolders.command = [str(self.sudo), "-n", str(self.program)]

    def write_sudo(self, script: str) -> None:
        """Write the program that stands for sudo."""
        self.sudo.write_text(f"#!/bin/sh\n{script}\n")
        self.sudo.chmod(0o755)

    def found(self) -> list[Finding]:
        """Return the findings."""
        return list(folders.check(self.config))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    real = folders._changeable
    # The folders of tests are below /tmp, and those above may be anybody's.
    monkeypatch.setattr(folders, "_changeable", lambda part: real(part) if part.is_relative_to(tmp_path) else "")
    tmp_path.chmod(0o755)
    return Machine(tmp_path)


def test_what_is_installed_as_the_guide_says_has_nothing_to_mend(machine: Machine) -> None:
    assert [one for one in machine.found() if one.setting != "fs.protected_hardlinks"] == []


def test_without_folders_nothing_is_looked_at(machine: Machine) -> None:
    machine.config.CarmeFolders.enabled = False
    machine.program.unlink()
    assert machine.found() == []


@pytest.mark.parametrize(("name", "value"), [("roots", {}), ("command", [])])
def test_what_the_service_needs_is_named(machine: Machine, name: str, value: object) -> None:
    machine.config.CarmeFolders[name] = value
    [one] = machine.found()
    assert (one.level, one.setting) == (Level.UNSAFE, f"CarmeFolders.{name}")
    assert "does not start" in one.why


def faults(machine: Machine, fault: str) -> None:
    """Bring a fault about."""
    tree = machine.program.with_name("carme-folders-tree")
    match fault:
        case "no program":
            machine.program.unlink()
        case "no second file":
            tree.unlink()
        case "writable":
            tree.chmod(0o666)
        case "not root's":
            os.chown(machine.program, 65534, 65534)
        case "a folder above":
            machine.program.parent.chmod(0o777)
        case "another release":
            tree.write_text(tree.read_text() + "\n")
        case "no settings":
            machine.settings.unlink()
        case "writable settings":
            machine.settings.chmod(0o666)
        case "other roots":
            machine.config.CarmeFolders.roots = {"projects": "/srv/elsewhere"}
        case "no rule":
            machine.write_sudo("echo 'sudo: a password is required' >&2; exit 1")
        case "a quota":
            machine.config.CarmeFolders.disk_quotas = {"projects": {"reader": "afs"}}
        case "no numbers":
            machine.config.CarmeFolders.disk_quotas = {"projects": {"reader": "lustre"}}
        case "no third file":
            machine.program.with_name("carme-folders-acls").unlink()
        case "no way":
            machine.root.chmod(0o700)
        case "no acls":
            machine.write_sudo(
                """echo '{"error": "this file system is NFS version 4", "reason": "no-acl"}' >&2; exit 1"""
            )


@pytest.mark.parametrize(
    ("fault", "setting", "said"),
    [
        ("no program", folders.COMMAND, "is not on this machine"),
        ("no second file", folders.COMMAND, "is not on this machine"),
        ("writable", folders.COMMAND, "others than root can write it"),
        ("not root's", folders.COMMAND, "others than root own it"),
        ("a folder above", folders.COMMAND, "others than root can write it"),
        ("another release", folders.COMMAND, "another release"),
        ("no settings", folders.ROOTS, "has no settings"),
        ("writable settings", folders.ROOTS, "others than root can write it"),
        ("other roots", folders.ROOTS, "has other roots"),
        ("no rule", folders.COMMAND, "a password is required"),
        ("no third file", folders.COMMAND, "is not on this machine"),
        ("a quota", folders.QUOTAS, "reader is one of"),
        ("no numbers", folders.QUOTAS, "has no project_ids for projects"),
        ("no way", folders.ROOTS, "chmod o+x"),
        ("no acls", folders.ROOTS, "NFS version 4"),
    ],
)
def test_each_fault_is_named_with_what_to_do(machine: Machine, fault: str, setting: str, said: str) -> None:
    faults(machine, fault)
    found = [one for one in machine.found() if one.setting == setting]
    assert any(said in one.why for one in found), machine.found()
    assert all(one.level is Level.UNSAFE and one.mend for one in found)


@pytest.mark.parametrize(
    ("hub", "own", "said"),
    [
        ({"hub_ip": "10.0.0.1", "bind_url": "http://127.0.0.1:8000"}, {}, "the proxy listens on 127.0.0.1 alone"),
        ({"hub_ip": "10.0.0.1"}, {"url": "http://127.0.0.1/services/folders/"}, "is the node itself"),
        ({"hub_ip": "10.0.0.1"}, {}, "travel unencrypted"),
        ({"hub_ip": "10.0.0.1", "public_url": "https://hub.example.org/"}, {}, ""),
        ({"hub_ip": "127.0.0.1"}, {}, ""),
    ],
)
def test_an_address_that_jobs_do_not_reach_is_named(
    machine: Machine, hub: dict[str, str], own: dict[str, str], said: str
) -> None:
    machine.config.CarmeFolders.merge(Config(own))
    machine.config.JupyterHub.merge(Config(hub))
    found = list(folders.check_jobs(JupyterHub(config=machine.config), machine.config))
    assert [one.setting for one in found] == (["CarmeFolders.url"] if said else [])
    assert all(said in one.why and one.mend for one in found)


def test_a_program_without_an_answer_is_unknown(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_SECONDS", 0.1)
    machine.write_sudo("exec sleep 20")
    [one] = [one for one in machine.found() if one.setting == folders.ROOTS]
    assert (one.level, "gave no answer" in one.why) == (Level.UNKNOWN, True)
