"""Shared code of tests of commands that use HTTP: a server that answers JSON, and a function that runs a command."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

import pytest


class ForgedServer(ThreadingHTTPServer):
    """A server on a separate port; answers come from the handler."""

    def __init__(self, handler: type[ForgedHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class ForgedHandler(BaseHTTPRequestHandler):
    """Reads and answers JSON; a text is sent unchanged."""

    def body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")

    def say(self, status: int, said: Any, headers: dict[str, str] | None = None) -> None:
        raw = (said if isinstance(said, str) else json.dumps(said)).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(raw)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


Served = TypeVar("Served", bound=ForgedServer)


@contextmanager
def serving(server: Served) -> Iterator[Served]:
    """Serve in a separate thread."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(app: type[Any], *argv: str) -> int:
    """Run a command in this process; return its exit status."""
    command = app()

    def initialize_and_start() -> None:
        command.initialize(list(argv))
        command.start()

    with pytest.raises(SystemExit) as ended:
        initialize_and_start()
    return int(ended.value.code or 0)
