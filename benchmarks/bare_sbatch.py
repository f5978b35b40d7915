"""A bare ``sbatch`` of the container and server that a session has, without our code: the lower bound of a start.

The batch script is a shell script that executes bubblewrap, as rendered for a session, with jupyterhub-singleuser in
it. The port is fixed, TLS is off, and a stub in this process answers the server's requests to its hub.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shlex
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import jupyterhub
from hubs import free_ports

from carme_hub.containers.bubblewrap import Bubblewrap
from carme_hub.containers.images import read_image
from carme_hub.containers.runtime import ContainerRequest
from carme_hub.sandbox import Cluster
from carme_hub.sandbox.images.build import build_default_image
from carme_hub.spawners.job_script import PASS_ENV, PATH


class StubHub(BaseHTTPRequestHandler):
    """A stub that answers the requests of a starting server to its hub."""

    def do_GET(self) -> None:
        self._say({"version": jupyterhub.__version__})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._say({})

    def _say(self, what: dict[str, Any]) -> None:
        body = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-JupyterHub-Version", jupyterhub.__version__)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: stderr is for the benchmark's progress."""


@contextlib.contextmanager
def stub_hub() -> Iterator[str]:
    """Run the stub and yield its API's address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), StubHub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hub/api"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def start_bare(cluster: Cluster, user: str, home: str, uid: int, gid: int, api: str, options: list[str]) -> float:
    """Submit one server, return the seconds until it answers, and cancel its job."""
    folder = f"{home}/.carme/bench-{uuid.uuid4()}"
    [port] = free_ports(1)
    request = ContainerRequest(
        image=read_image(build_default_image()),
        argv=("jupyterhub-singleuser",),
        home=home,
        session_folder=folder,
        user=user,
        uid=uid,
        gid=gid,
        environ={
            **{"HOME": home, "USER": user, "LOGNAME": user, "SHELL": "/bin/bash", "PATH": PATH, "LANG": "C.UTF-8"},
            "JUPYTERHUB_ROOT_DIR": home,
        },
        pass_env=PASS_ENV,
        workdir=home,
    )
    plan = Bubblewrap().render(request)
    environ = [f"{name}={value}" for name, value in {**plan.environ, **hub_environment(user, port, api)}.items()]
    run = shlex.join(["exec", "env", "-i", *environ, *plan.argv])
    script = f"#!/bin/sh\nmkdir -p {shlex.quote(folder)}\n{run}\n"
    url = f"http://127.0.0.1:{port}/user/{user}/api"
    began = time.perf_counter()
    job = cluster.sbatch(*options, user=user, script=script)
    try:
        wait_answer(url, 60.0)
        return time.perf_counter() - began
    finally:
        cluster.run("scancel", str(job), check=False)
        cluster.run("/usr/bin/rmdir", folder, user=user, check=False)


def hub_environment(user: str, port: int, api: str) -> dict[str, str]:
    return {
        "JUPYTERHUB_API_URL": api,
        "JUPYTERHUB_ACTIVITY_URL": f"{api}/users/{user}/activity",
        "JUPYTERHUB_API_TOKEN": "not-a-token",
        "JUPYTERHUB_BASE_URL": "/",
        "JUPYTERHUB_CLIENT_ID": f"jupyterhub-user-{user}",
        "JUPYTERHUB_HOST": "",
        "JUPYTERHUB_OAUTH_CALLBACK_URL": f"/user/{user}/oauth_callback",
        "JUPYTERHUB_OAUTH_SCOPES": json.dumps([f"access:servers!server={user}/"]),
        "JUPYTERHUB_OAUTH_ACCESS_SCOPES": json.dumps([f"access:servers!server={user}/"]),
        "JUPYTERHUB_OAUTH_CLIENT_ALLOWED_SCOPES": "[]",
        "JUPYTERHUB_SERVER_NAME": "",
        "JUPYTERHUB_SERVICE_PREFIX": f"/user/{user}/",
        "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}/user/{user}/",
        "JUPYTERHUB_USER": user,
    }


def wait_answer(url: str, within: float) -> None:
    """Wait until a server's API answers at an address."""
    where = urlsplit(url)
    end = time.monotonic() + within
    while not _answers(where.hostname or "", where.port or 80, where.path):
        if time.monotonic() > end:
            raise SystemExit(f"{url} does not answer within {within:.0f} s")
        time.sleep(0.01)


def _answers(host: str, port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status == 200 and b"version" in answer.read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
