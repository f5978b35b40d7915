"""Where the ranks of one run find each other; who does not know the run's secret gets nothing.

Horovod's own rendezvous listens on all addresses of the node and unpickles what anybody sends it (CVE-2024-10190,
CVE-2026-31234), so on a shared cluster it is never started. This one binds one address and a port of the kernel's
choice. Its secret is a part of the address path: a client that is told ``10.0.0.1:4711/SECRET`` as its address and 4711
as its port asks for ``http://10.0.0.1:4711/SECRET:4711/scope/key``, so Horovod's C++ and Python clients send it
unchanged. Values are bytes that are kept and handed out, and never looked into.

What Horovod keeps here are the addresses of its ranks, a few hundred bytes each, so there are narrow limits.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote

#: Seconds for which one request may take to arrive.
PATIENCE = 10.0
#: The most bytes of a value, and the most values; a mesh of 1,000 ranks has 1,000 addresses of some 50 bytes in each.
LARGEST, MOST = 1 << 20, 20_000
#: Connections at a time: each has a thread and a file, and a stranger may open as many as they like.
CONNECTIONS = 512
#: A scope in which every rank of a run writes its number (horovod/common/gloo/gloo_context.h).
GLOBAL = "global"


class Rendezvous:
    """Keeps what ranks say, from ``start`` to ``stop``.

    Args:
        host: address of this node to bind, which the other nodes reach; a name is looked up.
    """

    def __init__(self, host: str) -> None:
        self.secret = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], bytes] = {}
        self._came: dict[str, dict[str, None]] = {}  # in the order in which they came
        self._server = _Server((host, 0), _Handler)
        self._server.rendezvous = self
        self._thread = threading.Thread(target=self._serve, name="carme-rendezvous", daemon=True)

    @property
    def port(self) -> int:
        """Return the port."""
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """Return the address with its secret, as clients are told it. Never in argv: others see that."""
        return f"{self._server.server_address[0]!s}:{self.port}/{self.secret}"

    def start(self) -> Rendezvous:
        """Answer from now on; when this returns a client is answered."""
        self._thread.start()
        return self

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)  # by which ``stop`` may be late

    def stop(self) -> None:
        """Answer no more, and forget everything."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self.clear()

    def __enter__(self) -> Rendezvous:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def clear(self, *scopes: str) -> None:
        """Forget what was said, as before ranks find each other anew; in these scopes only, where there are any."""
        with self._lock:
            for place in [each for each in self._values if not scopes or each[0] in scopes]:
                del self._values[place]
            for scope in [each for each in self._came if not scopes or each in scopes]:
                del self._came[scope]

    def missing(self, size: int, scope: str = GLOBAL) -> list[int]:
        """Return the ranks below ``size`` that have not come since the last ``clear``."""
        with self._lock:
            came = self._came.get(scope, {})
            return [rank for rank in range(size) if str(rank) not in came]

    def came(self, scope: str) -> list[str]:
        """Return the keys that were ever written in a scope since it was cleared, the first one first."""
        with self._lock:
            return list(self._came.get(scope, {}))

    # -- what clients ask ---------------------------------------------------------------------------------------------

    def get(self, scope: str, key: str) -> bytes | None:
        """Return a value, None where there is none."""
        with self._lock:
            return self._values.get((scope, key))

    def put(self, scope: str, key: str, value: bytes) -> bool:
        """Keep a value; return whether there was room for it."""
        with self._lock:
            if (scope, key) not in self._values and len(self._values) >= MOST:
                return False
            self._values[scope, key] = value
            self._came.setdefault(scope, {})[key] = None
            return True

    def delete(self, scope: str, key: str) -> None:
        """Forget a value; that there was one is still known."""
        with self._lock:
            self._values.pop((scope, key), None)


class _Server(ThreadingHTTPServer):
    """One thread for each request: ranks wait for each other."""

    daemon_threads = True
    request_queue_size = 1024  # all ranks of a run come at once
    rendezvous: Rendezvous

    def __init__(self, *words: Any) -> None:
        self._open: dict[Any, float] = {}
        self._changed = threading.Condition()
        super().__init__(*words)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, one of so many; where there is none left, who has been here for long has to go."""
        with self._changed:
            while len(self._open) >= CONNECTIONS:
                late = time.monotonic() - PATIENCE
                for each in [each for each, began in self._open.items() if began < late]:
                    with contextlib.suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)  # its thread reads the end
                self._changed.wait(0.1)
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Let a connection go."""
        super().shutdown_request(request)
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify()

    def server_bind(self) -> None:
        """Bind, and look up no name of it."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


class _Handler(BaseHTTPRequestHandler):
    """Answers GET, PUT and DELETE of ``/SECRET:PORT/scope/key``; all else is 404, as if nothing were there."""

    server: _Server
    timeout = PATIENCE
    server_version, sys_version = "rendezvous", ""

    def do_GET(self) -> None:
        """Hand a value out."""
        place = self._place()
        value = self.server.rendezvous.get(*place) if place is not None else None
        if value is None:
            self._say(404)
        else:
            self._say(200, value)

    def do_PUT(self) -> None:
        """Keep a value."""
        place = self._place()
        if place is None:
            return self._say(404)
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or int(length) > LARGEST:
            return self._say(413)
        try:
            value = self.rfile.read(int(length))
        except TimeoutError:
            return self._say(408)
        whole = len(value) == int(length)
        return self._say(200 if whole and self.server.rendezvous.put(*place, value) else 507 if whole else 400)

    def do_DELETE(self) -> None:
        """Forget a value."""
        place = self._place()
        if place is None:
            return self._say(404)
        self.server.rendezvous.delete(*place)
        return self._say(200)

    def _place(self) -> tuple[str, str] | None:
        """Return scope and key of a request that knows the secret."""
        parts = self.path.split("/")
        said = parts[1] if len(parts) == 4 and not parts[0] else ""
        ours = f"{self.server.rendezvous.secret}:{self.server.rendezvous.port}"
        if not hmac.compare_digest(said.encode(), ours.encode()):
            return None
        return unquote(parts[2]), unquote(parts[3])

    def _say(self, status: int, value: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(value)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answer HEAD and what is no HTTP like everything that is not known here."""
        self.close_connection = True
        self.request_version = getattr(self, "request_version", "HTTP/1.0")
        self._say(404)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the address path, which has the secret, out of every log."""
