"""A shell opens in a rank that goes on meanwhile, and is for nobody but the terminal that asked for it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conducted_here import conducted, wait

from carme_hub.training.launch.new_run import create
from carme_hub.training.run import control
from carme_hub.training.run.control import RequestRefused
from carme_hub.training.run.run_folder import Run
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.shell import link as link_module
from carme_hub.training.shell import spawn
from carme_hub.training.shell.link import DATA, END, RANK, START, TERMINAL, Link, LinkEnded, NotProved

CELL = """
import time
from carme_hub.training import here
while not open("end").read():
    here.step(1)
    time.sleep(0.05)
"""
COMMAND = [sys.executable, "-m", "carme_hub.training.command", "runs", "shell"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Two ranks that run until the module ends."""
    home = tmp_path_factory.mktemp("home")
    (home / "end").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.chdir(home)
        run = create(RunOptions(2, name="shown", detach=True), cell=CELL)
        with conducted(run):
            wait(run, lambda state: [each["step"] for each in state["ranks"]] == [1, 1], 30)
            yield run
            (home / "end").write_text("x")
            assert wait(run, lambda state: state["state"] != "running")["state"] in ("finished", "stopping")


def command(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], input=text, capture_output=True, text=True, timeout=60, check=False)


@contextlib.contextmanager
def terminal(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the command in a terminal of its own."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    with subprocess.Popen(
        [*COMMAND, *words], stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "SHELL": "/bin/sh"}
    ) as process:
        os.close(slave)
        try:
            yield process, master
        finally:
            process.kill()
            os.close(master)


def read_until(master: int, pattern: str, within: float = 30) -> str:
    text, end = "", time.monotonic() + within
    while not re.search(pattern, text):
        assert time.monotonic() < end, text
        if select.select([master], [], [], 0.2)[0]:
            try:
                text += os.read(master, 4096).decode(errors="replace")
            except OSError:
                raise AssertionError(text) from None  # its last process has ended
    return text


def test_a_command_runs_in_the_rank_that_was_asked_for_and_its_status_comes_back(running: Run) -> None:
    told = 'echo "rank $CARME_RANK of $CARME_SIZE in $(pwd)"; echo wrong >&2; ps -o args= -p $CARME_RANK_PID; exit 7'
    done = command("shown", "--rank", "1", "--", "sh", "-c", told)
    assert done.returncode == 7, done
    place, *others = done.stdout.splitlines()
    assert place == f"rank 1 of 2 in {running.folder.parents[2]}"
    assert "wrong" in others
    assert any("carme_hub.training.rank.program" in line for line in others)
    assert command("shown", "--", "cat", text="to rank 0\n").stdout == "to rank 0\n"
    assert command("shown", "--", "sh", "-c", "kill -9 $$").returncode == 137
    missing = command("shown", "--", "no-such-program")
    assert (missing.returncode, missing.stdout.strip()) == (
        127,
        "carme-hub: no-such-program is not in the container of this rank.",
    )
    assert [each["state"] for each in running.state()["ranks"]] == ["running"] * 2


def test_another_session_asks_by_the_folder_of_the_run(
    running: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "folder", lambda: tmp_path)  # of another container
    assert sorted(running.stacks(20)) == [0, 1]
    with pytest.raises(RequestRefused, match="a fixed number of ranks"):
        running.resize(1)
    assert running.ask("shell", rank=1)["label"] == "Rank 1"


def test_a_shell_in_a_terminal_has_its_keys_and_its_size(running: Run) -> None:
    with terminal("shown", "--rank", "1") as (process, master):
        os.write(master, b"echo rank:$CARME_RANK; stty size; sleep 60\r")
        shown = read_until(master, r"rank:1\s[\s\S]*33 111\s")
        assert "Rank 1 on n1, which goes on meanwhile." in shown
        time.sleep(0.3)
        os.write(master, b"\x03")  # Ctrl-C ends the sleep and nothing else
        os.write(master, b"echo after:$((6*7))\r")
        read_until(master, "after:42")
        os.write(master, b"exit 3\r")
        assert process.wait(20) == 3
    assert [each["state"] for each in running.state()["ranks"]] == ["running"] * 2


