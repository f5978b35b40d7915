"""A real hub in front of the sandbox, and its use by tests: API, login form, kernels."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import secrets
import sqlite3
import time
import urllib.parse
import uuid
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from carme_hub.sandbox import Cluster
from carme_hub.sandbox.demo import Demo

from .hang_report import hang_report

READY = 180.0


@dataclass
class Answer:
    """One answer of the hub; the names of headers are written ``Like-This``."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


class Hub:
    """A running hub; ``token`` may do everything through the API."""

    def __init__(self, demo: Demo) -> None:
        self.demo = demo
        self.cluster = demo.cluster
        self.token = secrets.token_hex(16)
        self.environment = {"CARME_SANDBOX_CHECK_TOKEN": self.token, "CARME_TEST_BUILD": "1"}
        self._progress = print
        self._extra: dict[str, str] = {}

    # -- process ------------------------------------------------------------------------------------------------------

    def start(self, **extra: str) -> None:
        """Start proxy and hub where they do not run; ``extra`` goes into the hub's environment."""
        if not self.demo.sandbox.processes.alive("hub"):
            self._extra = extra
            if self.demo.log.exists():  # every start writes a new one
                with self.demo.log.with_name("hub-before.log").open("a") as before:
                    before.write(self.log_text())
        self.demo.start(self._progress, {**self.environment, **extra})

    def recover(self) -> None:
        """Run the hub without a crash point, whatever a test did."""
        if self._extra:
            self.kill()
        self.start()

    def stop(self) -> None:
        """End hub and proxy with TERM; sessions continue."""
        self.demo.sandbox.processes.stop("hub")
        self.demo.sandbox.processes.stop("proxy")

    def kill(self) -> None:
        """End the hub with KILL, as a power failure would."""
        if self.demo.sandbox.processes.alive("hub"):
            self.demo.sandbox.processes.signal("hub", 9)
        self.wait_dead()

    def wait_dead(self, limit: float = 30.0) -> None:
        """Wait until the hub's process has ended."""
        wait_for(lambda: not self.demo.sandbox.processes.alive("hub"), limit, "the hub to end")
        self.demo.sandbox.processes.stop("hub")

    def restart(self, **extra: str) -> None:
        """Restart the hub with TERM, but not the proxy."""
        self.demo.sandbox.processes.stop("hub", within=20)
        self.start(**extra)

    def log_text(self) -> str:
        """Return the hub's log since its last start."""
        return self.demo.log.read_text(errors="replace")

    # -- API ----------------------------------------------------------------------------------------------------------

    def api(self, method: str, path: str, body: Any = None, token: str | None = None, timeout: float = 30) -> Answer:
        """Send a request to the hub's REST API through the proxy."""
        headers = {"Authorization": f"token {self.token if token is None else token}"}
        return self.request(method, f"/hub/api{path}", json.dumps(body) if body is not None else None, headers, timeout)

    def request(
        self,
        method: str,
        path: str,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30,
    ) -> Answer:
        """Send one request through the proxy."""
        connection = http.client.HTTPConnection("127.0.0.1", self.demo.ports["public"], timeout=timeout)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            raw = answer.read()
        finally:
            connection.close()
        text = raw.decode("utf-8", "replace")
        kind = answer.headers.get("Content-Type", "")
        parsed: Any = text
        if "json" in kind and text:
            # Jupyter Server calls a plain sentence JSON where there is no such file.
            with contextlib.suppress(*(() if answer.status < 400 else (json.JSONDecodeError,))):
                parsed = json.loads(text)
        return Answer(answer.status, parsed, {name.title(): value for name, value in answer.headers.items()})

    def ensure_user(self, user: str) -> None:
        """Add a user who has not logged in yet to the hub."""
        self.api("POST", f"/users/{user}")

    def server(self, user: str, name: str = "") -> dict[str, Any] | None:
        """Return the API's model of a server, None when there is none."""
        answer = self.api("GET", f"/users/{user}")
        if answer.status != 200:
            return None
        found = answer.body["servers"].get(name)
        return dict(found) if found else None

    def begin(self, user: str, name: str = "", **options: Any) -> Answer:
        """Request a server; return at once."""
        self.ensure_user(user)
        path = f"/users/{user}/servers/{name}" if name else f"/users/{user}/server"
        return self.api("POST", path, {"user_options": options or {"profile": "cpu"}})

    def start_server(self, user: str, name: str = "", limit: float = READY, **options: Any) -> dict[str, Any]:
        """Start a server and wait until it is ready."""
        answer = self.begin(user, name, **options)
        assert answer.status in (201, 202), answer
        return self.wait_server(user, name, limit)

    def wait_server(self, user: str, name: str = "", limit: float = READY) -> dict[str, Any]:
        """Wait until a server is ready; a failure shows the end of the hub's log."""
        deadline = time.monotonic() + limit
        seen = None
        while time.monotonic() < deadline:
            seen = self.server(user, name)
            if seen and seen["ready"]:
                return seen
            time.sleep(0.2)
        raise AssertionError(f"no server for {user}/{name} in {limit} s: {seen}\n{self.log_text()[-3000:]}")

    def stop_server(self, user: str, name: str = "", limit: float = 60) -> None:
        """Stop a server and wait until the hub reports it stopped."""
        path = f"/users/{user}/servers/{name}" if name else f"/users/{user}/server"
        answer = self.api("DELETE", path, timeout=90)
        assert answer.status in (202, 204), answer
        wait_for(lambda: self.server(user, name) is None, limit, f"{user}'s server to stop")

    def stop_all(self, limit: float = 120) -> None:
        """Stop every server of the hub, and delete named ones, of which a user may have five.

        It repeats the request for a server that is starting or stopping.
        """
        deadline = time.monotonic() + limit
        while paths := self._server_paths():
            assert time.monotonic() < deadline, f"not stopped in {limit} s: {paths}"
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda path: self.api("DELETE", path, timeout=90), paths))
            time.sleep(0.3)
        for path in self._server_paths(stopped=True):
            if "/servers/" in path:
                self.api("DELETE", path, {"remove": True}, timeout=90)

    def open_holds(self) -> int:
        """Return how many sessions have GPU time held, as the database has them."""
        database = sqlite3.connect(f"file:{self.demo.folder / 'carme-hub.sqlite'}?mode=ro", uri=True)
        try:
            return int(database.execute("select count(*) from open_hold").fetchone()[0])
        finally:
            database.close()

    def wait_settled(self, limit: float = 90) -> None:
        """Wait until every ended session is settled; a session counts for limits until then."""
        wait_for(lambda: self.open_holds() == 0, limit, "what other tests held to be settled")

    def _server_paths(self, stopped: bool = False) -> list[str]:
        answer = self.api("GET", f"/users?include_stopped_servers={int(stopped)}")
        return [
            f"/users/{user['name']}/servers/{name}" if name else f"/users/{user['name']}/server"
            for user in (answer.body if answer.status == 200 else [])
            for name in user.get("servers") or {}
        ]

    def progress(
        self, user: str, name: str = "", limit: float = READY, into: list[str] | None = None
    ) -> list[dict[str, Any]]:
        """Return all progress events of a start, until it ends; also append the messages to ``into``."""
        path = f"/hub/api/users/{user}/servers/{name}/progress" if name else f"/hub/api/users/{user}/server/progress"
        connection = http.client.HTTPConnection("127.0.0.1", self.demo.ports["public"], timeout=limit)
        connection.request("GET", path, headers={"Authorization": f"token {self.token}"})
        answer = connection.getresponse()
        events = []
        try:
            for line in answer:
                text = line.decode().strip()
                if text.startswith("data:"):
                    event = json.loads(text.removeprefix("data:"))
                    events.append(event)
                    if into is not None:
                        into.append(str(event.get("message", "")))
                    if event.get("ready") or event.get("failed"):
                        break
        finally:
            connection.close()
        return events

    # -- as a person --------------------------------------------------------------------------------------------------

    def login(self, user: str, password: str | None = None) -> Person:
        """Log in by the form; fail where the hub refuses the user."""
        person = Person(self, user)
        answer = person.login(self.cluster.passwords[user] if password is None else password)
        assert answer.status in (200, 302, 303), answer
        return person

    # -- kernels ------------------------------------------------------------------------------------------------------

    def new_kernel(self, user: str, name: str = "", kernel: str = "python3") -> str:
        """Start a kernel in a user's server and return its id."""
        answer = self.server_api("POST", user, name, "/api/kernels", {"name": kernel})
        assert answer.status == 201, answer
        return str(answer.body["id"])

    def server_api(self, method: str, user: str, name: str, path: str, body: Any = None) -> Answer:
        """Send a request to a user's server through the proxy."""
        prefix = f"/user/{user}/{name}".rstrip("/")
        headers = {"Authorization": f"token {self.token}"}
        return self.request(method, prefix + path, json.dumps(body) if body is not None else None, headers)

    def run_cell(self, user: str, kernel: str, code: str, name: str = "", limit: float = 40) -> str:
        """Run code in a kernel and return its output; fail after ``limit`` seconds, with what the server says of it."""
        try:
            return asyncio.run(asyncio.wait_for(self._run_cell(user, kernel, code, name, limit), limit))
        except TimeoutError:
            seen = self.server_api("GET", user, name, f"/api/kernels/{kernel}")
            logs = Path(f"~{user}").expanduser().glob(".carme/sessions/*/job.log")
            newest = max(logs, key=lambda log: log.stat().st_mtime, default=None)
            log = newest.read_text(errors="replace")[-3000:] if newest is not None else ""
            raise AssertionError(f"no end after {limit} s: {code!r}\n{seen}\n{hang_report(user)}\n{log}") from None

    async def _run_cell(self, user: str, kernel: str, code: str, name: str, limit: float) -> str:
        async with self.channel(user, kernel, name, limit) as socket:
            return await self.execute(socket, code)

    @asynccontextmanager
    async def channel(self, user: str, kernel: str, name: str = "", limit: float = READY) -> AsyncIterator[Any]:
        """Open a kernel's connection within ``limit`` seconds."""
        prefix = f"/user/{user}/{name}".rstrip("/")
        url = f"ws://127.0.0.1:{self.demo.ports['public']}{prefix}/api/kernels/{kernel}/channels"
        headers = {"Authorization": f"token {self.token}"}
        # Tornado's own limits are 20 s. They do not apply to an open connection.
        request = HTTPRequest(url, headers=headers, connect_timeout=limit, request_timeout=limit)
        socket = await websocket_connect(request)
        try:
            yield socket
        finally:
            socket.close()
            while await socket.read_message() is not None:  # until the other side has closed too
                pass

    async def execute(self, socket: Any, code: str) -> str:
        """Run code over an open connection and return its output."""
        id = uuid.uuid4().hex
        header = {"msg_id": id, "msg_type": "execute_request", "username": "test", "session": id, "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False, "stop_on_error": True}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        await socket.write_message(json.dumps(message))
        printed = ""
        while True:
            raw = await socket.read_message()
            assert raw is not None, "the kernel's connection closed"
            answer = json.loads(raw)
            if answer.get("parent_header", {}).get("msg_id") != id:
                continue
            kind = answer["msg_type"]
            if kind == "stream":
                printed += answer["content"]["text"]
            elif kind == "error":
                printed += "\n".join(answer["content"]["traceback"])
            elif kind == "status" and answer["content"]["execution_state"] == "idle":
                return printed

    # -- Slurm --------------------------------------------------------------------------------------------------------

    def jobs(self) -> list[dict[str, str]]:
        """Return our jobs that have not ended."""
        over = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL"}
        rows = self.cluster.squeue("--states=all")
        return [row for row in rows if row["name"].startswith("carme-") and row["state"] not in over]


class Person:
    """A user with a browser's cookies."""

    def __init__(self, hub: Hub, user: str) -> None:
        self.hub = hub
        self.user = user
        self.cookies: dict[str, str] = {}

    def get(self, path: str) -> Answer:
        """Open a page, following redirects inside the hub."""
        for _ in range(8):
            answer = self._send("GET", path)
            if answer.status not in (301, 302, 303) or not answer.headers.get("Location", "").startswith("/"):
                return answer
            path = answer.headers["Location"]
        return answer

    def post(self, path: str, fields: Mapping[str, str]) -> Answer:
        """Send a form with the XSRF token."""
        body = urllib.parse.urlencode({**fields, "_xsrf": self.cookies.get("_xsrf", "")})
        return self._send("POST", path, body, {"Content-Type": "application/x-www-form-urlencoded"})

    def request_api(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request to the hub's REST API with the browser's cookies, as our scripts do."""
        headers = {"X-XSRFToken": self.cookies.get("_xsrf", ""), "Content-Type": "application/json"}
        answer = self._send(method, path, json.dumps(body) if body is not None else None, headers)
        return Answer(answer.status, json.loads(str(answer.body) or "null"), answer.headers)

    def login(self, password: str) -> Answer:
        """Log in by the form."""
        self.get("/hub/login")
        return self.post("/hub/login", {"username": self.user, "password": password})

    def _send(
        self, method: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection = http.client.HTTPConnection("127.0.0.1", self.hub.demo.ports["public"], timeout=30)
        try:
            connection.request(method, path, body, {**(headers or {}), "Cookie": cookie})
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
            for line in answer.headers.get_all("Set-Cookie") or []:
                name, _, value = line.partition(";")[0].partition("=")
                self.cookies[name] = value
        finally:
            connection.close()
        return Answer(answer.status, text, {name.title(): value for name, value in answer.headers.items()})


def wait_for(condition: Any, limit: float, what: str) -> None:
    """Wait until a condition holds; fail with a description."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError(f"waited {limit} s for {what}")


def wait_saved(cluster: Cluster) -> None:
    """Wait until slurmctld has saved its current state: a crash loses the rest.

    It saves all jobs at once, so a file with the last job has everything before it. That job is held, so that no node
    runs it; ``quiet`` removes it.
    """
    mark = f"saved-{uuid.uuid4().hex}"
    cluster.sbatch("--hold", "--mem=10", "-p", "batch", "-J", mark, user="bob", script="#!/bin/sh\ntrue\n")
    file = cluster.state / "state/job_state"

    def is_saved() -> bool:
        with contextlib.suppress(FileNotFoundError):  # it is just being replaced
            return mark.encode() in file.read_bytes()
        return False

    wait_for(is_saved, 30, "slurmctld to save its state")
