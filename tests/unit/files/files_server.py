"""A real Jupyter server with the file page, and requests to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

TOKEN = "of-the-visitor"


@dataclass
class Answered:
    """An answer; names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class Server:
    """The server, and where its home is."""

    home: Path
    port: int
    pid: int = 0

    def ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: Any = None, token: str = TOKEN
    ) -> Answered:
        """Send a request and return the answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = {"Authorization": f"token {token}"} if token else {}
            connection.request(method, path, body, {**sent, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answered(answer.status, found, answer.read())
        finally:
            connection.close()

    def is_up(self) -> bool:
        try:
            return self.ask("GET", "/api/status").status == 200
        except OSError:
            return False
