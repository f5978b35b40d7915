"""How full a user's disk is, as far as the site's command can tell; a command that fails holds nobody up."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from forged_login import running
from forged_rest import Service

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.disk.reader import DiskReader
from carme_hub.domain.disk_use import Use, size
from carme_hub.sandbox import disk_usage
from carme_hub.services.quotas.application.disk import bars
from carme_hub.slurm.command import Answer

GIB = 1024**3


def command(folder: Path, body: str) -> list[str]:
    """A command of the site; ``asked`` counts how often it ran."""
    file = folder / "disk-usage"
    file.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n{body}\n')
    file.chmod(0o755)
    return [str(file), "--json"]


def says(folder: Path, answer: object) -> list[str]:
    (folder / "answer").write_text(json.dumps(answer))
    return command(folder, f"cat {folder}/answer")


def asked(folder: Path) -> list[str]:
    file = folder / "asked"
    return file.read_text().splitlines() if file.exists() else []


def reader(argv: list[str], **more: object) -> DiskReader:
    return DiskReader(CarmeQuotas(disk_usage_command=argv, **more), logging.getLogger("test"))


async def test_the_command_is_given_the_user_as_its_last_word_and_asked_once_a_minute(tmp_path: Path) -> None:
    disk = reader(says(tmp_path, {"path": "/home/alice", "used_bytes": 5, "limit_bytes": 10, "owner": "alice"}))
    told = await asyncio.gather(*(disk.usage("alice") for _ in range(5)))
    assert told == [[Use("/home/alice", 5, limit=10)]] * 5
    assert asked(tmp_path) == ["--json alice"]
    await disk.usage("bob")
    assert asked(tmp_path) == ["--json alice", "--json bob"]


async def test_several_places_are_a_list_and_a_limit_may_be_missing(tmp_path: Path) -> None:
    places = [{"path": "/home", "used_bytes": 5, "limit_bytes": 10}, {"path": "/scratch", "used_bytes": 7}]
    told = await reader(says(tmp_path, places)).usage("alice")
    assert told is not None
    assert [(each.path, each.limit) for each in told] == [("/home", 10), ("/scratch", None)]


@pytest.mark.parametrize(
    "body",
    [
        *("exit 3", "echo nonsense", "echo '{}'", """echo '{"path": "/", "used_bytes": -1}'""", "yes", "kill -9 $$"),
        """echo '{"path": "/", "used_bytes": "much"}'""",
    ],
)
async def test_what_the_command_cannot_tell_is_not_known_and_not_asked_again_at_once(
    tmp_path: Path, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = reader(command(tmp_path, body))
    assert [await disk.usage("alice"), await disk.usage("alice")] == [None, None]
    assert len(asked(tmp_path)) == 1
    assert "The disk use of alice is not known" in caplog.text


async def test_a_command_that_hangs_is_ended_and_holds_up_nobody_else(tmp_path: Path) -> None:
    disk = reader(command(tmp_path, "sleep 60"), disk_usage_timeout=1.0)
    began, beats = time.monotonic(), 0
    task = asyncio.create_task(disk.usage("alice"))
    while not task.done():
        await asyncio.sleep(0.01)
        beats += 1
    assert (await task, time.monotonic() - began < 30, beats >= 3) == (None, True, True)


def begun_by(disk: DiskReader, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of users that the command is started for; one that is ended at once may not count itself."""
    stock, began = disk._commands.run, list[str]()

    async def run(argv: Sequence[str]) -> Answer:
        began.append(argv[-1])
        return await stock(argv)

    monkeypatch.setattr(disk._commands, "run", run)
    return began