def shells_of(run: Run) -> list[str]:
    """Return the processes of shells in this run's ranks, and of what they have started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environ = (process / "environ").read_bytes().split(b"\0")
            if f"CARME_RUN_FOLDER={run.folder}".encode() in environ and any(
                each.startswith(b"CARME_RANK_PID=") for each in environ
            ):
                found.append((process / "cmdline").read_bytes().decode())
    return found


def wait_until_nothing_is_left(run: Run) -> None:
    end = time.monotonic() + 20
    while found := shells_of(run):
        assert time.monotonic() < end, found
        time.sleep(0.1)


@pytest.mark.parametrize("way", ["in a terminal", "as a command"])
def test_a_terminal_that_is_closed_leaves_nothing_in_the_rank(running: Run, way: str) -> None:
    if way == "in a terminal":
        with terminal("shown") as (_, master):
            os.write(master, b"trap '' HUP; echo here:$((1+1)); sleep 8642\r")
            read_until(master, "here:2")
    else:
        argv = [*COMMAND, "shown", "--", "sh", "-c", "trap '' HUP; echo here; sleep 8642"]
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            assert process.stdout
            assert process.stdout.readline() == b"here\n"
            process.kill()
    wait_until_nothing_is_left(running)


def test_a_rank_that_does_not_run_is_refused_with_those_that_do(running: Run) -> None:
    with pytest.raises(RequestRefused, match=r"Rank 5 does not run. Running: 0, 1\."):
        running.ask("shell", rank=5)
    done = command("shown", "--rank", "5")
    assert (done.returncode, done.stderr.strip()) == (2, "carme-hub: Rank 5 does not run. Running: 0, 1.")


def test_a_shell_ends_with_its_run(home: Path) -> None:
    (home / "end").write_text("")
    run = create(RunOptions(1, name="short", detach=True), cell=CELL)
    with conducted(run):
        wait(run, lambda state: [each["step"] for each in state["ranks"]] == [1], 30)
        argv = [*COMMAND, "short", "--", "sh", "-c", "echo here; exec sleep 8643"]
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as shell:
            assert shell.stdout
            assert shell.stderr
            assert shell.stdout.readline() == b"here\n"
            run.stop()
            assert b"The shell has ended, since rank 0 has" in shell.stderr.read()
            assert shell.wait(20) == 2
    wait_until_nothing_is_left(run)


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


def frames(link: Link, count: int = 1) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    while len(found) < count:
        assert select.select([link], [], [], 20)[0]
        found += link.receive()
    return found


def linked() -> tuple[Link, Link]:
    """Return the terminal's side and the rank's side of a connection."""
    one, other = pair()
    found: list[Link] = []
    thread = threading.Thread(target=lambda: found.append(Link(other, b"key", RANK)))
    thread.start()
    terminal = Link(one, b"key", TERMINAL)
    thread.join(10)
    return terminal, found[0]


def test_both_sides_prove_that_they_know_the_key() -> None:
    terminal, rank = linked()
    terminal.send(DATA, b"x" * 1000)
    terminal.send(DATA)
    assert frames(rank, 2) == [(DATA, b"x" * 1000), (DATA, b"")]
    rank.send(END, b"0")
    assert frames(terminal) == [(END, b"0")]
    rank.close()
    with pytest.raises(LinkEnded, match="closed the connection"):
        frames(terminal)
    terminal.close()


def test_what_cannot_be_sent_yet_is_kept_and_holds_up_nothing() -> None:
    terminal, rank = linked()
    for _ in range(200):  # more than the kernel keeps; nobody reads
        terminal.send(DATA, bytes(65536))
        rank.send(DATA, bytes(65536))
    assert terminal.kept > 0
    assert rank.kept > 0
    received = [0, 0]
    until = time.monotonic() + 30
    while min(received) < 200:
        assert time.monotonic() < until
        for at, each in enumerate((terminal, rank)):
            each.flush()
            received[at] += len(each.receive())
    assert received == [200, 200]
    terminal.close()
    rank.close()


@pytest.mark.parametrize(("key", "side"), [(b"other", RANK), (b"key", TERMINAL)])
def test_whoever_does_not_know_the_key_or_mirrors_it_gets_nothing(key: bytes, side: bytes) -> None:
    one, other = pair()

    def pretend() -> None:
        with contextlib.suppress(OSError):
            Link(other, key, side)

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(NotProved):
        Link(one, b"key", TERMINAL)
    one.close()
    other.close()
    thread.join(10)


def test_a_stranger_at_the_terminals_port_gets_no_shell(tmp_path: Path) -> None:
    """As after the terminal's end, when somebody else has its port. The stranger checks nothing, and asks at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = spawn.start({"host": "127.0.0.1", "port": listener.getsockname()[1], "key": b"key".hex()})
        stranger, _ = listener.accept()
        with stranger:
            stranger.recv(32)
            stranger.sendall(os.urandom(32) + os.urandom(32))
            asked = json.dumps({"argv": ["touch", str(tmp_path / "mine")], "size": None}).encode()
            with contextlib.suppress(OSError):
                stranger.sendall(struct.pack("!cI", START, len(asked)) + asked)
            wait_for_end(process)
    assert list(tmp_path.iterdir()) == []


