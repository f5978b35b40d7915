"""A conductor is talked to over a socket that only its user's processes reach.

It lies in a folder of the container's own ``/tmp`` (0700), and whoever connects is asked for by ``SO_PEERCRED``. One
line of JSON asks, one answers; ``follow`` is answered with a line for each change until the run has ended, and its
connection is how a conductor knows that somebody looks on.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

#: The longest line that is read, and the seconds for which it may take to come.
LARGEST, PATIENCE = 1 << 16, 5.0
ENDED_BEFORE = "The conductor of {} ended before it answered."
Words = dict[str, Any]


class NoConductor(ConnectionError):
    """Nobody answers for this run here: it has ended, or it is of another session."""


class NotDone(RuntimeError):
    """The conductor answered that it will not; the message is its own."""


def folder() -> Path:
    """Return the folder of all sockets of this user in this container, which is made where it is missing.

    Raises:
        PermissionError: something else has its name.
    """
    path = Path(f"/tmp/carme-runs-{os.getuid()}")  # noqa: S108  the container's own, and looked at
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{path} is not a folder of yours alone. Remove it, or have it removed.")
    return path


def path_of(run: str) -> Path:
    """Return where the conductor of a run listens; outside of containers one user may have runs in several homes."""
    return folder() / f"{run}-{sha256(str(Path.home()).encode()).hexdigest()[:8]}.sock"


class Control:
    """Answers for one run, each connection in a thread of its own.

    Args:
        path: of the socket. answer: what to say to a request; ``NotDone`` is answered with its message.
        follow: the changes, to the end. followed: is told with how many look on, whenever that changes.
    """

    def __init__(
        self,
        path: Path,
        answer: Callable[[Words], Words],
        follow: Callable[[], Iterator[Words]],
        followed: Callable[[int], None],
    ) -> None:
        self.path = path
        self._answer, self._follow, self._followed = answer, follow, followed
        self._followers, self._lock = 0, threading.Condition()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.unlink(missing_ok=True)
        mask = os.umask(0o177)  # before there is a second thread
        try:
            self._socket.bind(str(path))
        finally:
            os.umask(mask)
        self._socket.listen(64)
        threading.Thread(target=self._serve, name="carme-control", daemon=True).start()

    def drain(self, timeout: float) -> None:
        """Wait until all who look on have heard of the end."""
        with self._lock:
            self._lock.wait_for(lambda: not self._followers, timeout)

    def close(self) -> None:
        """Answer no more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(link,), daemon=True).start()

    def _talk(self, link: socket.socket) -> None:
        with link, contextlib.suppress(OSError):
            if _peer(link) != os.getuid():
                return
            link.settimeout(PATIENCE)
            try:
                request = json.loads(_line(link))
                if request["op"] == "follow":
                    return self._be_followed(link)
                said = self._answer(request)
            except NotDone as error:
                said = {"error": str(error)}
            except (ValueError, TypeError, KeyError) as error:
                said = {"error": f"The request is not understood: {error!r}"}
            link.sendall(_json(said))

    def _be_followed(self, link: socket.socket) -> None:
        self._count(1)
        gone = threading.Event()

        def watch() -> None:
            with contextlib.suppress(OSError):
                link.settimeout(None)
                while link.recv(1024):
                    pass
            if not gone.is_set():
                gone.set()
                self._count(-1)

        threading.Thread(target=watch, daemon=True).start()
        try:
            for said in self._follow():
                if gone.is_set():
                    return
                link.sendall(_json(said))
        finally:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)  # which ends ``watch``

    def _count(self, change: int) -> None:
        with self._lock:
            self._followers += change
            self._followed(self._followers)
            self._lock.notify_all()


def ask(run: str, request: Words, timeout: float = 30.0) -> Words:
    """Ask a run's conductor something.

    Raises:
        NoConductor: nobody answers. NotDone: it will not.
    """
    with _connected(run, timeout) as link:
        try:
            link.sendall(_json(request))
            said = json.loads(_line(link))
        except TimeoutError:
            message = f"{run} has not answered within {timeout:.0f} s, and may still do it. Look before you ask again."
            raise NotDone(message) from None
        except (OSError, ValueError) as error:
            raise NoConductor(ENDED_BEFORE.format(run)) from error
    if "error" in said:
        raise NotDone(str(said["error"]))
    return dict(said)


class Following:
    """What a run says, to its end; who stops reading before has to ``close``, which a run that is not detached ends at.

    Each thing read is a state (see ``Run.state``), the last one that of the end. Of a run that ends just as somebody
    begins to look on there may be none.

    Raises:
        NoConductor: nobody answers.
    """

    def __init__(self, run: str, timeout: float = 30.0) -> None:
        self._link = _connected(run, timeout)
        try:
            self._link.sendall(_json({"op": "follow"}))
        except OSError as error:
            self._link.close()
            raise NoConductor(ENDED_BEFORE.format(run)) from error
        self._link.settimeout(None)
        self._lines = self._link.makefile("rb")

    def __iter__(self) -> Iterator[Words]:
        """Yield states as they come."""
        with contextlib.suppress(OSError, ValueError):
            for line in self._lines:
                yield json.loads(line)

    def close(self) -> None:
        """Look on no more."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()
        self._lines.close()

    def __enter__(self) -> Following:
        """Look on."""
        return self

    def __exit__(self, *error: object) -> None:
        """Look on no more."""
        self.close()


def _connected(run: str, timeout: float) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(timeout)
    try:
        link.connect(str(path_of(run)))
    except OSError as error:
        link.close()
        raise NoConductor(f"Nobody answers for {run} in this session.") from error
    return link


def _peer(link: socket.socket) -> int:
    said = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", said)[1])


def _line(link: socket.socket) -> bytes:
    with link.makefile("rb") as lines:
        return lines.readline(LARGEST)


def _json(said: Words) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"
