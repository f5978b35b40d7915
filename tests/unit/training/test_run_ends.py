"""A run that is stopped, or loses its conductor or its followers, leaves no rank and nothing that costs."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conducted_here import alive, conducted, end_of, wait
from started_here import INTERRUPT_SECONDS

from carme_hub.training.launch.new_run import create, launch
from carme_hub.training.run import control
from carme_hub.training.run.private_files import write_json
from carme_hub.training.run.run_folder import ENDED, NoRun
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.session import companions

pytestmark = pytest.mark.usefixtures("home")


#: Ranks that ignore what can be ignored.
STAY = "import signal, time\nfor each in (signal.SIGTERM, signal.SIGINT): signal.signal(each, signal.SIG_IGN)\n"
STAY += "print('on')\ntime.sleep(60)\n"


@pytest.mark.parametrize(
    "code",
    [{"command": "/bin/sh", "args": ["-c", "echo on; sleep 60"]}, {"cell": STAY}],
    ids=["a command", "ranks that want to stay"],
)
def test_a_run_that_is_stopped_leaves_nothing_within_five_seconds(code: dict[str, Any]) -> None:
    run = create(RunOptions(2, detach=True), **code)
    with conducted(run):
        wait(run, lambda _: run.log(0) and run.log(1))
        began = time.monotonic()
        assert run.stop()["state"] == "interrupted"
        assert time.monotonic() - began < 5
        assert not alive(run)


#: The interrupt finds the main thread between its last look at signals and the call in which it waits. For Python that
#: is as if another thread received it, which a test can have at any time.
INTERRUPT_ELSEWHERE = """
import signal, threading, time
[beat] = [thread for thread in threading.enumerate() if thread.name == "carme-heartbeat"]
threading.Timer(0.2, lambda: signal.pthread_kill(beat.ident, signal.SIGINT)).start()
began = time.monotonic()
try:
    time.sleep(8)
except KeyboardInterrupt:
    print("interrupted" if time.monotonic() - began < 4 else "late")
"""


def test_an_interrupt_that_comes_just_before_the_code_waits_is_not_lost() -> None:
    run = create(RunOptions(1), cell=INTERRUPT_ELSEWHERE)
    assert end_of(run)["state"] == "finished"
    assert run.log(0) == "interrupted\n"


@pytest.mark.parametrize(("how", "said"), [("stop", "The run was stopped."), ("interrupt", "The run was interrupted.")])
def test_whoever_stops_a_run_leaves_no_rank(how: str, said: str) -> None:
    cell = (
        "import time\ntry:\n    print('on', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt: print('off', flush=True)\n"
    )
    run = create(RunOptions(2, detach=True), cell=cell)
    with conducted(run):
        wait(run, lambda _: run.log(0) and run.log(1))
        began = time.monotonic()
        state = getattr(run, how)()
        assert time.monotonic() - began < (5 if how == "stop" else INTERRUPT_SECONDS + 3)
        assert (state["state"], state["message"], state["error"]) == ("interrupted", said, None)
        assert run.log(1) == ("on\noff\n" if how == "interrupt" else "on\n")
        assert not alive(run)


def test_a_run_ends_when_nobody_looks_on_any_more_unless_it_is_detached() -> None:
    cell = "import time\ntime.sleep(60)\n"
    run, other = create(RunOptions(1), cell=cell), create(RunOptions(1, detach=True), cell=cell)
    with conducted(run), conducted(other):
        wait(other, lambda state: state["state"] == "running")  # so that it is seen below whether it still does
        for each in (run, other):
            with each.follow() as states:
                next(iter(states))
        state = wait(run, lambda state: state["state"] in ENDED)
        assert "--detach" in state["message"]
        assert other.state()["state"] == "running"
        other.stop()


def test_a_conductor_that_is_killed_leaves_a_lost_run_and_one_that_is_told_to_end_ends_its_ranks() -> None:
    run = create(RunOptions(1, detach=True), cell="import time\nprint('on')\ntime.sleep(60)\n")
    with conducted(run) as conductor:
        wait(run, lambda _: run.log(0))
        conductor.send_signal(signal.SIGTERM)
        wait(run, lambda state: state["state"] == "interrupted", 5)
    other = create(RunOptions(1, detach=True), cell="print('on')\nimport time; time.sleep(3)\n")
    with conducted(other) as conductor:
        wait(other, lambda _: other.log(0))
        conductor.kill()
        conductor.wait()
        assert other.state()["state"] == "lost"
        assert other.stop()["state"] == "lost"
        with pytest.raises(control.NoConductor):
            other.resize(1)


def test_a_run_of_another_container_is_stopped_by_a_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create(RunOptions(1, detach=True), cell="import time\ntime.sleep(60)\n")
    with conducted(run):
        monkeypatch.setattr(control, "folder", lambda: home)  # there is no socket here
        assert run.stop()["message"] == "The run was stopped from another session."


def test_a_conductor_that_begins_when_nobody_waits_for_it_any_more_ends(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = home / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o700)
    with monkeypatch.context() as only:
        only.setattr(sys, "executable", str(slow))
        run = create(RunOptions(1, detach=True), cell="import time\ntime.sleep(60)\n")
        with pytest.raises(NoRun, match="did not start within"):
            launch(run, 0.2)
    assert run.state()["state"] == "failed"
    with conducted(run):
        wait(run, lambda state: state["state"] == "interrupted", 30)


def test_what_a_lost_run_had_beside_the_session_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class HubThatTakesBack:
        """Is asked for two companions, one of which is not this session's."""

        @staticmethod
        def from_environ() -> HubThatTakesBack:
            return HubThatTakesBack()

        def close(self, id: str) -> None:
            closed.append(id)
            if id == "theirs":
                raise companions.Refused("no")

    monkeypatch.setattr(companions, "Hub", HubThatTakesBack)
    run = create(RunOptions(1), cell="")
    write_json(run.folder / "state.json", run.state() | {"conductor": {"pid": 1}, "companions": ["theirs", "ours"]})
    assert "stop the run to give back" in run.state()["message"]
    assert run.stop()["state"] == "lost"
    assert closed == ["theirs", "ours"]
    assert run.state()["companions"] == []
    assert "give back" not in run.state()["message"]


def test_the_time_limit_ends_a_run() -> None:
    state = end_of(create(RunOptions(1, seconds=1), cell="import time\ntime.sleep(60)\n"))
    assert (state["state"], state["error"]["type"]) == ("failed", "TimeLimit")


def test_a_session_that_is_put_in_order_has_its_runs_save_and_ends_none(home: Path) -> None:
    cell = (
        "import threading\nfrom carme_hub.training import here\nsaved = threading.Event()\n"
        "here.on_time_limit(saved.set)\nprint('on')\n"
        "while not saved.is_set(): saved.wait(0.1)\nprint('saved', here.time_left() < 61)\n"
    )
    run = create(RunOptions(2, detach=True), cell=cell)
    with conducted(run):
        wait(run, lambda _: run.log(0) and run.log(1))
        answer = control.ask(run.id, {"op": "checkpoint", "seconds": 60})
        assert time.time() + 50 < answer["at"] < time.time() + 61
        state = wait(run, lambda state: state["state"] in ENDED, 30)
    assert (state["state"], run.log(0), run.log(1)) == ("finished", *["on\nsaved True\n"] * 2)
