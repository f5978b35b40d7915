"""The terminal's side of a shell in a rank: it listens on the session's address, and the rank connects."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import select
import shutil
import signal
import socket
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence

from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.run_folder import Run

from .link import DATA, END, MAX_FRAME, SIZE, START, TERMINAL, Link, pack_size

#: Seconds for the rank to connect, and after which the user is told that it takes a while. A rank learns of it with its
#: heartbeat, once a second in runs of usual size.
CONNECT_TIMEOUT, TELL_AFTER = 20.0, 2.0
NO_ANSWER = (
    "Rank {} does not answer. Its code may keep Python's lock, or its node may be lost; `carme-hub runs stacks {}` "
    "shows where it is."
)


def open_shell(run: Run, rank: int, argv: Sequence[str], say: Callable[[str], None]) -> int:
    """Connect this process's terminal to a shell in a rank, or to a command, and return its exit status.

    Args:
        argv: of the command; () = the user's shell. say: tells the user something beside the output.

    Raises:
        CannotRun: it does not answer. control.RequestRefused: there is no such rank that runs. control.NoConductor: the
            run has ended, or belongs to another session.
    """
    answer = run.ask("shell", rank=rank)
    host = str(answer["host"])
    key = secrets.token_bytes(32)
    with socket.create_server((host, 0)) as listener:
        port = listener.getsockname()[1]
        run.ask("shell", rank=rank, port=port, key=key.hex())
        link = _accept(listener, key, rank, run.id, say)
    with contextlib.closing(link):
        has_terminal = os.isatty(sys.stdin.fileno()) and os.isatty(sys.stdout.fileno())
        size = _size() if has_terminal else None
        link.send(START, json.dumps({"argv": list(argv), "size": size, "term": os.environ.get("TERM", "")}).encode())
        if has_terminal:
            say(f"Rank {rank} on {answer['node']}, which goes on meanwhile. Ctrl-D leaves the shell.")
        with _raw_terminal(link) if has_terminal else contextlib.nullcontext():
            try:
                return _relay(link)
            except OSError:
                raise CannotRun(f"The shell has ended, since rank {rank} has.") from None


def _accept(listener: socket.socket, key: bytes, rank: int, run: str, say: Callable[[str], None]) -> Link:
    """Return the first connection that proves itself."""
    found: queue.Queue[Link] = queue.Queue()

    def prove(connection: socket.socket) -> None:
        try:
            found.put(Link(connection, key, TERMINAL))
        except OSError:
            connection.close()

    began, told = time.monotonic(), False
    listener.settimeout(0.1)
    while time.monotonic() < began + CONNECT_TIMEOUT:
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            threading.Thread(target=prove, args=(connection,), daemon=True).start()
        with contextlib.suppress(queue.Empty):
            return found.get_nowait()
        if not told and time.monotonic() > began + TELL_AFTER:
            told = True
            say(f"Waiting for rank {rank} …")
    raise CannotRun(NO_ANSWER.format(rank, run))


def _relay(link: Link) -> int:
    """Pass on input and output until the end of the shell, and return its status; ``OSError``: the rank has ended."""
    source, output = sys.stdin.fileno(), sys.stdout.fileno()
    sources: list[int | Link] = [link, source]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if source in ready:
            piece = os.read(source, MAX_FRAME)
            link.send(DATA, piece)
            if not piece:
                sources.remove(source)
        if link in ready:
            kind, data = link.receive()
            if kind == END:
                return int(data)
            while data:
                data = data[os.write(output, data) :]


def _size() -> tuple[int, int]:
    size = shutil.get_terminal_size()
    return size.lines, size.columns


@contextlib.contextmanager
def _raw_terminal(link: Link) -> Iterator[None]:
    """Leave all keys to the shell, and tell it of changes of size."""

    def resized(*_: object) -> None:
        with contextlib.suppress(OSError):
            link.send(SIZE, pack_size(*_size()))

    before = termios.tcgetattr(sys.stdin)
    handler = signal.signal(signal.SIGWINCH, resized)
    try:
        tty.setraw(sys.stdin, termios.TCSADRAIN)  # what was typed before is for the shell
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, handler)
