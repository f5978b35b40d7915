"""The largest folders: what is on the disk, links once and not followed, and what cannot be read is said."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from files_server import Server

from carme_hub.files import measure, measurements
from carme_hub.files.measure import DEPTH, LOOK_EVERY, MOST_SECONDS, measured
from carme_hub.files.measurements import Measurements
from carme_hub.files.places import quoted
from carme_hub.spawners.handlers.disk import Folders
from carme_hub.training.server.disk_upload import fitting

MIB = 1 << 20


def tree(top: Path) -> None:
    (top / "data/raw/deep").mkdir(parents=True)
    (top / "small").mkdir()
    (top / "data/raw/deep/one").write_bytes(os.urandom(3 * MIB))
    (top / "data/two").write_bytes(os.urandom(MIB))
    os.link(top / "data/two", top / "small/again")
    (top / "small/link").symlink_to("/")
    with (top / "small/sparse").open("wb") as file:
        file.truncate(1 << 40)


def test_folders_have_all_that_is_below_and_the_largest_is_first(tmp_path: Path) -> None:
    tree(tmp_path)
    found = measured(str(tmp_path))
    assert [each["path"] for each in found["folders"]] == ["data", "data/raw", "small"]
    sizes = {each["path"]: each["bytes"] for each in found["folders"]}
    assert 3 * MIB <= sizes["data/raw"] < 3.2 * MIB
    assert 4 * MIB <= sizes["data"] + sizes["small"] < 4.2 * MIB  # a hard link counts once, a hole not at all
    assert sizes["small"] < 2 * MIB
    assert (found["files"], found["complete"], found["root"]) == (4, True, str(tmp_path))
    assert DEPTH == 2


def test_it_stops_in_time_with_what_it_has(tmp_path: Path) -> None:
    for number in range(3 * LOOK_EVERY):
        (tmp_path / f"{number}").touch()
    clock = itertools.chain([0.0], itertools.repeat(MOST_SECONDS + 1))
    found = measured(str(tmp_path), lambda: next(clock))
    assert (found["complete"], found["files"]) == (False, LOOK_EVERY)


@pytest.mark.parametrize("bound", ["MOST_WAITING", "MOST_SUMS", "MOST_LINKS"])
def test_a_tree_beyond_what_is_remembered_is_measured_in_part_or_less_finely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(measure, bound, 3)
    for number in range(9):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}/file").touch()
    found = measured(str(tmp_path))
    assert (found["complete"], found["files"]) == ((False, 3) if bound == "MOST_WAITING" else (True, 9))
    assert len(found["folders"]) == (2 if bound == "MOST_SUMS" else 9)


def test_the_longest_names_of_folders_are_what_the_hub_takes() -> None:
    folders = [{"path": "\N{PILE OF POO}" * 1000, "bytes": 9 - n, "files": 1} for n in range(20)]
    sent = fitting({"root": "/home/a", "bytes": 9, "files": 9, "complete": True, "folders": folders})
    assert len(json.dumps(sent)) <= 64 << 10
    assert [each["bytes"] for each in Folders.model_validate(sent).model_dump()["folders"]] == [9, 8, 7, 6]


async def test_a_hub_that_takes_no_result_does_not_let_the_home_be_measured_every_hour(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(measurements, "EVERY", 0.48)
    looks: list[Path] = []

    async def old() -> float:
        return 90_000.0

    found = Measurements(lambda _found: asyncio.sleep(0), old, tmp_path)
    monkeypatch.setattr(found, "start", looks.append)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.15):
            await found.look_daily()
    assert looks == [tmp_path]


def test_the_page_measures_and_shows_it(server: Server, folder: Path) -> None:
    tree(folder)
    before = server.ask("GET", f"/carme/files?path={quoted(folder)}")
    assert "Measure this folder" in before.text
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = server.ask("POST", "/carme/files/measure", headers, f"path={quoted(folder)}")
    assert (answer.status, answer.headers["location"]) == (303, f"/carme/files?path={quoted(folder)}#largest")
    end = time.monotonic() + 30
    while "in 4 files" not in (text := server.ask("GET", f"/carme/files?path={quoted(folder)}").text):
        assert time.monotonic() < end, text
        time.sleep(0.2)
    assert re.search(r">data/raw</a>: 3\.\d MiB in 1 files", text)
    assert server.ask("POST", "/carme/files/measure", headers, "path=/", token="").status in (302, 403)
    assert server.ask("GET", "/carme/files/measure").status == 405


async def test_the_homes_measurement_goes_to_the_hub_once_a_day(tmp_path: Path, monkeypatch: Any) -> None:
    sent: list[Mapping[str, Any]] = []
    ages: list[float | None] = [None, 3600.0, 90_000.0]

    async def send(found: Mapping[str, Any]) -> None:
        sent.append(found)
        ages.append(0.0)

    async def age() -> float | None:
        return ages.pop(0) if len(ages) > 1 else ages[0]

    monkeypatch.setattr(measurements, "EVERY", 2.4)
    ages[1:] = [1.0, 90_000.0]
    (tmp_path / "folder").mkdir()
    found = Measurements(send, age, tmp_path)
    task = asyncio.get_running_loop().create_task(found.look_daily())
    try:
        async with asyncio.timeout(30):
            while not sent:
                await asyncio.sleep(0.05)
    finally:
        task.cancel()
    assert sent[0]["root"] == str(tmp_path.resolve())
    other = tmp_path / "folder"
    found.start(other)
    assert found.runs(other)
    async with asyncio.timeout(30):
        while found.runs(other):
            await asyncio.sleep(0.05)
    assert found.of(other) is not None
    assert len(sent) <= 2, "only the home's goes to the hub"
    assert all(each["root"] == str(tmp_path.resolve()) for each in sent)
