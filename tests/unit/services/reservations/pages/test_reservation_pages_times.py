"""The pages' scripts know the same wall clocks as Python does, also where those jump."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from carme_hub.paths import share_folder

NODE = Path(sys.executable).with_name("node")
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kolkata", "UTC")
#: A year, from 1 January 2026 on.
START, YEAR = 1_767_225_600, 365 * 86_400


def run(script: str, given: object) -> list[list[object]]:
    """Return what a script says that has the pages' functions of time in ``t`` and what is given in ``given``."""
    module = (share_folder() / "static" / "reservations-time.js").as_uri()
    code = f"import * as t from {json.dumps(module)}; const given = {json.dumps(given)}; console.log({script});"
    argv = [str(NODE), "--input-type=module", "-e", code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    return list(json.loads(done.stdout))


pytestmark = pytest.mark.skipif(not NODE.exists(), reason="node comes with the extra named test")


@pytest.mark.parametrize("zone", ZONES)
def test_moments_on_the_wall_and_back(zone: str) -> None:
    random.seed(zone)
    moments = [START + random.randrange(YEAR // 900) * 900 for _ in range(400)]
    moments += [each for day in _jumps(zone) for each in range(day - 10_800, day + 10_800, 900)]
    found = run(
        f"JSON.stringify(given.map((at) => [t.wall(at, '{zone}'), t.epoch(t.wall(at, '{zone}'), '{zone}')]))", moments
    )
    for at, (wall, back) in zip(moments, found, strict=True):
        there = datetime.fromtimestamp(at, ZoneInfo(zone))
        assert wall == there.replace(tzinfo=None).isoformat()
        assert back == there.replace(fold=0).timestamp(), f"{wall}: of a time that comes twice the first counts"


@pytest.mark.parametrize("zone", ZONES)
def test_a_time_that_clocks_skip_is_taken_with_the_offset_from_before(zone: str) -> None:
    walls = [
        (datetime.fromtimestamp(at, ZoneInfo(zone)).replace(tzinfo=None) - timedelta(minutes=15)).isoformat()
        for at in _jumps(zone)
    ]
    found = run(f"JSON.stringify(given.map((wall) => t.epoch(wall, '{zone}')))", walls)
    assert found == [int(datetime.fromisoformat(each).replace(tzinfo=ZoneInfo(zone)).timestamp()) for each in walls]


def _jumps(zone: str) -> list[int]:
    """Return the moments of the year at which the clocks of a zone change."""
    there = ZoneInfo(zone)
    hours = range(START, START + YEAR, 1800)
    offsets = [datetime.fromtimestamp(at, there).utcoffset() for at in hours]
    return [at for at, before, after in zip(hours[1:], offsets, offsets[1:], strict=False) if before != after]
