"""Places of the setting, asked for with forged commands, in the hub's way: cached, bounded, one failure apart."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.disk.places import places_of
from carme_hub.disk.reader import DiskReader
from carme_hub.domain.disk_use import Use
from carme_hub.errors import ConfigError

MIB = 1024**2


@pytest.fixture
def commands(tmp_path: Path) -> list[str]:
    """Prefix for a command that prints what the file of its name says, and notes its arguments."""
    program = tmp_path / "forged"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncat {tmp_path}/$1.out\n')
    program.chmod(0o755)
    return [str(program)]


def reader(places: list[dict[str, Any]], **more: Any) -> DiskReader:
    settings = CarmeQuotas(disk_places=places, disk_usage_timeout=20.0)
    return DiskReader(settings, logging.getLogger("test"), **more)


async def test_a_home_and_the_projects_of_a_users_accounts_are_asked_for(tmp_path: Path, commands: list[str]) -> None:
    (tmp_path / "lfs.out").write_text("/lustre 1024 0 4096 - 5 0 0 -\n")
    (tmp_path / "zfs.out").write_text("userused@alice\t5\nuserquota@alice\t10\n")
    kept: list[Any] = []

    async def keep(user: str, uses: Any) -> None:
        kept.append((user, list(uses)))

    places = [
        {"path": "/home/{user}", "reader": "zfs", "file_system": "tank/home", "prefix": commands},
        {"path": "/lustre/{account}", "reader": "lustre", "of": "group", "prefix": commands},
    ]
    disk = reader(places, accounts=lambda user: ["lab", "teaching"] if user == "alice" else [], on_answer=keep)
    found = await disk.usage("alice")
    assert found == [
        Use("/home/alice", 5, limit=10),
        Use("/lustre/lab", MIB, limit=4 * MIB, files=5),
        Use("/lustre/teaching", MIB, limit=4 * MIB, files=5),
    ]
    await disk.usage("alice")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 3
    assert "lfs quota -q -g lab /lustre" in asked
    assert kept == [("alice", found)]


async def test_a_place_that_does_not_answer_leaves_out_itself(
    tmp_path: Path, commands: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "zfs.out").write_text("userused@alice\t5\nuserquota@alice\t0\n")
    places = [
        {"path": "/home/{user}", "reader": "zfs", "file_system": "tank/home", "prefix": commands},
        {"path": "/scratch/{user}", "reader": "xfs", "prefix": commands},
    ]
    assert await reader(places).usage("alice") == [Use("/home/alice", 5)]
    assert "The disk use of alice is not known" in caplog.text
    assert await reader(places[1:]).usage("alice") is None


async def test_a_whole_file_system_says_that_it_is_everybodys(tmp_path: Path) -> None:
    found = await reader([{"path": "/home", "reader": "disk", "file_system": str(tmp_path)}]).usage("alice")
    assert found is not None
    assert (found[0].path, found[0].shared, 0 < found[0].used <= (found[0].limit or 0)) == ("/home", True, True)
    # One that is not mounted has no figures, and not those of the file system that its folder is on.
    gone = reader([{"path": "/home", "reader": "disk", "file_system": str(tmp_path / "not/there")}])
    assert await gone.usage("alice") is None


async def test_what_a_shell_on_a_file_server_would_read_again_is_quoted(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    # As ssh(1) does: the words after the host's name, joined by spaces, are a shell's input there.
    ssh.write_text(f'#!/bin/sh\nshift\nPATH={tmp_path}:$PATH exec sh -c "$*"\n')
    (tmp_path / "xfs_quota").write_text(f'#!/bin/sh\nprintf "%s|" "$@" > {tmp_path}/asked\necho "alice 1 0 4 0 [-]"\n')
    for each in (ssh, tmp_path / "xfs_quota"):
        each.chmod(0o755)
    place = {"path": "/home of teams/{user}", "reader": "xfs", "prefix": [str(ssh), "fileserver"]}
    assert await reader([place]).usage("alice") == [Use("/home of teams/alice", 1024, limit=4096)]
    assert (tmp_path / "asked").read_text() == "-x|-c|report -u -N -b -i|/home of teams|"


async def test_a_page_that_waits_less_has_the_answer_the_next_time(tmp_path: Path, commands: list[str]) -> None:
    os.mkfifo(tmp_path / "zfs.out")
    disk = reader([{"path": "/h/{user}", "reader": "zfs", "file_system": "tank", "prefix": commands}])
    assert await disk.usage("alice", 0.01) is None
    await asyncio.to_thread((tmp_path / "zfs.out").write_text, "userused@alice\t5\nuserquota@alice\t10\n")
    assert await disk.usage("alice") == [Use("/h/alice", 5, limit=10)]


async def test_a_home_is_looked_up_once_and_not_in_the_hubs_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def home(_user: str) -> str:
        threads.append(threading.current_thread().name)
        return "/"

    monkeypatch.setattr("carme_hub.disk.reader._home", home)
    found = await reader([{"path": "{home}", "reader": "disk"}] * 2).usage("alice")
    assert [each.path for each in found or ()] == ["/", "/"]
    assert len(threads) == 1
    assert threads[0] != threading.main_thread().name


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"path": "home", "reader": "xfs"}, "absolute path"),
        ({"path": "/home/{user}", "reader": "afs"}, "reader is one of"),
        ({"path": "/home/{user}", "reader": "btrfs", "of": "user"}, "of is one of project"),
        ({"path": "/home/{user}", "reader": "xfs", "prefix": "sudo"}, "list of words"),
        ({"path": "/home/{name}", "reader": "xfs"}, "all that can stand in braces"),
        ({"path": "/home/{user.x}", "reader": "xfs"}, "all that can stand in braces"),
        ({"path": "/home", "reader": "xfs", "mount": "/"}, "'mount' is none of"),
        ({"path": "/home/{user}"}, "reader is one of"),
    ],
)
def test_an_entry_that_cannot_be_understood_is_named(entry: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match="entry 2: .*" + why):
        places_of([{"path": "/home/{user}", "reader": "xfs"}, entry])


def test_the_home_is_that_of_the_system() -> None:
    [place] = places_of([{"path": "{home}", "reader": "btrfs"}])
    [question] = place.questions("root", [], lambda _user: "/root")
    assert (question.path, question.file_system, question.of) == ("/root", "/root", "project")
    assert list(place.questions("nobody-here", [], lambda _user: "")) == []


async def test_a_name_that_could_be_an_option_is_not_asked_for(tmp_path: Path, commands: list[str]) -> None:
    disk = reader([{"path": "/home/{user}", "reader": "xfs", "prefix": commands}])
    for name in ("-rf", "../x", "a b", "", "a\n", "{user}"):
        assert await disk.usage(name) is None
    assert not (tmp_path / "asked").exists()
