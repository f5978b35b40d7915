"""A Docker engine's HTTP interface on a unix socket, with containers that are entries of a dict."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import docker

Answer = tuple[int, Any]
JUNK: dict[str, Answer] = {
    "an error of its own": (500, {"message": "context deadline exceeded"}),
    "a gateway's page": (502, "<html>Bad Gateway</html>"),
    "busy": (503, {"message": "try later"}),
    "nothing": (200, ""),
    "half a line": (200, '[{"Id": "ab'),
    "another shape": (200, {"containers": []}),
    "null": (200, None),
    "numbers": (200, [1, 2, 3]),
    "rows without labels": (200, [{"Id": "a", "State": "running", "Created": 1}]),
    "rows without a state": (200, [{"Id": "a", "State": "", "Created": 1, "Labels": {"carme.session": "x"}}]),
    "not found by something else": (404, "404 page not found"),
    "forbidden": (403, {"message": "authorization denied by plugin"}),
    "bad UTF-8": (200, b"\xff\xfe\x00"),
}


class EngineInMemory:
    """As much of an engine as the hub asks; its containers run as soon as they are started.

    Attributes:
        containers: by id. ``State`` is one word; ``Create`` is what was asked for.
        answer: when set, every request gets this answer instead. silent: when set, no request gets any.
        asked: method and path of every request.
        before_create: called between a request to create and its being done.
    """

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "engine.sock"
        self.containers: dict[str, dict[str, Any]] = {}
        self.images = {"site/lab:1"}
        self.answer: Answer | None = None
        self.silent = threading.Event()
        self.asked: list[tuple[str, str]] = []
        self.before_create: Callable[[], None] = lambda: None
        self.start_refused = ""
        self.log = ""
        self.ends_at_once = False
        self._lock = threading.Lock()
        self._count = 0
        self._server = _Server(str(self.socket), _Handler)
        self._server.engine = self  # type: ignore[attr-defined]
        self.web = ThreadingHTTPServer(("127.0.0.1", 0), _Web)
        self._threads = [
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
            for server in (self._server, self.web)
        ]
        for thread in self._threads:
            thread.start()

    def connect(self) -> docker.APIClient:
        """Return a client, as the hub's settings would."""
        return docker.APIClient(base_url=f"unix://{self.socket}", version="1.41", timeout=120)

    def end(self) -> None:
        """Stop listening."""
        self.silent.clear()
        for server in (self._server, self.web):
            server.shutdown()
            server.server_close()

    def live(self) -> list[dict[str, Any]]:
        """Return the containers that have not ended."""
        return [c for c in self.containers.values() if c["State"] not in ("exited", "dead")]

    def given(self) -> list[str]:
        """Return the GPUs of all running containers, doubles included."""
        running = [c for c in self.containers.values() if c["State"] == "running"]
        return sorted(id for c in running for id in c["Labels"]["carme.gpus"].split(",") if id)

    def add(self, state: str = "running", created: float | None = None, **labels: str) -> str:
        """Put a container there, as another hub or an earlier one would have."""
        with self._lock:
            self._count += 1
            id = f"{self._count:064x}"
            kept = {f"carme.{name.replace('_', '-')}": value for name, value in labels.items()}
            self.containers[id] = {
                "Id": id,
                "State": state,
                "Created": int(time.time() if created is None else created),
                "Labels": {"carme.session": f"session-{self._count}", "carme.gpus": "", **kept},
                "Create": {"HostConfig": {}},
            }
            return id

    def handle(self, method: str, path: str, query: dict[str, str], body: Any) -> Answer:
        """Answer one request."""
        if path == "/info":
            return 200, {"NCPU": 16, "MemTotal": 64 * 2**30}
        if path == "/containers/json":
            return 200, list(self.containers.values())
        if path == "/containers/create":
            self.before_create()
            id = self.add("created")
            self.containers[id] |= {"Labels": body["Labels"], "Create": body, "Name": query.get("name", "")}
            return 201, {"Id": id, "Warnings": []}
        if match := re.fullmatch(r"/images/(.+)/json", path):
            there = unquote(match[1]) in self.images
            return (200, {"Config": {}}) if there else (404, {"message": f"No such image: {match[1]}"})
        match = re.fullmatch(r"/containers/([0-9a-f]+)(?:/(\w+))?", path)
        container = self.containers.get(match[1]) if match else None
        if match is None or container is None:
            return 404, {"message": f"No such container: {path}"}
        return self._one(method, match[2] or "", container)

    def _one(self, method: str, action: str, container: dict[str, Any]) -> Answer:
        if action == "json":
            return 200, self._inspected(container)
        if action == "logs":
            return 200, self.log.encode()
        if action == "start":
            if self.start_refused:
                return 500, {"message": self.start_refused}
            container["State"] = "exited" if self.ends_at_once else "running"
            return 204, ""
        if action == "stop":
            container["State"] = "exited"
            return 204, ""
        if method == "DELETE":
            del self.containers[container["Id"]]
            return 204, ""
        return 400, {"message": f"unknown: {action}"}

    def _inspected(self, container: dict[str, Any]) -> dict[str, Any]:
        state = container["State"]
        port = {"8888/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(self.web.server_address[1])}]}
        return {
            "Id": container["Id"],
            "State": {"Status": state, "ExitCode": 3 if state == "exited" else 0, "OOMKilled": False, "Error": ""},
            "Config": {"Tty": True},
            "NetworkSettings": {"Ports": port, "Networks": {"bridge": {"IPAddress": "172.17.0.2"}}},
        }


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _do(self) -> None:
        engine: EngineInMemory = self.server.engine  # type: ignore[attr-defined]
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        url = urlsplit(self.path)
        path = re.sub(r"^/v[0-9.]+", "", url.path)
        engine.asked.append((self.command, path))
        while engine.silent.is_set():
            time.sleep(0.02)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        status, data = engine.answer or engine.handle(self.command, path, query, json.loads(raw) if raw else None)
        body = data if isinstance(data, bytes) else (data if isinstance(data, str) else json.dumps(data)).encode()
        try:
            self.send_response(status)
            if status != 204:
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if status != 204:
                self.wfile.write(body)
        except OSError:
            self.close_connection = True  # whoever asked has given up

    do_GET = do_POST = do_DELETE = _do

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class _Web(BaseHTTPRequestHandler):
    """The server inside every container."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("X-JupyterHub-Version", "6.1.1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
