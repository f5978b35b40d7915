"""A disk that is full, a home that does not answer, files in the way, strangers at the door: the run goes on."""

from __future__ import annotations

import errno
import io
import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from carme_hub.node import companion as keep_program
from carme_hub.training import distributed
from carme_hub.training.conductor.sharing import runs_sharing_gpus
from carme_hub.training.launch import new_run
from carme_hub.training.launch.new_run import create
from carme_hub.training.notebook.follow import Follower
from carme_hub.training.notebook.live import Terminal
from carme_hub.training.run import control, output, rendezvous, run_folder, run_state
from carme_hub.training.run.description import View, speed
from carme_hub.training.run.messages import RendezvousClient
from carme_hub.training.run.output import Output
from carme_hub.training.run.private_files import write_json
from carme_hub.training.run.rendezvous import Rendezvous
from carme_hub.training.run.run_folder import NoRun, Run
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.run.run_state import RunState
from carme_hub.training.session.companions import release_by_file
from carme_hub.training.session.step_broker import Allocation


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return create(RunOptions(2), cell="pass")


class FullDisk:
    """Has room for nothing until it is told otherwise."""

    def __init__(self) -> None:
        self.full = True

    def check(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_lines_that_cannot_be_kept_are_counted_and_those_after_them_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, write = FullDisk(), os.write

    def forged(file: int, text: bytes) -> int:
        disk.check()
        return write(file, text)

    out = Output(tmp_path)
    monkeypatch.setattr(output.os, "write", forged)
    out.write(0, b"one")
    out.write(0, b"two")
    disk.full = False
    out.write(0, b"three")
    out.write(0, b"four")
    out.close()
    assert (tmp_path / "rank-0.log").read_text() == "[carme] 2 lines could not be kept\nthree\nfour\n"
    assert out.newest(0) == ["one", "two", "three", "four"]


def test_an_end_that_cannot_be_written_is_told_at_once_and_written_when_there_is_room(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = FullDisk()

    def forged(path: Path, said: dict[str, Any]) -> None:
        disk.check()
        write_json(path, said)

    monkeypatch.setattr(run_state, "write_json", forged)
    there = RunState(run)
    there.start()
    there.update(message="on its way")
    seen: list[str] = []
    looking = threading.Thread(target=lambda: seen.extend(each["state"] for each in there.follow()))
    looking.start()
    closing = threading.Thread(target=lambda: there.close(state="finished"))
    closing.start()
    looking.join(10)
    assert seen[-1] == "finished"
    disk.full = False
    closing.join(10)
    assert json.loads((run.folder / "state.json").read_text())["state"] == "finished"
    assert capsys.readouterr().err.count("No space left") == 1


def test_the_gpus_that_it_had_stay_known_and_their_time_is_over(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    there = RunState(run)
    monkeypatch.setattr(run_state.time, "monotonic", lambda: now[0])
    there._counted = 0.0
    there.start()
    there.set_gpus(4)
    now[0] = 10.0
    there.close(state="finished")
    now[0] = 99.0
    assert (there.get()["gpus"], there.get()["gpu_seconds"]) == (4, 40)


def test_a_companion_whose_home_does_not_answer_keeps_its_nodes(tmp_path: Path) -> None:
    assert not keep_program.exists(tmp_path / ("x" * 300)), "an error is no mark"
    (tmp_path / "end.json").touch()
    assert keep_program.exists(tmp_path / "end.json")


def test_a_companion_that_the_hub_cannot_be_told_of_finds_the_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, id = tmp_path / str(uuid.uuid4()), str(uuid.uuid4())
    release_by_file(id, {"CARME_SESSION_FOLDER": str(own)})  # it never began
    (tmp_path / id).mkdir()
    release_by_file(id, {"CARME_SESSION_FOLDER": str(own)})
    monkeypatch.chdir(tmp_path / id)
    assert keep_program.main([str(own)]) == 0


def test_a_conductor_that_is_slow_is_not_one_that_has_ended(run: Run) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        path = control.socket_path(run.id)
        listening.bind(str(path))
        listening.listen()
        try:
            with pytest.raises(control.RequestRefused, match="may still do it"):
                run.ask("resize", timeout=0.2, change=2)
        finally:
            path.unlink()


def test_what_is_half_made_or_deleted_hides_no_other_run(run: Run) -> None:
    half = run_folder.root() / "half"
    half.mkdir()
    (half / "asked.json").write_text("{}")
    other = create(RunOptions(1, name="other"), cell="pass")
    assert {each.id for each in distributed.runs()} == {run.id, "other"}
    table = distributed.runs()
    for path in (other.folder / "state.json", other.folder / "asked.json"):
        path.unlink()
    assert "other" not in repr(table)
    assert run.id in repr(table)
    with pytest.raises(NoRun, match="has been deleted"):
        other.state()


def test_a_folder_that_is_gone_is_said_in_a_sentence(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(NoRun, match=r"has been deleted\. Change to another"):
        create(RunOptions(1), cell="pass")


def test_a_module_beside_the_notebook_is_not_taken_for_pythons_own(run: Run, tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("import pathlib; pathlib.Path('taken').touch(); raise ImportError('not this')")
    new_run.launch(run)  # there is no job here, so the run fails, in words of its own
    end = time.monotonic() + 20
    while run.state()["state"] in run_folder.LIVE and time.monotonic() < end:
        time.sleep(0.05)
    assert "not this" not in run.state()["message"] + (run.folder / "conductor.log").read_text()
    assert not (tmp_path / "taken").exists()


def test_who_shares_the_gpus_of_a_session_is_known(run: Run) -> None:
    def going(name: str, elastic: tuple[int, int] | None = None, **changes: Any) -> Run:
        each = create(RunOptions(2, name=name, elastic=elastic), cell="pass")
        write_json(each.folder / "state.json", each.state() | {"state": "running", **changes})
        return each

    session = Allocation(1, ("n1", "n2"), 8, 4, "a100", 0.0, "10.0.0.1")
    beside = going("beside", own_gpus=4, gpus=4, nodes=["n1", "n2"])
    going("elsewhere", gpus=2, companions=["c"])
    going("cpus")
    assert runs_sharing_gpus(run, 2, session) == [], "the broker gives it the others"
    assert runs_sharing_gpus(run, 3, session) == ["beside"]
    assert runs_sharing_gpus(beside, 4, session) == []
    going("grown", (2, 4), own_gpus=1, gpus=3, nodes=["n1", "n3"], companions=["d", "e"])
    assert runs_sharing_gpus(run, 1, session) == ["grown", "beside"], (
        "an elastic run is on all GPUs, and has companions besides"
    )


def test_a_terminal_leaves_no_line_out(run: Run) -> None:
    (run.folder / "rank-0.log").write_text("".join(f"line {number}\n" for number in range(3000)))
    (run.folder / "rank-1.log").write_text("".join(f"other {number}\n" for number in range(3000)))
    ranks = [{"rank": rank} for rank in range(2)]
    write_json(run.folder / "state.json", run.state() | {"state": "finished", "ended": time.time(), "ranks": ranks})
    for every in (False, True):
        out = io.StringIO()
        Follower(run, Terminal(out, io.StringIO(), all_ranks=every)).follow()
        lines = out.getvalue().splitlines()
        assert (len(lines), lines[0]) == ((6000, "[0] line 0") if every else (3000, "line 0"))


def test_steps_are_not_called_samples() -> None:
    ranks = [{"rank": rank, "step": 5, "rate": 9.9, "samples": None} for rank in range(4)]
    assert speed(View({"ranks": ranks}, 0.0)) == "step 5, 9.9 steps/s"
    ranks = [{**each, "samples": 40} for each in ranks]
    assert speed(View({"ranks": ranks}, 0.0)) == "step 5, 40 samples/s"


def test_strangers_who_only_hold_connections_shut_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(rendezvous, "REQUEST_TIMEOUT", 0.5)
    monkeypatch.setattr(rendezvous._Handler, "timeout", 60.0)  # each byte would give them as long again
    with Rendezvous("127.0.0.1") as there:
        strangers = [socket.create_connection(("127.0.0.1", there.port)) for _ in range(20)]
        try:
            RendezvousClient(there.address, there.port).put("scope", 1, {"at": 1})
            assert there.get("scope", "1") is not None
        finally:
            for each in strangers:
                each.close()
