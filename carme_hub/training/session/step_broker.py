"""A client of the step broker, which starts ranks; the broker runs outside of the container, in the same job.

The broker (``carme-steps``) builds srun's command line itself. It listens in the session folder, and the kernel tells
it the user of a client. A step ends with the connection that requested it, so a killed run leaves no ranks.
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
#: Seconds for the broker's first answer: it queries Slurm first, which may be slow.
ANSWER_TIMEOUT = 60.0
SIGNALS = ("INT", "TERM", "KILL", "USR1")


class NoBroker(RuntimeError):
    """There is no step broker, or Slurm refused; the message says what to do."""


class NoAnswer(NoBroker):
    """Slurm does not answer, or not as expected; it may a moment later."""


class NotReady(NoBroker):
    """The job for the ranks does not run yet, or has ended."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The resources of a job of the session.

    Attributes:
        cpus, gpus: the smallest number on any node. ends: time limit of the job, in seconds since 1970, 0 = unknown.
        address: IPv4 address of this node that those nodes reach.
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
    """A step: ranks that start together.

    Attributes:
        run: name of the run. argv: the command of every rank, inside the container.
        nodes: of the job, () = all. companion: session id of a companion, "" = the session's own job.
        mpi: srun's --mpi. slot: the ranks get it as CARME_SLOT.
        kill_on_bad_exit: whether the first failed rank ends all ranks.
        report_ends: whether each rank's last line says how it ended (``output.split_task_end``).
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
    report_ends: bool = False


class Broker:
    """The session's step broker.

    Args:
        folder: the session folder; default: that of this container's environment.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder if folder is not None else os.environ.get("CARME_SESSION_FOLDER", "")

    def allocation(self, companion: str = "") -> Allocation:
        """Return the resources of the session's job, or of a companion.

        Raises:
            NotReady: the job does not run. NoBroker: there is no broker, or Slurm does not answer.
        """
        with _connect(self.folder) as line:
            _send(line, {"op": "allocation", "companion": companion})
            answer = _read_answer(line)
        return Allocation(**{**answer, "nodes": tuple(answer["nodes"])})

    def start(self, step: Step, out: int, err: int) -> RunningStep:
        """Start a step; return when srun has been started.

        Args:
            out, err: pipes or files for the output of the ranks, each line as ``3: text``; they may be closed
            afterwards.
                ``err`` also gets Slurm's own lines, without a number.

        Raises:
            NotReady: the companion does not run. NoBroker: there is no broker, or it refused; the message says why.
        """
        line = _connect(self.folder)
        try:
            _send(line, {"op": "step", **asdict(step)}, (out, err))
            _read_answer(line)
        except BaseException:
            line.close()
            raise
        return RunningStep(line)


class RunningStep:
    """A running step; it ends at ``close``, or with this process."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._reading = threading.Lock()
        self._text = b""
        self._exit: int | None = None
        #: Slurm's id of the step, such as 123.4; "" until it has one.
        self.id = ""
        #: Messages of srun, such as which task failed, as they come; complete when ``wait`` has returned a status.
        self.messages: tuple[str, ...] = ()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when ``wait(0)`` has news."""
        return self._line.fileno()

    def wait(self, timeout: float | None = None) -> int | None:
        """Return srun's exit status, the highest of all ranks; None where they still run after ``timeout`` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._reading:
            while self._exit is None:
                left = None if end is None else max(0.0, end - time.monotonic())
                if not _wait_readable(self._line, left):
                    return None
                piece = _receive(self._line)
                *lines, self._text = (self._text + piece).split(b"\n")
                for each in lines:
                    self._read_answer_line(json.loads(each))
                if not piece and self._exit is None:
                    self._exit, self.messages = 255, ("The step broker ended, and so did the ranks.",)
            return self._exit

    def signal(self, name: str) -> None:
        """Send INT, TERM or USR1 to all processes of the ranks; KILL ends them all within 5 seconds."""
        if name not in SIGNALS:
            raise ValueError(f"{name!r} is none of {', '.join(SIGNALS)}")
        with contextlib.suppress(OSError):  # it has ended
            self._line.sendall(json.dumps({"signal": name}).encode() + b"\n")

    def close(self) -> None:
        """End the step; this does not wait, and wakes a thread that waits for the step."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()

    def __enter__(self) -> RunningStep:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the step."""
        self.close()

    def _read_answer_line(self, answer: dict[str, Any]) -> None:
        if "step" in answer:
            self.id = str(answer["step"])
        if "line" in answer:
            self.messages = (*self.messages, str(answer["line"]))[-200:]
        if "error" in answer:
            self._exit, self.messages = 255, (str(answer["message"]),)
        if "exit" in answer:
            self._exit, self.messages = int(answer["exit"]), tuple(answer["said"])


def _connect(folder: str) -> socket.socket:
    if not folder:
        raise NoBroker(
            "There is no session here to start ranks: CARME_SESSION_FOLDER is not set. "
            "Run this in a notebook or a terminal of a session of the hub."
        )
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(ANSWER_TIMEOUT)
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            line.connect(f"/proc/self/fd/{opened}/{SOCKET}")  # short, whatever the length of the folder's path
        finally:
            os.close(opened)
    except OSError as error:
        line.close()
        raise NoBroker(
            f"No step broker answers in {folder} ({error.strerror}). The session may be older than the hub's release: "
            "stop your server and start it again. If that does not help, its job.log says why."
        ) from error
    return line


def _send(line: socket.socket, request: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    text = json.dumps(request).encode() + b"\n"
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sent = line.sendmsg([text], rights)
        line.sendall(text[sent:])
    except (BrokenPipeError, ConnectionResetError):
        pass  # the broker closed the connection before it read all; its answer, where it gave one, says why
    except OSError as error:
        raise NoBroker(f"The step broker took no request ({error}). Try again in a minute.") from error


def _read_answer(line: socket.socket) -> dict[str, Any]:
    """Return the broker's first answer; read byte by byte, so that later lines stay in the socket."""
    try:
        text = b"".join(_read_line(line))
    except TimeoutError as error:
        raise NoBroker(f"The step broker did not answer for {ANSWER_TIMEOUT:.0f} s. Try again in a minute.") from error
    except OSError:
        text = b""
    if not text.endswith(b"\n"):
        raise NoBroker("The step broker closed the connection: the session is ending, or it has too many runs.")
    line.settimeout(None)
    answer: dict[str, Any] = json.loads(text)
    if "error" in answer:
        raise {"notready": NotReady, "slurm": NoAnswer}.get(answer["error"], NoBroker)(answer["message"])
    return answer


def _read_line(line: socket.socket) -> Iterator[bytes]:
    while piece := line.recv(1):
        yield piece
        if piece == b"\n":
            return


def _receive(line: socket.socket) -> bytes:
    try:
        return line.recv(65536)
    except ConnectionError:  # the broker was killed
        return b""


def _wait_readable(line: socket.socket, seconds: float | None) -> bool:
    waiting = select.poll()
    waiting.register(line, select.POLLIN)
    return bool(waiting.poll(None if seconds is None else seconds * 1000))
