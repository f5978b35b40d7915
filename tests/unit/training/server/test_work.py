"""What is at work in a session is seen: a cell without a word, a program in a real terminal, a live run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from terminado import UniqueTermManager

from carme_hub.node import minutes, report
from carme_hub.training.server.work import FILE, WorkFile, busy_kernels, busy_terminals, live_runs


@pytest.fixture
def terminal() -> Iterator[Any]:
    """A real terminal with a real shell."""
    manager = UniqueTermManager(shell_command=["/bin/bash", "--norc", "-i"])
    found = manager.new_terminal()
    yield SimpleNamespace(ptyproc=found.ptyproc)
    found.ptyproc.terminate(force=True)


def wait_for(terminal: Any, count: int) -> None:
    deadline = time.monotonic() + 20
    while busy_terminals([terminal]) != count:
        assert time.monotonic() < deadline, f"not {count}"
        time.sleep(0.05)


def test_a_program_in_the_foreground_of_a_terminal_is_work_and_a_shell_that_waits_is_none(terminal: Any) -> None:
    wait_for(terminal, 0)
    os.write(terminal.ptyproc.fd, b"sleep 60\n")
    wait_for(terminal, 1)
    group = os.tcgetpgrp(terminal.ptyproc.fd)
    while Path(f"/proc/{group}/comm").read_text() != "sleep\n":  # until then it is bash, and an interrupt is lost
        time.sleep(0.05)
    os.write(terminal.ptyproc.fd, b"\x03")
    wait_for(terminal, 0)
    os.write(terminal.ptyproc.fd, b"sleep 60 &\n")
    time.sleep(0.5)
    wait_for(terminal, 0)


def test_a_terminal_whose_shell_has_ended_is_no_work(terminal: Any) -> None:
    terminal.ptyproc.terminate(force=True)
    assert busy_terminals([terminal]) == 0
    assert busy_terminals([SimpleNamespace(ptyproc=SimpleNamespace(fd=-1, pid=1))]) == 0


@pytest.mark.parametrize(
    ("state", "count"), [("busy", 1), ("starting", 1), ("restarting", 1), ("idle", 0), ("dead", 0), (None, 0)]
)
def test_a_kernel_is_at_work_while_it_computes_or_starts(state: str | None, count: int) -> None:
    assert busy_kernels([{"id": "a", "execution_state": state}, {"id": "b", "execution_state": "idle"}]) == count


def test_only_live_runs_of_this_session_count() -> None:
    plain = {"state": "running", "session": "one", "submitted": False}
    rows = [plain, {**plain, "state": "waiting"}, {**plain, "state": "finished"}, {**plain, "session": "two"}]
    assert live_runs([*rows, {**plain, "submitted": True}], "one") == 2


class Session:
    """A server that says what it is told to."""

    def __init__(self, folder: Path) -> None:
        self.now, self.kernels, self.runs, self.looks = 1000.0, 0, 0, 0
        environ = {"CARME_SESSION_FOLDER": str(folder), "CARME_SESSION": "one"}
        states = lambda: [{"execution_state": "busy"}] * self.kernels  # noqa: E731
        self.file = WorkFile(states, list, self._rows, environ, clock=lambda: self.now)

    def _rows(self) -> list[dict[str, Any]]:
        self.looks += 1
        return [{"state": "running", "session": "one", "submitted": False}] * self.runs

    def look(self) -> dict[str, Any]:
        assert self.file.path is not None
        self.file.write(self.file.look())
        return dict(json.loads(self.file.path.read_text()))


def test_the_file_has_what_is_at_work_and_runs_are_looked_at_less_often(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.kernels, session.runs = 2, 1
    assert session.look() == {"at": 1000.0, "kernels": 2, "terminals": 0, "runs": 1}
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    session.now, session.runs = 1010.0, 0
    assert session.look()["runs"] == 1
    session.now = 1031.0
    assert session.look()["runs"] == 0
    assert session.looks == 2


def test_a_disk_that_is_full_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from carme_hub.training.run import private_files

    session = Session(tmp_path)
    before = session.look()

    def full(*_words: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private_files, "write_json", full)
    session.now = 1010.0
    assert session.look() == before


def test_outside_of_a_session_nothing_is_written() -> None:
    assert WorkFile(list, list, list, {}).path is None


class Reporter(report.Reporter):
    """A reporter whose job uses nothing."""

    def __init__(self, folder: Path, session: Session) -> None:
        usage: Any = SimpleNamespace(
            sample=lambda _now: dict.fromkeys(("cpu", "memory", "read", "written", "received", "sent", "tmp_free"), 0)
        )
        part = {"session": "one", "url": "http://127.0.0.1:9/x", "token": "t"}
        wall = lambda: session.now  # noqa: E731
        super().__init__(part, usage, [], minutes, {"node": "n"}, str(folder), clock=wall, wall=wall)


def test_the_reporter_tells_it_and_what_the_server_has_not_said_lately_is_unknown(tmp_path: Path) -> None:
    session = Session(tmp_path)
    reporter = Reporter(tmp_path, session)
    assert "kernels" not in reporter.sample(), "nothing was said yet"
    session.kernels = 1
    session.look()
    assert {name: reporter.sample()[name] for name in minutes.WORK} == {"kernels": 1, "terminals": 0, "runs": 0}
    session.now += report.WORK_SECONDS + 1
    assert "kernels" not in reporter.sample(), "the server hangs"
    (tmp_path / FILE).write_text('{"at": "x"')
    assert "kernels" not in reporter.sample()


@pytest.mark.parametrize(
    ("values", "found"), [([0, 0], 0), ([0, 2], 2), ([None, 2], 2), ([0, None], None), ([None, None], None), ([], 0)]
)
def test_a_minute_is_without_work_only_if_it_was_so_at_every_moment(
    values: list[int | None], found: int | None
) -> None:
    assert minutes.at_work(values) == found


@pytest.mark.parametrize(
    ("ago", "count"), [("2027-01-15T07:59:00.5Z", 1), ("2027-01-15T07:50:00Z", 0), ("", 1), (None, 1)]
)
def test_a_kernel_to_which_nobody_connects_is_starting_for_some_minutes_only(ago: str | None, count: int) -> None:
    kernel = {"execution_state": "starting", "last_activity": ago}
    assert busy_kernels([kernel], 1_800_000_000.0) == count
    assert busy_kernels([{**kernel, "execution_state": "busy"}], 1_800_000_000.0) == 1
