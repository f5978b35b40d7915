"""A step that is ended: its ranks first, and srun only when they had the time to end. srun and scancel are forged."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

import pytest
from step_request import ASKED

from carme_hub.node import srun

#: srun, which names its step after a while, records TERM, and ends when scancel is called.
FORGED_SRUN = """#!{python}
import pathlib, signal, sys, time
calls, began, wait = pathlib.Path("{calls}"), time.monotonic(), {names_step_after}
def end(*_):
    with calls.open("a") as file: file.write(f"srun got TERM after {{time.monotonic() - began:.2f}} s\\n")
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
pathlib.Path("{calls}.up").touch()
while time.monotonic() < began + 20 and "scancel" not in calls.read_text():
    if time.monotonic() > began + wait:
        print("srun: launching StepId=7.3 on host n1, 2 tasks: [0-1]", file=sys.stderr, flush=True)
        wait = 99
    time.sleep(0.01)
sys.exit(143)
"""
FORGED_SCANCEL = '#!/bin/sh\necho scancel "$@" >> {calls}\n'


def end_before_it_begins(folder: Path, monkeypatch: pytest.MonkeyPatch, names_step_after: float) -> list[str]:
    """End a step as soon as srun runs; return what was called, one line each."""
    calls = folder / "calls"
    calls.touch()
    for name, text in (("srun", FORGED_SRUN), ("scancel", FORGED_SCANCEL)):
        (folder / name).write_text(
            text.format(python=sys.executable, calls=calls, names_step_after=names_step_after), encoding="utf-8"
        )
        (folder / name).chmod(0o755)
    monkeypatch.setattr(srun, "find_program", lambda name: str(folder / name))
    monkeypatch.setattr(srun, "job_of", lambda _companion: 7)
    monkeypatch.setattr(srun, "allocation", lambda _job: {"job": 7, "nodes": ["n1"], "gpus": 0})
    monkeypatch.setattr(srun, "run_command", lambda *_argv: "")
    (folder / "data.json").write_text(json.dumps({"rank": {}}))
    out = os.open(os.devnull, os.O_WRONLY)
    err = os.open(folder / "err", os.O_WRONLY | os.O_CREAT)
    woken, wakeup = os.pipe()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        step = srun.Step(theirs, dict(ASKED), (out, err), str(folder), 0)
        assert step.process.stderr is not None
        with step.process.stderr:
            while not Path(f"{calls}.up").exists():
                time.sleep(0.01)
            assert Path(step.mark).exists()
            ours.close()
            step.run(woken)
    assert not Path(step.mark).exists()  # ranks that come now start no container
    assert step.process.returncode == 143
    for fd in (woken, wakeup):
        os.close(fd)
    return calls.read_text().splitlines()


@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")  # scancel is not waited for
def test_a_step_that_is_ended_before_it_has_an_id_gets_term_when_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun would send KILL to ranks whose containers start, and a part of a container could stay."""
    assert end_before_it_begins(tmp_path, monkeypatch, 0.6) == ["scancel --signal=TERM 7.3"]


def test_srun_is_ended_where_the_step_never_gets_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(srun, "SRUN_TERM_AFTER", 0.8)
    (call,) = end_before_it_begins(tmp_path, monkeypatch, 99)
    assert 0.7 < float(call.removeprefix("srun got TERM after ").removesuffix(" s")) < 15
