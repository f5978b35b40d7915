"""Asks the step broker, which is outside the container in the same job, to start ranks there and on other nodes.

The broker (``carme-steps``) puts srun's command line together itself; it listens in the session folder and knows by the
kernel who asks. A step lives as long as the connection that asked for it, so a run that is killed leaves no ranks.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

SOCKET = "steps.sock"
#: Seconds for the broker's first word: it asks Slurm first, which may be slow.
PATIENCE = 60.0
SIGNALS = ("INT", "TERM", "KILL", "USR1")


class NoBroker(RuntimeError):
    """Nobody here starts ranks, or Slurm refused; the message says what to do."""


class NotReady(NoBroker):
    """The job that is to run the ranks does not run yet, or no longer."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a job of the session has.

    Attributes:
        cpus, gpus: on each node, at least. ends: when the job's time is over, in seconds since 1970, 0 = not known.
        address: IPv4 address of this node which those nodes reach.
    """

    job: int
    nodes: tuple[str, ...]
    cpus: int
    gpus: int
    gpu_type: str
    ends: float
    address: str


@dataclass(frozen=True, slots=True)
class Step:
    """Ranks that are started together.

    Attributes:
        run: name of the run. argv: the command of every rank, inside the container.
        nodes: on which of the job's nodes, () = on all. companion: session id of the companion whose job it is.
        mpi: srun's --mpi. slot: goes to the ranks as CARME_SLOT.
        kill_on_bad_exit: whether the first rank that fails ends all.
    """

    run: str
    ranks: int
    argv: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    companion: str = ""
    gpus_per_node: int = 0
    mpi: str = "none"
    slot: str = ""
    kill_on_bad_exit: bool = True


class Broker:
    """The session's step broker.

    Args:
        folder: the session folder, by default that of this container's environment.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder if folder is not None else os.environ.get("CARME_SESSION_FOLDER", "")

    def allocation(self, companion: str = "") -> Allocation:
        """Return what the session's job has, or that of a companion.

        Raises:
            NotReady: the job does not run. NoBroker: there is no broker, or Slurm does not answer.
        """
        with _connect(self.folder) as line:
            _send(line, {"op": "allocation", "companion": companion})
            said = _first(line)
        return Allocation(**{**said, "nodes": tuple(said["nodes"])})

    def start(self, step: Step, out: int, err: int) -> RunningStep:
        """Start ranks and return when Slurm has been asked for them.

        Args:
            out, err: pipes or files that take what the ranks write, each line as ``3: text``; they may be closed here
                when this returns. On ``err`` there are also lines of Slurm's own, without a number.

        Raises:
            NotReady: the companion does not run. NoBroker: there is no broker, or it refused; the message says why.
        """
        line = _connect(self.folder)
        try:
            _send(line, {"op": "step", **asdict(step)}, (out, err))
            _first(line)
        except BaseException:
            line.close()
            raise
        return RunningStep(line)


class RunningStep:
    """Ranks that run, until ``close``, or as long as this process lives."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._reading = threading.Lock()
        self._text = b""
        self._exit: int | None = None
        #: Slurm's number of the step, such as 123.4; "" until it has one.
        self.id = ""
        #: What srun said besides, such as which task failed; complete when ``wait`` has returned a status.
        self.said: tuple[str, ...] = ()

    def fileno(self) -> int:
        """Return what becomes readable when there is news for ``wait(0)``."""
        return self._line.fileno()

    def wait(self, timeout: float | None = None) -> int | None:
        """Return srun's exit status, the highest of all ranks; None when they still run after ``timeout`` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._reading:
            while self._exit is None:
                left = None if end is None else max(0.0, end - time.monotonic())
                if not _readable(self._line, left):
                    return None
                piece = _more(self._line)
                *lines, self._text = (self._text + piece).split(b"\n")
                for each in lines:
                    self._take(json.loads(each))
                if not piece and self._exit is None:
                    self._exit, self.said = 255, ("The step broker has ended, and the ranks with it.",)
            return self._exit

    def signal(self, name: str) -> None:
        """Send INT, TERM or USR1 to all processes of the ranks; KILL ends them all within 5 seconds."""
        if name not in SIGNALS:
            raise ValueError(f"{name!r} is none of {', '.join(SIGNALS)}")
        with contextlib.suppress(OSError):  # it has ended
            self._line.sendall(json.dumps({"signal": name}).encode() + b"\n")

    def close(self) -> None:
        """End what still runs of it; this does not wait, and who waits for it is told."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()

    def __enter__(self) -> RunningStep:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _take(self, said: dict[str, Any]) -> None:
        if "step" in said:
            self.id = str(said["step"])
        if "error" in said:
            self._exit, self.said = 255, (str(said["message"]),)
        if "exit" in said:
            self._exit, self.said = int(said["exit"]), tuple(said["said"])


def _connect(folder: str) -> socket.socket:
    if not folder:
        raise NoBroker(
            "There is no session here that could start ranks: CARME_SESSION_FOLDER is not set. "
            "Run this in a notebook or a terminal of a session of the hub."
        )
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(PATIENCE)
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            line.connect(f"/proc/self/fd/{opened}/{SOCKET}")  # short, however long the folder's path is
        finally:
            os.close(opened)
    except OSError as error:
        line.close()
        raise NoBroker(
            f"Nobody in {folder} starts ranks ({error.strerror}). The session may be older than the hub's release: "
            "stop your server and start it again. If that does not help, its job.log says why."
        ) from error
    return line


def _send(line: socket.socket, asked: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    text = json.dumps(asked).encode() + b"\n"
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sent = line.sendmsg([text], rights)
        line.sendall(text[sent:])
    except OSError as error:
        raise NoBroker("The step broker went away: the session is about to end.") from error


def _first(line: socket.socket) -> dict[str, Any]:
    """Return the broker's first word, byte by byte, so that what follows stays in the line."""
    try:
        text = b"".join(_bytes(line))
    except TimeoutError as error:
        raise NoBroker(f"The step broker did not answer for {PATIENCE:.0f} s. Try again in a minute.") from error
    except OSError:
        text = b""
    if not text.endswith(b"\n"):
        raise NoBroker("The step broker went away: the session is about to end, or too many runs are going on.")
    line.settimeout(None)
    said: dict[str, Any] = json.loads(text)
    if "error" in said:
        raise (NotReady if said["error"] == "notready" else NoBroker)(said["message"])
    return said


def _bytes(line: socket.socket) -> Iterator[bytes]:
    while piece := line.recv(1):
        yield piece
        if piece == b"\n":
            return


def _more(line: socket.socket) -> bytes:
    try:
        return line.recv(65536)
    except ConnectionError:  # the broker was killed
        return b""


def _readable(line: socket.socket, seconds: float | None) -> bool:
    waiting = select.poll()
    waiting.register(line, select.POLLIN)
    return bool(waiting.poll(None if seconds is None else seconds * 1000))
