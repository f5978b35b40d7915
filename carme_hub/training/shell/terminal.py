"""The terminal's side of a shell in a rank: it listens on the session's address, and the rank connects."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import select
import signal
import socket
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from carme_hub.training.run import control
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.run_folder import Run
from carme_hub.training.session.batch_job import broker_here
from carme_hub.training.session.step_broker import NoBroker

from .link import DATA, END, MAX_FRAME, MAX_KEPT, SIZE, START, TERMINAL, Link, LinkEnded, pack_size

#: Seconds for the rank to connect, beside two of its heartbeats; and after which the user is told that it takes long.
CONNECT_TIMEOUT, TELL_AFTER = 15.0, 2.0
#: The most connections that have not proved themselves yet; anybody on the network may open some.
MAX_PENDING = 16
NO_ANSWER = (
    "{} does not answer. Its code may keep Python's lock, or its node may be lost; `carme-hub runs stacks {}` shows "
    "where it is."
)


def open_shell(run: Run, rank: int, argv: Sequence[str], say: Callable[[str], None]) -> int:
    """Connect this process's terminal to a shell in a rank, or to a command, and return its exit status.

    Args:
        argv: of the command; () = the user's shell. say: tells the user something beside the output.

    Raises:
        CannotRun: it does not answer. control.RequestRefused: there is no such rank that runs. control.NoConductor: the
            run has ended, or belongs to another session.
    """
    place = run.ask("shell", rank=rank)
    host = _own_address(str(place["host"]))
    key, has_terminal = secrets.token_bytes(32), os.isatty(sys.stdin.fileno()) and os.isatty(sys.stdout.fileno())
    with socket.create_server((host, 0)) as listener:
        asked = run.ask("shell", rank=rank, host=host, port=listener.getsockname()[1], key=key.hex())
        try:
            link = _accept(listener, key, CONNECT_TIMEOUT + 2 * float(place["interval"]), str(place["label"]), run, say)
        finally:
            with contextlib.suppress(control.NoConductor, control.RequestRefused):
                run.ask("shell", rank=rank, done=asked["id"])  # no rank that starts again is to connect to this port
    with contextlib.closing(link):
        request = {"argv": list(argv), "size": _size() if has_terminal else None, "term": os.environ.get("TERM", "")}
        link.send(START, json.dumps(request).encode())
        if has_terminal:
            say(f"{place['label']} on {place['node']}, which goes on meanwhile. Ctrl-D leaves the shell.")
        with _raw_terminal() if has_terminal else contextlib.nullcontext(-1) as resized:
            try:
                return _relay(link, resized)
            except LinkEnded:
                raise CannotRun(f"The shell has ended, since {place['label'].lower()} has.") from None


def _own_address(of_conductor: str) -> str:
    """Return this session's address for the ranks; that of the conductor where this is its session."""
    try:
        return broker_here().allocation().address
    except NoBroker:
        return of_conductor


def _accept(
    listener: socket.socket, key: bytes, timeout: float, label: str, run: Run, say: Callable[[str], None]
) -> Link:
    """Return the first connection that proves itself, and close all others."""
    found: queue.Queue[Link] = queue.Queue()
    pending: dict[int, socket.socket] = {}
    lock = threading.Lock()

    def prove(connection: socket.socket) -> None:
        try:
            found.put(Link(connection, key, TERMINAL))
        except OSError:
            connection.close()
        with lock:
            pending.pop(id(connection), None)

    began, told = time.monotonic(), False
    listener.settimeout(0.1)
    try:
        while time.monotonic() < began + timeout:
            if len(pending) < MAX_PENDING:
                with contextlib.suppress(TimeoutError):
                    connection, _ = listener.accept()
                    with lock:
                        pending[id(connection)] = connection
                    threading.Thread(target=prove, args=(connection,), daemon=True).start()
            with contextlib.suppress(queue.Empty):
                return found.get(timeout=0 if len(pending) < MAX_PENDING else 0.1)
            if not told and time.monotonic() > began + TELL_AFTER:
                told = True
                say(f"Waiting for {label.lower()} …")
    finally:
        with lock:
            for each in pending.values():
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # its thread reads an end of file
    raise CannotRun(NO_ANSWER.format(label, run.id))


def _relay(link: Link, resized: int) -> int:
    """Pass on input and output until the end of the shell, and return its status.

    Args:
        resized: a descriptor that becomes readable when the terminal has another size, -1 = there is none.

    Raises:
        LinkEnded: the rank has ended.
    """
    source, output, has_input = sys.stdin.fileno(), sys.stdout.fileno(), True
    while True:
        sources: list[Any] = [link, *([resized] if resized >= 0 else [])]
        sources += [source] if has_input and link.kept < MAX_KEPT else []
        readable, _, _ = select.select(sources, [link] if link.kept else [], [])
        link.flush()
        if resized in readable:
            os.read(resized, 256)
            link.send(SIZE, pack_size(*_size()))
        if source in readable:
            piece = os.read(source, MAX_FRAME)
            link.send(DATA, piece)
            has_input = bool(piece)
        for kind, data in link.receive() if link in readable else ():
            if kind == END:
                return int(data)
            while data:
                data = data[os.write(output, data) :]


def _size() -> tuple[int, int]:
    """Return rows and columns: of the terminal itself, since COLUMNS and LINES may be old."""
    size = os.get_terminal_size(sys.stdout.fileno())
    return size.lines, size.columns


@contextlib.contextmanager
def _raw_terminal() -> Iterator[int]:
    """Leave all keys to the shell; yield a descriptor that becomes readable when the terminal has another size."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def resized(*_: object) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(writer, b"\0")

    before = termios.tcgetattr(sys.stdin)
    handlers = {signal.SIGWINCH: resized, signal.SIGTERM: lambda *_: sys.exit(128 + signal.SIGTERM)}
    kept = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    resized()  # it may have another size since that was sent
    try:
        tty.setraw(sys.stdin, termios.TCSADRAIN)  # what was typed before is for the shell
        yield reader
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        for number, handler in kept.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
