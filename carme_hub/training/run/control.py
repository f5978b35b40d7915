"""Requests to a conductor: by a socket in its own session, by files in the run's folder from other sessions.

Only processes of its user reach the socket.

It is in a folder of the container's ``/tmp`` (0700), and the conductor checks each client by ``SO_PEERCRED``. A request
is one line of JSON, and so is the answer. ``follow`` is answered with one line for each change until the run has ended;
its connection tells the conductor that somebody follows the run.

Another session of the user, or the session of a batch job's user, has the same home but not this container: it writes
``requests/<uuid>.json``, and the conductor answers in ``<uuid>.answer``. The run's folder is its user's alone (0700).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from .private_files import write_json

#: The longest line, and the seconds for it to arrive.
MAX_LINE, TIMEOUT = 1 << 16, 5.0
#: The folder of the files, and the seconds between two looks at it, and for an answer: NFS may show a new file late.
REQUESTS, FILE_INTERVAL, FILE_TIMEOUT = "requests", 0.5, 60.0
ENDED_BEFORE = "The conductor of {} ended before it answered."
NO_ANSWER = "{} did not answer within {:.0f} s and may still do it. Check before you repeat it."
Message = dict[str, Any]


class NoConductor(ConnectionError):
    """No conductor of this run answers here: the run has ended, or belongs to another session."""


class RequestRefused(RuntimeError):
    """The conductor refused a request; the message says why."""


def folder() -> Path:
    """Return the folder of this user's sockets in this container; create it where it is missing.

    Raises:
        PermissionError: the path exists and is not a private folder of this user.
    """
    path = Path(f"/tmp/carme-runs-{os.getuid()}")  # noqa: S108  the container's own, and looked at
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{path} is not a private folder of yours. Remove it, or have it removed.")
    return path


def socket_path(run: str) -> Path:
    """Return the path of a run's socket; outside of containers one user may have runs in several homes."""
    return folder() / f"{run}-{sha256(str(Path.home()).encode()).hexdigest()[:8]}.sock"


class ControlServer:
    """The conductor's side: it serves one run, each connection in a thread of its own.

    Args:
        path: of the socket. answer: answers a request; ``RequestRefused`` is sent with its message.
        follow: yields the states until the end. followed: is called with the number of followers when it changes.
    """

    def __init__(
        self,
        path: Path,
        answer: Callable[[Message], Message],
        follow: Callable[[], Iterator[Message]],
        followed: Callable[[int], None],
    ) -> None:
        self.path = path
        self._answer, self._follow, self._followed = answer, follow, followed
        self._followers, self._lock = 0, threading.Condition()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.unlink(missing_ok=True)
        mask = os.umask(0o177)  # umask is of the whole process: there is no other thread yet
        try:
            self._socket.bind(str(path))
        finally:
            os.umask(mask)
        self._socket.listen(64)
        threading.Thread(target=self._serve, name="carme-control", daemon=True).start()

    def drain(self, timeout: float) -> None:
        """Wait until all followers have received the end."""
        with self._lock:
            self._lock.wait_for(lambda: not self._followers, timeout)

    def close(self) -> None:
        """Stop serving."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve_connection, args=(connection,), daemon=True).start()

    def _serve_connection(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            if _peer(connection) != os.getuid():
                return
            connection.settimeout(TIMEOUT)
            try:
                request = json.loads(_line(connection))
                if request["op"] == "follow":
                    return self._send_states(connection)
                message = self._answer(request)
            except RequestRefused as error:
                message = {"error": str(error)}
            except (ValueError, TypeError, KeyError) as error:
                message = {"error": f"The request is not understood: {error!r}"}
            connection.sendall(_encode(message))

    def _send_states(self, connection: socket.socket) -> None:
        self._count(1)
        gone = threading.Event()

        def watch() -> None:
            with contextlib.suppress(OSError):
                connection.settimeout(None)
                while connection.recv(1024):
                    pass
            if not gone.is_set():
                gone.set()
                self._count(-1)

        threading.Thread(target=watch, daemon=True).start()
        try:
            for message in self._follow():
                if gone.is_set():
                    return
                connection.sendall(_encode(message))
        finally:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # which ends ``watch``

    def _count(self, change: int) -> None:
        with self._lock:
            self._followers += change
            self._followed(self._followers)
            self._lock.notify_all()


class RequestFolder:
    """The conductor's side of the files.

    Args:
        run: folder of the run. answer: as ``ControlServer``'s.
    """

    def __init__(self, run: Path, answer: Callable[[Message], Message]) -> None:
        self._folder, self._answer = run / REQUESTS, answer
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="carme-requests", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering; what has no answer yet gets none."""
        self._closing.set()
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        while not self._closing.wait(FILE_INTERVAL):
            with contextlib.suppress(OSError):  # nobody has asked anything, or the home does not answer
                for path in sorted(self._folder.glob("*.json")):
                    recent = time.time() - path.stat().st_mtime < FILE_TIMEOUT  # or whoever asked has given up
                    text = path.read_bytes()[:MAX_LINE]
                    path.unlink()
                    if recent:
                        threading.Thread(target=self._handle, args=(path, text), daemon=True).start()

    def _handle(self, path: Path, text: bytes) -> None:
        try:
            message = self._answer(json.loads(text))
        except RequestRefused as error:
            message = {"error": str(error)}
        except (ValueError, TypeError, KeyError) as error:
            message = {"error": f"The request is not understood: {error!r}"}
        with contextlib.suppress(OSError):
            write_json(path.with_suffix(".answer"), message)


