"""The largest folders: what is on the disk, links once and not followed, and what cannot be read is said."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from files_server import Server

from carme_hub.files import measurements
from carme_hub.files.measure import DEPTH, LOOK_EVERY, MOST_SECONDS, measured
from carme_hub.files.measurements import Measurements
from carme_hub.files.places import quoted

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
