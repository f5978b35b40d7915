"""A process of the sandbox is known by its start time, and nothing else is ever signalled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from carme_hub.errors import SandboxError
from carme_hub.sandbox.processes import Processes, is_alive, stat_of

ENV = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    register = Processes(tmp_path / "processes")
    yield register
    for name in register.names():
        register.stop(name, within=0.1)


def _sleep(processes: Processes, tmp_path: Path, *argv: str, name: str = "daemon", group: bool = False) -> int:
    return processes.start(name, argv or ("sleep", "60"), log=tmp_path / "log", env=ENV, group=group)


def _until(what: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_started_process_is_running_until_it_is_stopped(processes: Processes, tmp_path: Path) -> None:
    assert processes.state("daemon") == "not started"
    pid = _sleep(processes, tmp_path)
    assert processes.state("daemon") == "running"
    assert os.getsid(pid) == pid
    assert processes.stop("daemon") == "ended"
    assert processes.state("daemon") == "not started"
    assert stat_of(pid) is None


def test_one_that_dies_by_itself_has_crashed(processes: Processes, tmp_path: Path) -> None:
    pid = _sleep(processes, tmp_path)
    os.kill(pid, signal.SIGKILL)
    _until(lambda: processes.state("daemon") == "crashed")
    assert processes.stop("daemon") == "was gone"


def test_a_zombie_does_not_live() -> None:
    child = subprocess.Popen(["true"])
    found = stat_of(child.pid)
    assert found is not None
    _until(lambda: (stat_of(child.pid) or ("Z",))[0] == "Z")
    assert not is_alive(child.pid, found[2])
    child.returncode = 0


def test_the_same_pid_with_another_start_time_is_somebody_else(processes: Processes, tmp_path: Path) -> None:
    pid = _sleep(processes, tmp_path)
    file = tmp_path / "processes/daemon.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "ticks": record["ticks"] - 1}))
    assert processes.state("daemon") == "crashed"
    with pytest.raises(SandboxError):
        processes.signal("daemon", signal.SIGTERM)
    assert processes.stop("daemon") == "was gone"
    assert is_alive(pid, record["ticks"])
    os.kill(pid, signal.SIGKILL)


def test_a_record_of_another_boot_is_no_process(processes: Processes, tmp_path: Path) -> None:
    pid = _sleep(processes, tmp_path)
    file = tmp_path / "processes/daemon.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "boot": "another"}))
    assert processes.stop("daemon") == "was gone"
    assert is_alive(pid, record["ticks"])
    os.kill(pid, signal.SIGKILL)


def test_one_that_ignores_term_is_killed(processes: Processes, tmp_path: Path) -> None:
    _sleep(processes, tmp_path, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
    _until(lambda: "up" in (tmp_path / "log").read_text())
    assert processes.stop("daemon", within=0.2) == "killed"


def test_a_frozen_one_can_be_stopped(processes: Processes, tmp_path: Path) -> None:
    pid = _sleep(processes, tmp_path)
    os.kill(pid, signal.SIGSTOP)
    assert processes.state("daemon") == "running"
    assert processes.stop("daemon") == "ended"


def test_children_go_with_their_group(processes: Processes, tmp_path: Path) -> None:
    _sleep(processes, tmp_path, "sh", "-c", "sleep 61 & echo $!; wait", group=True)
    _until(lambda: (tmp_path / "log").read_text().strip())
    child = int((tmp_path / "log").read_text())
    found = stat_of(child)
    assert found is not None
    processes.stop("daemon")
    _until(lambda: not is_alive(child, found[2]))


def test_nothing_is_started_twice(processes: Processes, tmp_path: Path) -> None:
    _sleep(processes, tmp_path)
    with pytest.raises(SandboxError, match="already"):
        _sleep(processes, tmp_path)


def test_names_are_in_the_order_of_the_start(processes: Processes, tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        _sleep(processes, tmp_path, name=name)
    assert processes.names() == ["b", "a", "c"]


@pytest.mark.parametrize("name", ["", "../x", ".hidden"])
def test_a_name_is_a_plain_word(processes: Processes, name: str) -> None:
    with pytest.raises(SandboxError):
        processes.state(name)
