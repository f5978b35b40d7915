"""A name that is used again means the newest run of that name, and the earlier ones can still be had."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from carme_hub.training.launch.new_run import create
from carme_hub.training.run.run_folder import NoRun, Run
from carme_hub.training.run.run_options import RunOptions


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def test_a_name_is_the_newest_run_of_that_name() -> None:
    ids = [
        create(RunOptions(1, name=name), cell="pass").id
        for name in ("grows", "grows", "grows-2", "grows", "grows-fast")
    ]
    assert ids == ["grows", "grows-2", "grows-2-2", "grows-3", "grows-fast"]
    assert Run.load("grows").id == "grows-3"
    assert Run.load("grows-1").id == "grows"
    assert Run.load("grows-3").id == "grows-3"
    assert Run.load("grows-2").id == "grows-2-2"  # which was called so
    assert Run.load("grows-2-1").id == "grows-2"
    shutil.rmtree(Run.load("grows").folder)
    assert Run.load("grows").id == "grows-2"


@pytest.mark.parametrize("name", ["", "-1", "grow", "grows-9", ".", "../grows", "grows/", "grows*"])
def test_what_there_is_not_is_said(name: str) -> None:
    create(RunOptions(1, name="grows"), cell="pass")
    with pytest.raises(NoRun):
        Run.load(name)
