"""A session that is told to end ends gracefully, within its grace time, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

LAUNCH = Path(__file__).parents[3] / "carme_hub/node/batch_script.py"

#: Says what it says by one write: a handler that prints while the code below is still inside print is an error.
GRACEFUL = """
import os, signal, sys, time
def end(*a):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm's own TERM may follow ours
    os.write(1, b'ending\\n')
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGUSR1, lambda *a: os.write(1, b'warned\\n'))
os.write(1, b'ready\\n')
while True: time.sleep(0.05)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('ready', flush=True)
while True: time.sleep(0.05)
"""
#: Leaves a daemon that has forked twice, has its own session and ignores TERM; its pid is in the log.
DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    print('daemon', MARK, flush=True)
    time.sleep(600)
"""


def bwrap(*command: str) -> list[str]:
    namespaces = ["--unshare-user", "--unshare-pid", "--die-with-parent", "--cap-drop", "ALL"]
    return ["bwrap", *namespaces, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", *command]


#: As Podman does it: the client only waits for a monitor that is no child of its own, and whose child has the payload.
CLIENT = """
import os, subprocess, sys
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    os.close(reading)
    os.write(writing, bytes([subprocess.call(sys.argv[1:])]))
    os._exit(0)
os.close(writing)
sys.exit(ord(os.read(reading, 1) or b"\\0"))
"""


def monitored(*command: str) -> list[str]:
    inner = [word for word in bwrap(*command) if word != "--die-with-parent"]
    return [sys.executable, "-c", CLIENT, inner[0], "--as-pid-1", *inner[1:]]


def bare(*command: str) -> list[str]:
    return list(command)


WAYS: dict[str, Callable[..., list[str]]] = {"bwrap": bwrap, "exec": bare, "child": bare, "podman": monitored}


class Session:
    """One running batch script, with a mark in its payload's argv by which all its processes are found."""

    def __init__(self, folder: Path, way: str, code: str, grace: float) -> None:
        self.folder, self.mark = folder, f"mark{uuid.uuid4().hex}"
        code = code.replace("MARK", repr(self.mark))
        plan = {
            "argv": WAYS[way](sys.executable, "-c", code, self.mark),
            "environ": {"PATH": "/usr/bin:/bin"},
            "supervise": way,
            "grace": grace,
        }
        files = {"carme-supervise": {"mode": 0o600, "text": LAUNCH.with_name("supervisor.py").read_text()}}
        document = {"version": 1, "session": "s", "session_folder": str(folder), "plan": plan, "files": files}
        folder.mkdir()
        (folder / "data.json").write_text(json.dumps(document))
        environ = {"CARME_SESSION_FOLDER": str(folder), "CARME_SESSION": "s"}
        self.process = subprocess.Popen([LAUNCH], env=environ)

    @property
    def log(self) -> str:
        path = self.folder / "job.log"
        return path.read_text() if path.exists() else ""

    def wait_for(self, words: str) -> None:
        end = time.monotonic() + 60
        while words not in self.log:
            assert time.monotonic() < end, self.log
            time.sleep(0.02)

    def living(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (path / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    def end(self, number: int = signal.SIGTERM, everybody: bool = False) -> int:
        """Send the signal to the script, or as Slurm does to every process, and return the exit status."""
        for pid in self.living() if everybody else []:
            os.kill(pid, number)
        self.process.send_signal(number)
        return self.process.wait(120)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    started: list[Session] = []

    def begin(way: str, code: str, grace: float = 5) -> Session:
        started.append(Session(tmp_path / str(len(started)), way, code, grace))
        return started[-1]

    yield begin
    for session in started:
        session.process.kill()
        session.process.wait()
        for pid in session.living():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("everybody", [False, True], ids=["script", "every-process"])
def test_term_reaches_the_payload_which_ends_by_itself(start: Any, way: str, everybody: bool) -> None:
    session = start(way, GRACEFUL)
    session.wait_for("ready")
    if way == "podman":
        time.sleep(1)  # while a container begins, the script looks for it ten times a second
    assert session.end(everybody=everybody) == 7
    assert "ending" in session.log
    assert json.loads((session.folder / "end.json").read_text())["exit"] == 7
    assert session.living() == []


@pytest.mark.parametrize("way", WAYS)
def test_usr1_reaches_the_payload_and_ends_nothing(start: Any, way: str) -> None:
    session = start(way, GRACEFUL)
    session.wait_for("ready")
    session.process.send_signal(signal.SIGUSR1)
    session.wait_for("warned")
    assert session.process.poll() is None
    assert session.end() == 7


@pytest.mark.parametrize("way", WAYS)
def test_payload_that_ignores_term_is_killed_after_the_grace_time(start: Any, way: str) -> None:
    session = start(way, STUBBORN, grace=0.5)
    session.wait_for("ready")
    began = time.monotonic()
    assert session.end() == 137
    assert time.monotonic() - began > 0.4
    assert session.living() == []


@pytest.mark.parametrize("way", WAYS)
def test_daemon_that_forked_twice_and_ignores_term_does_not_outlive_the_session(start: Any, way: str) -> None:
    session = start(way, DAEMON + GRACEFUL, grace=100)
    session.wait_for("daemon")
    session.wait_for("ready")
    assert len(session.living()) >= 2
    began = time.monotonic()
    assert session.end() == 7
    assert time.monotonic() - began < 60
    assert session.living() == []


@pytest.mark.parametrize("way", WAYS)
def test_daemon_does_not_outlive_a_payload_that_ends_by_itself(start: Any, way: str) -> None:
    session = start(way, DAEMON + "time.sleep(0.3)")
    assert session.process.wait(120) == 0
    assert session.living() == []


@pytest.mark.parametrize("way", sorted(set(WAYS) - {"podman"}))  # the monitor's processes are Slurm's to find
def test_killed_script_takes_its_payload_with_it(start: Any, way: str) -> None:
    session = start(way, STUBBORN)
    session.wait_for("ready")
    session.process.kill()
    end = time.monotonic() + 60
    while session.living():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_term_before_the_container_is_up_ends_the_session(start: Any) -> None:
    session = start("bwrap", STUBBORN, grace=1)
    time.sleep(0.03)
    assert session.end() in (143, 137, -signal.SIGTERM)
    assert session.living() == []