async def test_nobody_waits_longer_because_others_wait_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = reader(command(tmp_path, "sleep 60"), disk_usage_timeout=0.5, disk_usage_interval=0.0)
    began = begun_by(disk, monkeypatch)
    told = await asyncio.gather(*(disk.usage(f"user{number}") for number in range(16)))
    assert set(told) == {None}
    assert len(set(began)) < 16, "nobody was kept until all had their turn"
    again = await asyncio.gather(*(disk.usage(f"user{number}") for number in range(16)))
    assert set(again) == {None}
    async with asyncio.timeout(60):
        while len(set(began)) < 16:  # all get their turn in the end
            await asyncio.sleep(0.05)
    # Who waits already is not put into the queue again.
    assert [began.count(f"user{number}") for number in (14, 15)] == [1, 1]


async def test_an_answer_that_came_too_late_for_one_page_is_on_the_next(tmp_path: Path) -> None:
    places = json.dumps({"path": "/home/alice", "used_bytes": 5})
    waits = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    disk = reader(command(tmp_path, f"{waits}\necho '{places}'"), disk_usage_timeout=60.0)
    four = [asyncio.create_task(disk.usage(f"user{number}")) for number in range(4)]
    async with asyncio.timeout(60):
        while len(asked(tmp_path)) < 4:
            await asyncio.sleep(0.05)
    disk._settings.disk_usage_timeout = 0.3  # for the next page; commands keep theirs
    assert await disk.usage("user4") is None
    disk._settings.disk_usage_timeout = 60.0
    (tmp_path / "go").touch()
    assert None not in await asyncio.gather(*four)
    assert await disk.usage("user4") == [Use("/home/alice", 5)]
    assert len(asked(tmp_path)) == 5


@pytest.mark.parametrize("name", ["-rf", "../x", "a b", "", "a\n"])
async def test_a_name_that_could_be_an_option_or_a_path_is_not_asked_for(tmp_path: Path, name: str) -> None:
    assert await reader(says(tmp_path, [])).usage(name) is None
    assert asked(tmp_path) == []


async def test_a_command_that_is_not_there_is_not_known(tmp_path: Path) -> None:
    assert await reader([str(tmp_path / "none")]).usage("alice") is None


async def test_the_standing_by_rest_has_it(service: Service, tmp_path: Path) -> None:
    assert (await service.ask("standing", "alice")).json["disk"] is None
    service.settings.disk_usage_command = says(tmp_path, {"path": "/home/alice", "used_bytes": 5, "limit_bytes": 10})
    told = (await service.ask("standing", "alice")).json["disk"]
    assert [(each["path"], each["used_bytes"], each["limit_bytes"], each["shared"]) for each in told] == [
        ("/home/alice", 5, 10, False)
    ]


async def test_the_page_shows_it_or_says_that_it_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = says(tmp_path, {"path": "/home/<alice>", "used_bytes": 19 * GIB, "limit_bytes": 20 * GIB})
    async with running(tmp_path, monkeypatch) as site:
        alice = site.visitor("alice")
        assert "Disk space" not in await alice.text("")
        site.service.settings.disk_usage_command = argv
        assert "Disk space /home/<alice> 19 GiB used of 20 GiB" in await alice.text("")
        site.service.settings.disk_usage_command = ["/bin/false"]
        assert "The use of your disk space is not known at the moment." in await site.visitor("bob").text("")


def test_sizes_are_said_in_the_unit_that_fits() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1536, 10 * 1024, 19 * GIB, 3 * 1024**4)] == [
        *("0 B", "1023 B", "1.0 KiB", "1.5 KiB", "10 KiB", "19 GiB", "3.0 TiB")
    ]
    (bar,) = bars([Use("/x", 9, limit=0)])
    assert (bar.percent, bar.over) == (100, True)


async def test_the_sandboxs_own_command_says_that_its_figures_are_of_everybody(tmp_path: Path) -> None:
    (told,) = await reader([sys.executable, "-I", disk_usage.__file__], disk_usage_timeout=30.0).usage("root") or ()
    assert Path(told.path).is_mount()
    assert Path("/root").is_relative_to(told.path)
    (bar,) = bars([told])
    assert bar.text.endswith(", by all users together")
    assert 0 < told.used <= (told.limit or 0)
