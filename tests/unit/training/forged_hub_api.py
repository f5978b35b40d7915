"""A hub that answers what it is told to, and notes what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ForgedHub(ThreadingHTTPServer):
    """Answers as it is told and notes what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, str, Any, dict[str, str]]] = []


class Handler(BaseHTTPRequestHandler):
    """One question."""

    server: ForgedHub

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server.asked.append((self.command, self.path, body, dict(self.headers)))
        status, answer = self.server.answers.pop(0)
        if status == 0:  # the connection is lost
            self.close_connection = True
            return
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def forged_hub() -> Iterator[ForgedHub]:
    """Serve on a port of its own."""
    server = ForgedHub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
