"""How a run stands is written and told seldom, and its end is the last thing that is written."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from carme_hub.training.launch.new_run import create
from carme_hub.training.run import messages, run_state
from carme_hub.training.run.private_files import write_json
from carme_hub.training.run.rendezvous import Rendezvous
from carme_hub.training.run.run_folder import Run
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.run.run_state import RunState


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return create(RunOptions(2), cell="")


def test_the_end_is_written_last_whatever_else_changes_at_that_moment(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    def slow(path: Path, said: dict[str, Any]) -> None:
        written.append(said["state"])
        write_json(path, said)
        time.sleep(0.02)

    monkeypatch.setattr(run_state, "write_json", slow)
    monkeypatch.setattr(run_state, "WRITE_INTERVAL", 0)
    there = RunState(run)
    there.start()
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            there.update_rank(0, step=time.monotonic())

    changing = threading.Thread(target=change)
    changing.start()
    time.sleep(0.1)
    there.close(state="finished", ended=1.0)
    time.sleep(0.1)
    over.set()
    changing.join()
    assert written.index("finished") == len(written) - 1
    assert json.loads((run.folder / "state.json").read_text())["state"] == "finished"


@pytest.mark.parametrize("ends_after", [0, 1, 2])
def test_a_run_that_ends_while_somebody_looks_is_never_lost(
    run: Run, ends_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its conductor writes the end, and then lets its lock go; that may come after any look at the lock."""
    write_json(run.folder / "state.json", run.state() | {"state": "running", "conductor": {"pid": 1}})
    looks: list[bool] = []

    def lock_held(_run: Run) -> bool:
        if len(looks) == ends_after:
            state = json.loads((run.folder / "state.json").read_text())
            write_json(run.folder / "state.json", state | {"state": "finished"})
        looks.append(len(looks) < ends_after)
        return looks[-1]

    monkeypatch.setattr(Run, "lock_held", lock_held)
    seen = [run.state()["state"] for _ in range(4)]
    assert (set(seen) - {"running"}, seen[-1]) == ({"finished"}, "finished")


def test_it_is_told_at_most_a_few_times_a_second_and_at_its_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    there = RunState(run)
    there.start()
    seen: list[dict[str, Any]] = []

    def look() -> None:
        for state in there.follow():
            seen.append(state)  # one by one, as they come

    looking = threading.Thread(target=look)
    began = time.monotonic()
    looking.start()
    while len(seen) < 5:
        assert time.monotonic() < began + 30
        there.update(message=str(time.monotonic()))
        time.sleep(0.001)  # else this thread hardly lets go of the lock
    assert time.monotonic() - began >= 4 * run_state.WRITE_INTERVAL

    def wait_until_told(message: str) -> None:
        there.update(message=message)
        while not seen[-1]["message"] == run.state()["message"] == message:
            assert time.monotonic() < began + 30
            time.sleep(0.01)

    wait_until_told("the last but one")
    time.sleep(4 * run_state.WRITE_INTERVAL)  # both have rested, and would begin no rest of a minute before the last
    # Who writes it and who looks on rest for a minute after this one, unless the end wakes them.
    monkeypatch.setattr(run_state, "WRITE_INTERVAL", 60.0)
    wait_until_told("the last")
    began = time.monotonic()
    there.close(state="finished")
    looking.join(30)
    assert time.monotonic() - began < run_state.WRITE_INTERVAL / 2
    assert seen[-1]["state"] == "finished"


def test_ranks_are_what_they_said_and_those_that_were_ended_say_so(run: Run) -> None:
    there = RunState(run)
    there.start()
    there.set_ranks(["n1", "n1", "n2"])
    with Rendezvous("127.0.0.1") as meeting:
        ranks = [messages.RendezvousClient(meeting.address, meeting.port) for _ in range(3)]
        ranks[0].put(messages.HELLO, 0, {"node": "n7"})
        ranks[0].put(messages.BEAT, 0, {"step": 3, "total": 9, "cpu": 50.0, "at": 1.0})
        ranks[0].put(messages.END, 0, {"ok": True})
        ranks[1].put(messages.HELLO, 1, {"node": "n1"})
        there.refresh_ranks(meeting)
        found = there.get()["ranks"]
        assert [(each["node"], each["state"]) for each in found] == [
            ("n7", "done"),
            ("n1", "running"),
            ("n2", "starting"),
        ]
        assert (found[0]["step"], found[0]["exit"], found[0]["gpu"]) == (3, 0, None)
    there.update_rank(5, node="n3", state="running")  # an elastic run's new one
    there.close(state="interrupted")
    assert [(each["rank"], each["state"]) for each in run.state()["ranks"]] == [
        (0, "done"),
        (1, "stopped"),
        (2, "stopped"),
        (5, "stopped"),
    ]


def test_a_rank_that_was_interrupted_has_not_failed(run: Run) -> None:
    there = RunState(run)
    there.start()
    there.set_ranks(["n1", "n1"])
    with Rendezvous("127.0.0.1") as meeting:
        for rank, kind in enumerate(("KeyboardInterrupt", "ValueError")):
            end = {"ok": False, "error": {"type": kind, "message": ""}}
            messages.RendezvousClient(meeting.address, meeting.port).put(messages.END, rank, end)
        there.refresh_ranks(meeting)
    there.close(state="interrupted")
    assert [each["state"] for each in run.state()["ranks"]] == ["stopped", "failed"]


def test_gpu_time_is_counted_by_what_the_run_has(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(run_state.time, "monotonic", lambda: now[0])
    there = RunState(run)
    for at, gpus in ((10.0, 2), (20.0, 4), (25.0, 0), (100.0, 0)):
        now[0] = at
        there.set_gpus(gpus)
    assert there.get()["gpu_seconds"] == 2 * 10 + 4 * 5
