"""``python -m carme_hub.training.shell.in_rank``: a process beside a rank that connects to a terminal and runs a shell.

It inherits environment and working folder of the rank, whose heartbeat starts it (``spawn``) and writes what it needs
to its standard input. It is in the rank's container and step, and ends with them, or with its terminal.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import math
import os
import pty
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .link import DATA, END, MAX_FRAME, MAX_KEPT, RANK, SIZE, START, Link, unpack_size
from .spawn import RANK_PID

CONNECT_TIMEOUT = 10.0
#: Seconds for a shell to end after its terminal has: after SIGHUP, and after SIGTERM.
HANGUP_SECONDS, TERM_SECONDS = 2.0, 2.0
#: Seconds in which the rest of its output is passed on, where others go on to write.
REST_SECONDS = 2.0
_PR_SET_PDEATHSIG = 1  # prctl(2)


def main() -> None:
    """Connect, and run what the terminal asks for."""
    signal.signal(signal.SIGTERM, _end)
    for each in (signal.SIGINT, signal.SIGUSR1):  # Slurm sends them to all processes of a step
        signal.signal(each, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # it ends with the rank's heartbeat, however that ends
    if str(os.getppid()) != os.environ.get(RANK_PID):
        return
    wanted = json.load(sys.stdin)
    with contextlib.suppress(OSError):  # nobody waits any more, or the terminal has ended
        connection = socket.create_connection((wanted["host"], wanted["port"]), CONNECT_TIMEOUT)
        with contextlib.closing(connection):
            link = Link(connection, bytes.fromhex(wanted["key"]), RANK)
            asked, typed = _read_start(link)
            status = _run(link, asked, typed)
            link.send(END, str(status).encode())
            link.finish()


def _end(*_: object) -> None:
    """End, once: a second signal is not to interrupt the end of the shell."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


def _read_start(link: Link) -> tuple[dict[str, Any], list[tuple[bytes, bytes]]]:
    """Return what the terminal asks for, and the frames that came with that."""
    while True:
        select.select([link], [], [])
        (kind, data), *rest = link.receive() or [(b"", b"")]
        if kind == START:
            return dict(json.loads(data)), rest


def _run(link: Link, asked: Mapping[str, Any], typed: Sequence[tuple[bytes, bytes]]) -> int:
    """Run a shell or a command until it ends, and return its status, 128 + n for signal n."""
    environ = dict(os.environ)
    argv = [str(word) for word in asked["argv"]] or [_shell(environ)]
    if asked.get("term"):
        environ["TERM"] = str(asked["term"])
    try:
        program = Program(argv, environ, asked["size"])
    except FileNotFoundError:
        link.send(DATA, f"carme-hub: {argv[0]} is not in the container of this rank.\r\n".encode())
        return 127
    except OSError as error:
        link.send(DATA, f"carme-hub: {argv[0]} cannot be started: {error.strerror}.\r\n".encode())
        return 126
    try:
        return program.relay(link, typed)
    finally:
        program.end()


def _shell(environ: Mapping[str, str]) -> str:
    """Return the user's shell, or another one that the container has."""
    return next(filter(None, map(shutil.which, (environ.get("SHELL", ""), "bash"))), "/bin/sh")


