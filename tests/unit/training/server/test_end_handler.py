"""A real Jupyter server puts its session in order for whoever has its token, and for nobody else."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

TOKEN = "of-the-hub"
EXTENSION = "carme_hub.training.server.extension"


class Server:
    """A Jupyter server in a process of its own."""

    def __init__(self, home: Path, port: int) -> None:
        self.home, self.port = home, port

    def ask(self, method: str, path: str, body: Any = None, token: str = TOKEN) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(text or b"null")

    def is_up(self) -> bool:
        try:
            return self.ask("GET", "/api/status")[0] == 200
        except (OSError, ValueError):
            return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environ = {**os.environ, "HOME": str(home), "CARME_SESSION": "one", "CARME_SESSION_FOLDER": str(home)}
    for name in ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN", "JUPYTER_CONFIG_PATH"):
        environ.pop(name, None)
    environ["PYTHONPATH"] = str(Path(__file__).parents[4])
    argv = [sys.executable, "-m", "jupyter_server", "--no-browser", f"--port={port}", "--allow-root"]
    argv += [f"--ServerApp.jpserver_extensions={{'{EXTENSION}': True}}", f"--IdentityProvider.token={TOKEN}"]
    argv += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={home}"]
    with (home / "log").open("wb") as log, subprocess.Popen(argv, env=environ, stdout=log, stderr=log) as process:
        found_server = Server(home, port)
        try:
            end = time.monotonic() + 60
            while not found_server.is_up():
                assert process.poll() is None, (home / "log").read_text()
                assert time.monotonic() < end, (home / "log").read_text()
                time.sleep(0.2)
            yield found_server
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def test_only_who_has_the_token_may_ask_and_the_body_has_a_key(server: Server) -> None:
    assert server.ask("POST", "/carme/end", {"key": "a"}, token="wrong")[0] == 403
    for body in ({}, [], {"key": ""}, {"key": 3}, {"key": "x" * 65}):
        assert server.ask("POST", "/carme/end", body)[0] == 400
    assert server.ask("GET", "/carme/end")[0] == 405


def test_it_puts_the_session_in_order_and_that_is_no_activity(server: Server) -> None:
    before = server.ask("GET", "/api/status")[1]["last_activity"]
    command = server.home / ".carme/before-end"
    command.parent.mkdir(exist_ok=True)
    command.write_text("#!/bin/sh\nexit 3\n")
    command.chmod(0o700)
    status, found = server.ask("POST", "/carme/end", {"key": "one", "unless_at_work": True})
    assert (status, found["kernels"], found["runs"], found["notebooks"]) == (200, 0, 0, [])
    assert [(each["name"], each["status"]) for each in found["commands"]] == [("before-end", 3)]
    assert server.ask("GET", "/api/status")[1]["last_activity"] == before
    assert server.is_up(), "nothing here ends anything"
