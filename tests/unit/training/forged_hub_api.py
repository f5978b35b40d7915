"""A hub that answers what it is told to, and notes what it was asked."""

from __future__ import annotations

from typing import Any

from rig.forged_http import ForgedHandler, ForgedServer


class ForgedHub(ForgedServer):
    """Answers as it is told and notes what it was asked."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, str, Any, dict[str, str]]] = []


class Handler(ForgedHandler):
    """One question."""

    server: ForgedHub

    def do_GET(self) -> None:
        self.server.asked.append((self.command, self.path, self.body(), dict(self.headers)))
        status, answer = self.server.answers.pop(0)
        if status == 0:  # the connection is lost
            self.close_connection = True
            return
        self.say(status, answer.decode() if isinstance(answer, bytes) else answer)

    do_POST = do_DELETE = do_GET
