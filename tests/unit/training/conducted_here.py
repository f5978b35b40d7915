"""Conducts runs with real ranks on this machine, and follows them to their end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from carme_hub.training.launch import new_run
from carme_hub.training.run import control
from carme_hub.training.run.run_folder import ENDED, Run, State

CONDUCTOR = Path(__file__).parent / "started_here.py"


@contextmanager
def conducted(
    run: Run, nodes: int = 2, gpus: int = 0, broker: str = "BrokerThatStartsHere"
) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, str(CONDUCTOR), str(run.folder), str(nodes), str(gpus), broker]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.terminate()
            process.wait(15)


@contextmanager
def launched_here(monkeypatch: pytest.MonkeyPatch, nodes: int = 2) -> Iterator[None]:
    """Have every run that is launched conducted here until the end."""
    started = ExitStack()
    monkeypatch.setattr(new_run, "launch", lambda run: started.enter_context(conducted(run, nodes)) and None)
    with started:
        yield


def end_of(run: Run, **options: object) -> State:
    """Conduct a run, look on, and return how it ended."""
    told: list[State] = []
    may_have_ended = suppress(control.NoConductor)  # before anybody looked on
    with conducted(run, **options), may_have_ended, run.follow() as states:  # type: ignore[arg-type]
        told.extend(states)
    last = run.state()
    assert last["state"] in ENDED
    assert told[-1:] in ([], [last])
    assert not (run.folder / "run.json").exists()  # the secret
    return last


#: What runs in a rank.
RANKS = ("carme_hub.training.rank.program", "carme_hub.training.elastic.worker")


def wait(run: Run, until: Callable[[State], object], limit: float = 15) -> State:
    end = time.monotonic() + limit
    while not until(state := run.state()):
        assert time.monotonic() < end, state
        time.sleep(0.02)
    return state


def alive(run: Run) -> list[str]:
    """Return the processes whose command line has the run's folder: its ranks."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in found if str(run.folder) in line and any(each in line for each in RANKS)]
