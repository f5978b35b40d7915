"""``python -m carme_hub.training.shell.in_rank``: a process beside a rank that connects to a terminal and runs a shell.

It inherits environment and working folder of the rank, whose heartbeat starts it and writes what it needs (``start``)
to its standard input. It is in the rank's container and step, and ends with them, or with its terminal.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .link import DATA, END, MAX_FRAME, RANK, SIZE, START, Link, unpack_size

CONNECT_TIMEOUT = 10.0
_PR_SET_PDEATHSIG = 1  # prctl(2)
#: Variable with the process id of the rank, for debuggers.
RANK_PID = "CARME_RANK_PID"


def start(wanted: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """Start this program beside the calling process, which is the rank.

    Args:
        wanted: ``host`` and ``port`` of the terminal, and ``key``, as hexadecimal digits.
    """
    source, sink = os.pipe()
    try:
        os.write(sink, json.dumps({name: wanted[name] for name in ("host", "port", "key")}).encode())
    finally:
        os.close(sink)
    try:
        environ = {**os.environ, RANK_PID: str(os.getpid())}
        argv = [sys.executable, "-P", "-m", __name__]
        return subprocess.Popen(argv, stdin=source, env=environ, start_new_session=True)
    finally:
        os.close(source)


def main() -> None:
    """Connect, and run what the terminal asks for."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # it ends with the rank's heartbeat, however that ends
    if str(os.getppid()) != os.environ.get(RANK_PID):
        return
    wanted = json.load(sys.stdin)
    try:
        connection = socket.create_connection((wanted["host"], wanted["port"]), CONNECT_TIMEOUT)
        link = Link(connection, bytes.fromhex(wanted["key"]), RANK)
    except OSError:
        return  # nobody waits any more
    with contextlib.suppress(OSError), contextlib.closing(link):
        kind, data = link.receive()
        if kind == START:
            link.send(END, str(_run(link, json.loads(data))).encode())


def _run(link: Link, asked: Mapping[str, Any]) -> int:
    """Run a shell or a command until it ends, and return its status, 128 + n for signal n."""
    environ = dict(os.environ)
    argv = [str(word) for word in asked["argv"]] or [_shell(environ)]
    if asked.get("term"):
        environ["TERM"] = str(asked["term"])
    try:
        if asked["size"] is None:
            return _run_without_terminal(link, argv, environ)
        return _run_in_terminal(link, argv, environ, asked["size"])
    except FileNotFoundError:
        return _refuse(link, f"{argv[0]} is not in the container of this rank.", 127)
    except OSError as error:
        return _refuse(link, f"{argv[0]} cannot be started: {error.strerror}.", 126)


def _refuse(link: Link, message: str, status: int) -> int:
    link.send(DATA, f"carme-hub: {message}\r\n".encode())
    return status


def _shell(environ: Mapping[str, str]) -> str:
    """Return the user's shell, or another one that the container has."""
    return next(filter(None, map(shutil.which, (environ.get("SHELL", ""), "bash"))), "/bin/sh")


def _run_in_terminal(link: Link, argv: Sequence[str], environ: Mapping[str, str], size: Sequence[int]) -> int:
    master, slave = pty.openpty()
    try:
        _set_size(master, *size)
        process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=environ, preexec_fn=_own_terminal)
    finally:
        os.close(slave)

    def handle(kind: bytes, data: bytes) -> None:
        if kind == SIZE:
            _set_size(master, *unpack_size(data))
        elif kind == DATA:
            os.write(master, data or b"\x04")

    try:
        _relay(link, master, handle)
    finally:
        os.close(master)  # hangs up
    return _status(process)


def _own_terminal() -> None:
    """Make the terminal at standard input that of a new session, so that Ctrl-C and jobs work."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _run_without_terminal(link: Link, argv: Sequence[str], environ: Mapping[str, str]) -> int:
    (source, sink), (output, written) = os.pipe(), os.pipe()
    sinks, process = {sink}, None

    def handle(kind: bytes, data: bytes) -> None:
        if kind == DATA and sinks:
            with contextlib.suppress(BrokenPipeError):  # it reads no input
                os.write(sink, data)
            if not data:
                sinks.discard(sink)
                os.close(sink)

    try:
        try:
            process = subprocess.Popen(
                argv, stdin=source, stdout=written, stderr=written, env=environ, start_new_session=True
            )
        finally:
            os.close(source)
            os.close(written)
        _relay(link, output, handle)
    except BaseException:
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGHUP)
        raise
    finally:
        for each in (output, *sinks):
            os.close(each)
    return _status(process)


def _relay(link: Link, output: int, handle: Callable[[bytes, bytes], None]) -> None:
    """Send what comes out, and handle what the terminal sends, until the output ends; ``OSError``: the terminal has."""
    while True:
        ready, _, _ = select.select([link, output], [], [])
        if output in ready:
            try:
                piece = os.read(output, MAX_FRAME)
            except OSError:  # of a terminal whose last process has ended
                piece = b""
            if not piece:
                return
            link.send(DATA, piece)
        if link in ready:
            handle(*link.receive())


def _set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _status(process: subprocess.Popen[bytes]) -> int:
    status = process.wait()
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    main()