def ask_by_file(run: Path, request: Message, timeout: float = FILE_TIMEOUT) -> Message:
    """Send a request to the conductor of a run's folder, which is in another session; errors as ``ask``."""
    folder = run / REQUESTS
    path = folder / f"{uuid.uuid4().hex}.json"
    answer, end = path.with_suffix(".answer"), time.monotonic() + timeout
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        write_json(path, request)
        while answer not in folder.iterdir():  # NFS lists what a look at one name does not show yet
            if time.monotonic() > end:
                path.unlink(missing_ok=True)
                raise RequestRefused(NO_ANSWER.format(run.name, timeout))
            time.sleep(FILE_INTERVAL / 5)
        message = json.loads(answer.read_bytes())
        answer.unlink()
    except FileNotFoundError as error:
        raise NoConductor(ENDED_BEFORE.format(run.name)) from error
    except OSError as error:
        raise RequestRefused(f"{run.name} cannot be asked: {error}") from error
    return _checked(message)


def ask(run: str, request: Message, timeout: float = 30.0) -> Message:
    """Send a request to a run's conductor.

    Raises:
        NoConductor: no conductor answers. RequestRefused: it refused.
    """
    with _connect(run, timeout) as connection:
        try:
            connection.sendall(_encode(request))
            message = json.loads(_line(connection))
        except TimeoutError:
            raise RequestRefused(NO_ANSWER.format(run, timeout)) from None
        except (OSError, ValueError) as error:
            raise NoConductor(ENDED_BEFORE.format(run)) from error
    return _checked(message)


def _checked(message: Message) -> Message:
    if "error" in message:
        raise RequestRefused(str(message["error"]))
    return dict(message)


class Subscription:
    """The states of a run until its end; close it to stop earlier, which ends a run that is not detached.

    Each item is a state (see ``Run.state``); the last one is the final state. There may be no item where the run ends
    just as the subscription begins.

    Raises:
        NoConductor: no conductor answers.
    """

    def __init__(self, run: str, timeout: float = 30.0) -> None:
        self._connection = _connect(run, timeout)
        try:
            self._connection.sendall(_encode({"op": "follow"}))
        except OSError as error:
            self._connection.close()
            raise NoConductor(ENDED_BEFORE.format(run)) from error
        self._connection.settimeout(None)
        self._lines = self._connection.makefile("rb")

    def __iter__(self) -> Iterator[Message]:
        """Yield states as they arrive."""
        with contextlib.suppress(OSError, ValueError):
            for line in self._lines:
                yield json.loads(line)

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self._lines.close()

    def __enter__(self) -> Subscription:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the connection."""
        self.close()


def _connect(run: str, timeout: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout)
    try:
        connection.connect(str(socket_path(run)))
    except OSError as error:
        connection.close()
        raise NoConductor(f"No conductor of {run} answers in this session.") from error
    return connection


def _peer(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _line(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as lines:
        return lines.readline(MAX_LINE)


def _encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
