"""``carme-hub disk``: what it asks of the hub, what it prints, and with which exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from rig.forged_http import run, serving
from test_command_line_session import SECRET, ForgedHub

from carme_hub.cli.disk.command import DiskApp

GIB = 1024**3
PLACE = {
    **{"path": "/home/alice", "used_bytes": 19 * GIB, "limit_bytes": 20 * GIB, "soft_bytes": None, "grace_ends": None},
    **{"files": 5, "file_limit": None, "shared": False, "percent": 95, "growth_bytes_per_day": -GIB},
    **{"full_in_seconds": None, "warning": "/home/alice is 95 % full."},
}
FOLDERS = {
    **{"root": "/home/alice", "bytes": 18 * GIB, "files": 1234, "complete": True},
    "folders": [{"path": "data/raw", "bytes": 12 * GIB, "files": 1000}],
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForgedHub]:
    with serving(ForgedHub()) as hub:
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", SECRET)
        monkeypatch.setenv("JUPYTERHUB_API_URL", hub.address)
        yield hub


def says(hub: ForgedHub, **answer: Any) -> None:
    told = {"places": [PLACE], "measured": 1_795_000_000.0, "folders": FOLDERS, **answer}
    hub.answers["GET", "/carme/users/alice/disk"] = [(200, told)]


def test_places_warnings_and_the_largest_folders_are_shown(hub: ForgedHub, capsys: pytest.CaptureFixture[str]) -> None:
    says(hub)
    assert run(DiskApp) == 1
    out = capsys.readouterr().out
    assert " ".join(out.split()) == (
        "place used limit full a day /home/alice 19 GiB 20 GiB 95 % -1.0 GiB /home/alice is 95 % full. "
        "/home/alice: 18 GiB in 1,234 files, measured 2026-11-18 11:06 UTC folder used files data/raw 12 GiB 1,000"
    )


def test_json_has_all_of_it(hub: ForgedHub, capsys: pytest.CaptureFixture[str]) -> None:
    says(hub, places=[{**PLACE, "warning": ""}])
    assert run(DiskApp, "--json") == 0
    assert json.loads(capsys.readouterr().out)["folders"] == FOLDERS


def test_what_is_not_known_is_said_and_is_no_success(hub: ForgedHub, capsys: pytest.CaptureFixture[str]) -> None:
    says(hub, places=None, folders={}, measured=None)
    assert run(DiskApp) == 2
    assert "not known at the moment" in capsys.readouterr().out
    says(hub, places=[], folders={}, measured=None)
    assert run(DiskApp) == 0
    assert "reads no quotas" in capsys.readouterr().out
    hub.answers["GET", "/carme/users/alice/disk"] = [(200, {})]
    assert run(DiskApp) == 2
