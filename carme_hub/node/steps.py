#!/usr/bin/python3 -IS
# ruff: noqa: UP006, UP035, UP041, PTH108, PTH110, PTH118, PTH120, PTH208, T201
"""carme-steps: the step broker. It starts Slurm steps for the session's container, and runs in the job outside of it.

The batch script listens on ``steps.sock`` in the session folder (0600). At the first connection it starts this program
and passes the socket (second argument; the first is the folder). Only the session's owner is answered, which the kernel
tells (SO_PEERCRED). ``carme-srun`` has the part that uses Slurm. Each connection gets a process of its own, and a step
ends with the connection that requested it. Standard library only, Python 3.6 or later, no threads.
"""

import contextlib
import errno
import importlib.machinery
import importlib.util
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from typing import Any, Dict, List, NoReturn, Set, Tuple

SOCKET, MAX_REQUEST, REQUEST_TIMEOUT = "steps.sock", 1 << 20, 10.0
#: Connections at a time; each step of each run has one.
MAX_CONNECTIONS = 200
#: Seconds for the steps to end when the session ends.
END_SECONDS = 5.5


def load(folder: str, name: str) -> Any:
    """Load a program of the session folder as a module."""
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), folder + "/" + name)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


def send(connection: socket.socket, what: Dict[str, Any]) -> None:
    """Send one line of JSON."""
    connection.sendall(json.dumps(what).encode() + b"\n")


def read_request(connection: socket.socket) -> Tuple[Dict[str, Any], List[int]]:
    """Return one JSON request and the file descriptors that came with it.

    Raises:
        ValueError: the request is invalid or incomplete.
    """
    text, fds, end = b"", [], time.monotonic() + REQUEST_TIMEOUT  # type: bytes, List[int], float
    while not text.endswith(b"\n"):
        connection.settimeout(max(0.1, end - time.monotonic()))
        piece, more, flags, _ = connection.recvmsg(65536, socket.CMSG_SPACE(4 * struct.calcsize("i")))
        for level, kind, data in more:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds += struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
        text += piece
        if not piece or len(text) > MAX_REQUEST or flags & socket.MSG_CTRUNC or time.monotonic() > end:
            raise ValueError("not whole")
    connection.settimeout(None)
    request = json.loads(text.decode())
    if not isinstance(request, dict):
        raise ValueError("no object")
    return request, fds


def companion_ready(folder: str) -> bool:
    """Return whether a companion's folder has all files for ranks: Slurm reports RUNNING before they are written."""
    needed = ("data.json", "carme-rank", "carme-launch", "carme-supervise", "carme-memory")
    return all(os.path.exists(os.path.join(folder, name)) for name in needed)


def answer(connection: socket.socket, server: "StepServer", wakeup_fd: int) -> None:
    """Answer the request of one connection."""
    srun = server.srun
    try:
        request, fds = read_request(connection)
        if request.get("op") == "allocation":
            companion = str(request.get("companion", ""))
            allocation = srun.allocation(srun.job_of(companion))
            if companion and not companion_ready(os.path.join(os.path.dirname(server.folder), companion)):
                raise srun.Refused("notready", f"The companion {companion} begins, or ends: its plan is not there.")
            send(connection, {**allocation, "address": srun.address(allocation["nodes"])})
        elif request.get("op") == "step" and len(fds) == 2:
            srun.Step(connection, request, tuple(fds), server.folder, server.gpu_file).run(wakeup_fd)
        else:
            send(
                connection,
                {"error": "bad", "message": "This is neither the allocation nor a step with two descriptors."},
            )
    except srun.Refused as error:
        send(connection, {"error": error.kind, "message": str(error)})
    except (ValueError, LookupError, TypeError, socket.timeout) as error:
        send(connection, {"error": "bad", "message": f"The request cannot be used ({type(error).__name__}: {error})."})


def is_owner(connection: socket.socket) -> bool:
    """Return whether the client is the same user (unix(7), SO_PEERCRED)."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(uid == os.geteuid())


def signal_pipe() -> int:
    """Return a pipe that gets the number of each signal that asks for the end or reports an ended child."""
    reading, writing = os.pipe()
    for fd in (reading, writing):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(writing)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):  # Slurm sends them to every process of a job
        signal.signal(number, signal.SIG_IGN)
    return reading


class StepServer:
    """Serves connections until TERM; then it ends all steps and returns."""

    def __init__(self, folder: str, listening: socket.socket) -> None:
        self.folder, self.srun = folder, load(folder, "carme-srun")
        self.listening, self.wakeup_fd = listening, signal_pipe()
        self.children: Set[int] = set()
        self.ending_since = 0.0
        with tempfile.TemporaryFile() as file:
            self.gpu_file = os.dup(file.fileno())  # the file has no name; child processes inherit it

    def run(self) -> None:
        """Serve until TERM."""
        watch = selectors.DefaultSelector()
        watch.register(self.wakeup_fd, selectors.EVENT_READ)
        watch.register(self.listening, selectors.EVENT_READ)
        while not self.ending_since or (self.children and time.monotonic() < self.ending_since + END_SECONDS):
            for key, _ in watch.select(0.1 if self.ending_since else None):
                if key.fd != self.wakeup_fd:
                    self.accept()
                elif signal.SIGTERM in os.read(self.wakeup_fd, 512) and not self.ending_since:
                    self.ending_since = time.monotonic()
                    watch.unregister(self.listening)
                    for pid in self.children:
                        os.kill(pid, signal.SIGTERM)
            self.reap()
        for name in os.listdir(self.folder):
            if name == SOCKET or name.startswith("step-"):
                with contextlib.suppress(OSError):
                    os.unlink(self.folder + "/" + name)
            elif name.startswith("rank-"):
                shutil.rmtree(self.folder + "/" + name, ignore_errors=True)

    def accept(self) -> None:
        """Accept one connection and serve it in a process of its own."""
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            connection = self.listening.accept()[0]
            with contextlib.closing(connection):
                if is_owner(connection) and len(self.children) < MAX_CONNECTIONS:
                    pid = os.fork()
                    if not pid:
                        self.serve_one(connection)
                    self.children.add(pid)

    def serve_one(self, connection: socket.socket) -> NoReturn:
        """In the child: serve one connection, and end the step when the parent dies."""
        status = 0
        try:
            wakeup_fd = signal_pipe()
            self.srun.end_with_parent()
            self.listening.close()
            answer(connection, self, wakeup_fd)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):  # the client is gone
                print(f"[carme-steps] {error}", flush=True)
                status = 1
        finally:
            os._exit(status)

    def reap(self) -> None:
        """Remove ended children."""
        with contextlib.suppress(ChildProcessError):
            for pid, _ in iter(lambda: os.waitpid(-1, os.WNOHANG), (0, 0)):
                self.children.discard(pid)


def main() -> int:
    """Serve one session."""
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    StepServer(sys.argv[1], socket.socket(fileno=int(sys.argv[2]))).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
