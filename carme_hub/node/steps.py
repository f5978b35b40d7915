#!/usr/bin/python3 -IS
# ruff: noqa: UP006, UP035, UP041, PTH108, PTH110, PTH118, PTH120, PTH208, T201
"""carme-steps: starts Slurm steps for the session's own container, beside which it runs in the job.

The batch script listens on ``steps.sock`` in the session folder (0600), starts this program when somebody first
connects, and hands the socket over (second argument; the first is the folder). Only the owner of the session is
answered: the kernel says who asks. What it knows of Slurm is in ``carme-srun`` beside. Each connection has a process of
its own here, and a step lives as long as the connection that asked for it. Standard library only, Python 3.6 or later,
no threads.
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

SOCKET, LARGEST, PATIENCE = "steps.sock", 1 << 20, 10.0
#: Connections at a time; each run has one for each of its steps.
MOST = 200
#: Seconds for the steps to end when the session does.
ENDING = 5.5


def load(folder: str, name: str) -> Any:
    """Return a program of the session folder as a module."""
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), folder + "/" + name)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


def tell(line: socket.socket, what: Dict[str, Any]) -> None:
    """Write one line."""
    line.sendall(json.dumps(what).encode() + b"\n")


def read_request(line: socket.socket) -> Tuple[Dict[str, Any], List[int]]:
    """Return one line of JSON and the file descriptors that came with it.

    Raises:
        ValueError: it is something else, or did not come whole.
    """
    text, fds, end = b"", [], time.monotonic() + PATIENCE  # type: bytes, List[int], float
    while not text.endswith(b"\n"):
        line.settimeout(max(0.1, end - time.monotonic()))
        piece, more, flags, _ = line.recvmsg(65536, socket.CMSG_SPACE(4 * struct.calcsize("i")))
        for level, kind, data in more:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds += struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
        text += piece
        if not piece or len(text) > LARGEST or flags & socket.MSG_CTRUNC or time.monotonic() > end:
            raise ValueError("not whole")
    line.settimeout(None)
    asked = json.loads(text.decode())
    if not isinstance(asked, dict):
        raise ValueError("no object")
    return asked, fds


def begun(folder: str) -> bool:
    """Return whether all that ranks need lies in a companion's folder: Slurm calls a job running before it is there."""
    needed = ("data.json", "carme-rank", "carme-launch", "carme-supervise")
    return all(os.path.exists(os.path.join(folder, name)) for name in needed)


def answer(line: socket.socket, serving: "StepServer", wakes: int) -> None:
    """Do what is asked on one line."""
    srun = serving.srun
    try:
        asked, fds = read_request(line)
        if asked.get("op") == "allocation":
            companion = str(asked.get("companion", ""))
            have = srun.allocation(srun.job_of(companion))
            if companion and not begun(os.path.join(os.path.dirname(serving.folder), companion)):
                raise srun.Refused("notready", f"The companion {companion} begins, or ends: its plan is not there.")
            tell(line, {**have, "address": srun.address(have["nodes"])})
        elif asked.get("op") == "step" and len(fds) == 2:
            srun.Step(line, asked, tuple(fds), serving.folder, serving.shared).run(wakes)
        else:
            tell(line, {"error": "bad", "message": "This is neither the allocation nor a step with two descriptors."})
    except srun.Refused as error:
        tell(line, {"error": error.kind, "message": str(error)})
    except (ValueError, LookupError, TypeError, socket.timeout) as error:
        tell(line, {"error": "bad", "message": f"The request cannot be used ({type(error).__name__}: {error})."})


def allowed(line: socket.socket) -> bool:
    """Return whether it is our own user who asks (unix(7), SO_PEERCRED)."""
    _, uid, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(uid == os.geteuid())


def wake_up() -> int:
    """Return where a number can be read for each signal that asks for the end, or says that a child has ended."""
    reading, writing = os.pipe()
    for fd in (reading, writing):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(writing)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):  # Slurm sends them to all processes of a job
        signal.signal(number, signal.SIG_IGN)
    return reading


class StepServer:
    """Answers until TERM; then it ends all steps, and goes."""

    def __init__(self, folder: str, listening: socket.socket) -> None:
        self.folder, self.srun = folder, load(folder, "carme-srun")
        self.listening, self.wakes = listening, wake_up()
        self.children: Set[int] = set()
        self.ended = 0.0
        with tempfile.TemporaryFile() as file:
            self.shared = os.dup(file.fileno())  # has no name, and is inherited

    def run(self) -> None:
        """Serve."""
        watch = selectors.DefaultSelector()
        watch.register(self.wakes, selectors.EVENT_READ)
        watch.register(self.listening, selectors.EVENT_READ)
        while not self.ended or (self.children and time.monotonic() < self.ended + ENDING):
            for key, _ in watch.select(0.1 if self.ended else None):
                if key.fd != self.wakes:
                    self.accept()
                elif signal.SIGTERM in os.read(self.wakes, 512) and not self.ended:
                    self.ended = time.monotonic()
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
        """Give the next who asks a process of its own."""
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            line = self.listening.accept()[0]
            with contextlib.closing(line):
                if allowed(line) and len(self.children) < MOST:
                    pid = os.fork()
                    if not pid:
                        self.serve_one(line)
                    self.children.add(pid)

    def serve_one(self, line: socket.socket) -> NoReturn:
        """In the child: answer, and end the step when the parent dies."""
        status = 0
        try:
            wakes = wake_up()
            self.srun.live_with_parent()
            self.listening.close()
            answer(line, self, wakes)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):  # who asked went away
                print(f"[carme-steps] {error}", flush=True)
                status = 1
        finally:
            os._exit(status)

    def reap(self) -> None:
        """Forget the children that have ended."""
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
