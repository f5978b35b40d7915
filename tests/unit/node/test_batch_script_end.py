"""A server's end is told to the hub by the batch script before it cleans up; a hub that is away is not waited for."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from test_batch_script import Node

ENDS = "import os, sys; os.unlink('singleuser.json'); sys.exit(3)"


class ForgedHub:
    """Answers as told, and remembers what was said to it and what lay in the session folder then."""

    def __init__(self, folder: Path, answers: list[int]) -> None:
        self.said: list[tuple[str, str, Any]] = []
        self.lying: list[list[str]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hub.said.append((self.path, self.headers["Authorization"], body))
                hub.lying.append(sorted(path.name for path in folder.iterdir()))
                self.send_response(answers.pop(0))
                self.end_headers()

            def log_message(self, *_args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def told(self) -> dict[str, Any]:
        """What a session is told of this hub."""
        port = self.server.server_address[1]
        url = f"http://127.0.0.1:{port}/hub/api/carme/sessions/abc/port"
        return {"callback": url, "nonce": "NONCE", "environ": {}}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def answers() -> list[int]:
    return [204]


@pytest.fixture
def hub(node: Node, answers: list[int]) -> Iterator[ForgedHub]:
    made = ForgedHub(node.folder, answers)
    node.document["singleuser"] = made.told
    yield made
    made.server.shutdown()
    made.server.server_close()


SAID = ("/hub/api/carme/sessions/abc/ended", "carme-nonce NONCE", {"exit": 3})


def test_the_end_and_its_status_are_told_before_anything_is_cleaned_up(node: Node, hub: ForgedHub) -> None:
    assert node.run(ENDS) == 3
    assert hub.said == [SAID]
    assert "data.json" in hub.lying[0]


def test_a_server_that_never_began_is_told_of_too(node: Node, hub: ForgedHub) -> None:
    node.document["plan"]["argv"] = ["/nowhere/container"]
    assert node.run() == 76
    assert [body for _, _, body in hub.said] == [{"exit": 76}]


@pytest.mark.parametrize("answers", [[503, 204]], ids=["fails once"])
def test_a_hub_that_fails_is_asked_once_more(node: Node, hub: ForgedHub) -> None:
    assert node.run(ENDS) == 3
    assert hub.said == [SAID, SAID]


@pytest.mark.parametrize("answers", [[403]], ids=["refuses"])
def test_a_hub_that_refuses_is_left_alone(node: Node, hub: ForgedHub) -> None:
    assert node.run(ENDS) == 3
    assert hub.said == [SAID]


def test_a_hub_that_is_away_changes_neither_status_nor_end_mark(node: Node, hub: ForgedHub) -> None:
    hub.server.shutdown()
    hub.server.server_close()
    began = time.monotonic()
    assert node.run(ENDS) == 3
    assert time.monotonic() - began < 30
    assert node.mark["exit"] == 3
    assert "the hub was not informed of the end" in node.log
    assert "NONCE" not in node.log


def test_a_job_without_a_server_tells_nobody(node: Node) -> None:
    assert node.run("import sys; sys.exit(3)") == 3
    assert "hub" not in node.log
