"""A real Jupyter server with the file page, in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from files_server import TOKEN, Server

EXTENSION = "carme_hub.training.server.extension"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environ = {**os.environ, "HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[3])}
    for name in ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN", "JUPYTER_CONFIG_PATH", "CARME_SESSION_FOLDER"):
        environ.pop(name, None)
    argv = [sys.executable, "-m", "jupyter_server", "--no-browser", f"--port={port}", "--allow-root"]
    argv += [f"--ServerApp.jpserver_extensions={{'{EXTENSION}': True}}", f"--IdentityProvider.token={TOKEN}"]
    argv += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={home}"]
    log_path = tmp_path_factory.mktemp("log") / "log"
    with log_path.open("wb") as log, subprocess.Popen(argv, env=environ, stdout=log, stderr=log) as process:
        found_server = Server(home, port, process.pid)
        try:
            end = time.monotonic() + 60
            while not found_server.is_up():
                assert process.poll() is None, log_path.read_text()
                assert time.monotonic() < end, log_path.read_text()
                time.sleep(0.2)
            yield found_server
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)
    assert "Traceback" not in log_path.read_text(), log_path.read_text()


@pytest.fixture
def folder(server: Server, request: pytest.FixtureRequest) -> Path:
    """A folder of the server's home for one test."""
    found = server.home / f"{request.node.name[:60]}".replace("/", "_")
    found.mkdir()
    return found
