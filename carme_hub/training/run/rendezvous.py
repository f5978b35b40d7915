"""The rendezvous of a run, where its ranks find each other; only clients that know the run's secret get an answer.

Horovod's own rendezvous listens on all addresses of the node and unpickles what anybody sends it (CVE-2024-10190,
CVE-2026-31234), so it is never started on a shared cluster. This one binds one address and a port that the kernel
chooses. Its secret is a part of the address path: a client with the address ``10.0.0.1:4711/SECRET`` and the port 4711
requests ``http://10.0.0.1:4711/SECRET:4711/scope/key``, so Horovod's C++ and Python clients send the secret without any
change. Values are bytes; they are stored and returned, and never interpreted.

Horovod stores the addresses of its ranks here, a few hundred bytes each, so the limits are narrow.
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
from typing import Any, Self
from urllib.parse import unquote

#: Seconds for one request to arrive.
REQUEST_TIMEOUT = 10.0
#: The most bytes of a value, and the most values; a mesh of 1,000 ranks has 1,000 addresses of some 50 bytes in each.
MAX_VALUE_BYTES, MAX_VALUES = 1 << 20, 20_000
#: Connections at a time: each needs a thread and a file, and any client of the network may open many.
MAX_CONNECTIONS = 512
#: The scope in which every rank of Horovod writes its number (horovod/common/gloo/gloo_context.h).
GLOBAL_SCOPE = "global"


class Rendezvous:
    """Stores the values of a run's ranks, from ``start`` to ``stop``.

    Args:
        host: address of this node to bind, which other nodes reach; a name is resolved.
    """

    def __init__(self, host: str) -> None:
        self.secret = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], bytes] = {}
        self._came: dict[str, dict[str, None]] = {}  # in order of arrival
        self._wanted: dict[str, bytes] = {}
        self._server = _Server((host, 0), _Handler)
        self._server.rendezvous = self
        self._thread = threading.Thread(target=self._serve, name="carme-rendezvous", daemon=True)

    @property
    def port(self) -> int:
        """Return the port."""
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """Return the address with its secret, for clients. Never in argv: other users can read that."""
        return f"{self._server.server_address[0]!s}:{self.port}/{self.secret}"

    def start(self) -> Self:
        """Start to answer; clients are answered when this returns."""
        self._thread.start()
        return self

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)  # the delay of ``stop``

    def stop(self) -> None:
        """Stop to answer, and forget all values."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self.clear()

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def renew(self) -> None:
        """Forget all values, and refuse the clients of before: ranks that are started again read the new secret."""
        self.secret = secrets.token_hex(16)
        self.clear()

    def clear(self, *scopes: str) -> None:
        """Forget all values, before ranks meet again; only those of the given scopes, if any are given."""
        with self._lock:
            for place in [each for each in self._values if not scopes or each[0] in scopes]:
                del self._values[place]
            for scope in [each for each in self._came if not scopes or each in scopes]:
                del self._came[scope]

    def missing(self, size: int, scope: str = GLOBAL_SCOPE) -> list[int]:
        """Return the ranks below ``size`` that have not arrived since the last ``clear``."""
        with self._lock:
            came = self._came.get(scope, {})
            return [rank for rank in range(size) if str(rank) not in came]

    def arrivals(self, scope: str) -> list[str]:
        """Return the keys that were written in a scope since it was cleared, in order of arrival."""
        with self._lock:
            return list(self._came.get(scope, {}))

    # -- requests of clients -------------------------------------------------------------------------------------------

    def get(self, scope: str, key: str) -> bytes | None:
        """Return a value, None where there is none."""
        with self._lock:
            return self._values.get((scope, key))

    def put(self, scope: str, key: str, value: bytes) -> bool:
        """Store a value; return whether there was room for it."""
        with self._lock:
            if (scope, key) not in self._values and len(self._values) >= MAX_VALUES:
                return False
            self._values[scope, key] = value
            self._came.setdefault(scope, {})[key] = None
            return True

    def want(self, scope: str, text: bytes) -> None:
        """Answer clients that store a value in a scope with this text, from now on."""
        with self._lock:
            self._wanted[scope] = text

    def wanted(self, scope: str) -> bytes:
        """Return the answer to clients that store a value in a scope."""
        with self._lock:
            return self._wanted.get(scope, b"")

    def delete(self, scope: str, key: str) -> None:
        """Delete a value; its key still counts as arrived."""
        with self._lock:
            self._values.pop((scope, key), None)


class _Server(ThreadingHTTPServer):
    """One thread for each request: ranks wait for each other."""

    daemon_threads = True
    request_queue_size = 1024  # all ranks of a run connect at once
    rendezvous: Rendezvous

    def __init__(self, *words: Any) -> None:
        self._open: dict[Any, float] = {}
        self._changed = threading.Condition()
        super().__init__(*words)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; at the limit of connections, close those that have been open for too long."""
        with self._changed:
            while len(self._open) >= MAX_CONNECTIONS:
                late = time.monotonic() - REQUEST_TIMEOUT
                for each in [each for each, began in self._open.items() if began < late]:
                    with contextlib.suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)  # its thread reads an end of file
                self._changed.wait(0.1)
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        super().shutdown_request(request)
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify()

    def server_bind(self) -> None:
        """Bind without resolving the name of the address."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a client that is gone."""


class _Handler(BaseHTTPRequestHandler):
    """Answers GET, PUT and DELETE of ``/SECRET:PORT/scope/key``, and everything else with 404."""

    server: _Server
    timeout = REQUEST_TIMEOUT
    server_version, sys_version = "rendezvous", ""

    def do_GET(self) -> None:
        """Return a value."""
        place = self._place()
        value = self.server.rendezvous.get(*place) if place is not None else None
        if value is None:
            self._say(404)
        else:
            self._say(200, value)

    def do_PUT(self) -> None:
        """Store a value."""
        place = self._place()
        if place is None:
            return self._say(404)
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or int(length) > MAX_VALUE_BYTES:
            return self._say(413)
        try:
            value = self.rfile.read(int(length))
        except TimeoutError:
            return self._say(408)
        if len(value) != int(length):
            return self._say(400)
        if not self.server.rendezvous.put(*place, value):
            return self._say(507)
        return self._say(200, self.server.rendezvous.wanted(place[0]))

    def do_DELETE(self) -> None:
        """Delete a value."""
        place = self._place()
        if place is None:
            return self._say(404)
        self.server.rendezvous.delete(*place)
        return self._say(200)

    def _place(self) -> tuple[str, str] | None:
        """Return scope and key of a request with the right secret."""
        parts = self.path.split("/")
        secret = parts[1] if len(parts) == 4 and not parts[0] else ""
        ours = f"{self.server.rendezvous.secret}:{self.server.rendezvous.port}"
        if not hmac.compare_digest(secret.encode(), ours.encode()):
            return None
        return unquote(parts[2]), unquote(parts[3])

    def _say(self, status: int, value: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(value)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answer HEAD and invalid requests with 404."""
        self.close_connection = True
        self.request_version = getattr(self, "request_version", "HTTP/1.0")
        self._say(404)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the address path has the secret."""