class Program:
    """A shell or a command, in a terminal of its own or between two pipes.

    Args:
        size: rows and columns of the terminal, None = pipes; then its errors are part of its output.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], size: Sequence[int] | None) -> None:
        self._terminal = size is not None
        if size is not None:
            self._output, own = pty.openpty()
            self._input, theirs = os.dup(self._output), (own, own)
            self.resize(*size)
        else:
            (source, self._input), (self._output, sink) = os.pipe(), os.pipe()
            theirs = source, sink
        self._kept = bytearray()
        self._input_ends = False
        self._child_signals, signals = os.pipe()
        os.set_blocking(signals, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(signals, warn_on_full_buffer=False)
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=theirs[0],
                stdout=theirs[1],
                stderr=theirs[1],
                env=environ,
                preexec_fn=_own_terminal if self._terminal else _own_session,
            )
        except BaseException:
            self._close()
            raise
        finally:
            for each in set(theirs):
                os.close(each)
        os.set_blocking(self._input, False)

    def relay(self, link: Link, typed: Sequence[tuple[bytes, bytes]]) -> int:
        """Pass on input and output until the program ends, and return its status; ``LinkEnded``: the terminal has.

        Args:
            typed: frames that have come already.
        """
        reading, until = True, math.inf
        for kind, data in typed:
            self._take(kind, data)
        while True:
            sources: list[Any] = [self._child_signals]
            sources += [self._output] if reading and link.kept < MAX_KEPT else []
            sources += [link] if len(self._kept) < MAX_KEPT else []
            sinks: list[Any] = ([link] if link.kept else []) + ([self._input] if self._kept else [])
            # Once it has ended, what is left of its output can be read at once: others may hold its terminal open.
            readable, writable, _ = select.select(sources, sinks, [], None if until == math.inf or link.kept else 0)
            if link in writable:
                link.flush()
            if self._output in readable:
                reading = self._pass_output(link)
            if link in readable:
                for kind, data in link.receive():
                    self._take(kind, data)
            self._pass_input()
            if self._child_signals in readable:
                os.read(self._child_signals, 256)
            if until == math.inf and self._process.poll() is not None:
                until = time.monotonic() + REST_SECONDS
            elif until < time.monotonic() or (until < math.inf and self._output not in readable and not link.kept):
                status = self._process.wait()
                return 128 - status if status < 0 else status

    def _pass_output(self, link: Link) -> bool:
        """Send what has come out; return whether there may be more."""
        try:
            piece = os.read(self._output, MAX_FRAME)
        except BlockingIOError:
            return True
        except OSError:  # of a terminal whose last process has ended
            piece = b""
        if piece:
            link.send(DATA, piece)
        return bool(piece)

    def _take(self, kind: bytes, data: bytes) -> None:
        if kind == SIZE and self._terminal:
            self.resize(*unpack_size(data))
        elif kind == DATA and not data:
            self._input_ends = True
            self._kept += b"\x04" if self._terminal else b""
        elif kind == DATA:
            self._kept += data

    def _pass_input(self) -> None:
        try:
            while self._kept:
                del self._kept[: os.write(self._input, self._kept)]
        except BlockingIOError:
            return
        except OSError:  # it reads no input, or has ended
            self._kept.clear()
        if self._input_ends and not self._terminal and self._input >= 0:
            os.close(self._input)
            self._input = -1

    def resize(self, rows: int, columns: int) -> None:
        """Tell the program the size of its terminal."""
        fcntl.ioctl(self._output, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end(self) -> None:
        """End the program if it still runs; what it has put into sessions of their own runs until the rank ends."""
        self._close()  # hangs up
        for number, seconds in ((signal.SIGHUP, HANGUP_SECONDS), (signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, 1.0)):
            until = time.monotonic() + seconds
            for process in _processes_of_session(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
            while self._process.poll() is None or _processes_of_session(self._process.pid):
                if time.monotonic() > until:
                    break
                time.sleep(0.05)

    def _close(self) -> None:
        for each in (self._output, self._input):
            if each >= 0:
                os.close(each)
        self._input = self._output = -1


def _processes_of_session(session: int) -> list[int]:
    """Return the processes of a session that have not ended: a shell puts each of its jobs into a group of its own."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):  # it has ended meanwhile
            state, _, _, of = (folder / "stat").read_text(errors="replace").rpartition(") ")[2].split()[:4]
            if int(of) == session and state not in "ZX":
                found.append(int(folder.name))
    return found


def _own_session() -> None:
    """Begin a session, with the signals that this program ignores."""
    os.setsid()
    for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(each, signal.SIG_DFL)


def _own_terminal() -> None:
    """Make the terminal at standard input that of a new session, so that Ctrl-C and jobs work."""
    _own_session()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


if __name__ == "__main__":
    main()