def test_a_connection_that_says_nothing_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte now and then is nothing, too."""
    monkeypatch.setattr(link_module, "PROOF_TIMEOUT", 0.5)
    one, other = pair()
    stop = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            while not stop.wait(0.1):
                other.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    began = time.monotonic()
    with pytest.raises(LinkEnded):
        Link(one, b"key", TERMINAL)
    assert time.monotonic() - began < 10
    stop.set()
    thread.join(10)
    one.close()
    other.close()


def test_a_request_that_nobody_reads_ends_by_itself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    wait_for_end(spawn.start({"host": "127.0.0.1", "port": port, "key": "00"}))


def wait_for_end(process: int) -> None:
    end = time.monotonic() + 30
    while not spawn.has_ended(process):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_much_goes_in_and_more_comes_out(running: Run) -> None:
    """Neither waits for the other."""
    text = "0123456789abcdef\n" * 40_000
    done = command("shown", "--", "od", "-An", "-v", "-tx1", text=text)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == len(text)


def test_a_reader_that_wants_no_more_is_no_end_of_the_rank(running: Run) -> None:
    words = " ".join([*COMMAND, "shown", "--", "seq", "1", "200000"])
    done = subprocess.run(["bash", "-c", f"{words} | head -1"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1\n"
    assert done.stderr in ("", "Waiting for rank 0 …\n")  # on a busy machine it takes a while


def test_a_program_that_leaves_others_in_its_terminal_ends_all_the_same(running: Run) -> None:
    with terminal("shown") as (process, master):
        os.write(master, b"(while :; do echo on; sleep 0.01; done) & exit 4\r")
        end = time.monotonic() + 30
        while process.poll() is None:
            assert time.monotonic() < end
            if select.select([master], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):  # its last process has ended
                    os.read(master, 65536)
        assert process.returncode == 4


def test_the_size_is_that_of_the_terminal_and_follows_it(running: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")  # as JupyterLab's terminals set it at their start
    monkeypatch.setenv("LINES", "7")
    with terminal("shown") as (process, master):
        read_until(master, "which goes on meanwhile")
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 150, 0, 0))
        process.send_signal(signal.SIGWINCH)
        os.write(master, b"while sleep 0.2; do stty size; done\r")  # a busy machine may take a while to tell it
        read_until(master, r"50 150\s")
