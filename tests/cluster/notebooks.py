"""A real single-user server, started by the real batch script in a real Slurm job, with a forged hub."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import pwd
import secrets
import threading
import time
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from carme_hub.containers.runtime import Bind, ContainerRequest, Image, Runtime
from carme_hub.sandbox import Cluster
from carme_hub.spawners.job_script import LAUNCH, SINGLEUSER, SUPERVISE

TOKEN = "token-" + secrets.token_hex(8)
USER = "alice"


class HubThatOnlyListens(ThreadingHTTPServer):
    """The parts of a hub that a single-user server uses: its version, the user of a token, and the callback."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.ports: dict[str, int] = {}
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def end(self) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()


class _Answers(BaseHTTPRequestHandler):
    server: HubThatOnlyListens

    def _answer(self, data: Any) -> None:
        body = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        scopes = [f"access:servers!server={USER}/"]
        user = {"kind": "user", "name": USER, "admin": False, "groups": [], "scopes": scopes, "session_id": None}
        self._answer(user if self.path.startswith("/hub/api/user") else {"version": "6.1.1"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.startswith("/port/") and "port" in body:  # the end comes by the same way
            self.server.ports[self.headers["Authorization"].removeprefix("carme-nonce ")] = body["port"]
        self._answer({})

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Session:
    """One session on the cluster: the job, its folder, its server."""

    def __init__(self, cluster: Cluster, hub: HubThatOnlyListens, runtime: Runtime, image: Image) -> None:
        self.cluster, self.hub, self.runtime, self.image = cluster, hub, runtime, image
        self.id = str(uuid.uuid4())
        self.user = pwd.getpwnam(USER)
        self.folder = Path(self.user.pw_dir) / ".carme/sessions" / self.id
        self.job = 0
        self.kernel = ""

    def submit(self, argv: tuple[str, ...] = (), *, binds: tuple[Bind, ...] = (), grace: int = 5) -> None:
        """Submit as the user; ``argv`` replaces the single-user server."""
        folder = str(self.folder)
        request = ContainerRequest(
            image=self.image,
            argv=argv or (f"{folder}/carme-singleuser", folder),
            home=self.user.pw_dir,
            session_folder=folder,
            user=USER,
            uid=self.user.pw_uid,
            gid=self.user.pw_gid,
            binds=binds,
            environ={"CARME_SESSION": self.id, "CARME_SESSION_FOLDER": folder},
            pass_env=("SLURM_JOB_ID",),
            gpus=True,
        )
        self.plan = self.runtime.render(request)
        document: dict[str, Any] = {
            "version": 1,
            "session": self.id,
            "session_folder": folder,
            "plan": {**dataclasses.asdict(self.plan), "grace": grace},
            "files": {
                "carme-singleuser": {"mode": 0o700, "text": SINGLEUSER},
                "carme-supervise": {"mode": 0o600, "text": SUPERVISE},
            },
            "binds": [[bind.source, bind.destination, bind.mode] for bind in binds],
            "bind_roots": [bind.source for bind in binds],
        }
        if not argv:
            document["singleuser"] = self._server()
        self._write(document)
        own = f"CARME_SESSION={self.id},CARME_SESSION_FOLDER={folder},HUB_SECRET=x"
        options = (f"--export={own}", "--gres=gpu:a100:2", "--mem=2000", "--cpus-per-task=2", "--no-requeue")
        self.job = self.cluster.sbatch(*options, f"--job-name=carme-{self.id}", user=USER, script=LAUNCH)

    def _server(self) -> dict[str, Any]:
        api = f"http://127.0.0.1:{self.hub.server_port}/hub/api"
        environ = {
            "JUPYTERHUB_API_TOKEN": TOKEN,
            "JUPYTERHUB_API_URL": api,
            "JUPYTERHUB_ACTIVITY_URL": f"{api}/users/{USER}/activity",
            "JUPYTERHUB_BASE_URL": "/",
            "JUPYTERHUB_SERVICE_PREFIX": f"/user/{USER}/",
            "JUPYTERHUB_USER": USER,
            "JUPYTERHUB_SERVER_NAME": "",
            "JUPYTERHUB_CLIENT_ID": f"jupyterhub-user-{USER}",
            "JUPYTERHUB_OAUTH_CALLBACK_URL": f"/user/{USER}/oauth_callback",
            "JUPYTERHUB_OAUTH_SCOPES": json.dumps([f"access:servers!server={USER}/"]),
        }
        return {
            "callback": f"http://127.0.0.1:{self.hub.server_port}/port/{self.id}",
            "nonce": self.id,
            "ports": [32768, 60999],
            "bind": "127.0.0.1",
            "argv": ["jupyterhub-singleuser"],
            "environ": environ,
        }

    def _write(self, document: dict[str, Any]) -> None:
        if "singleuser" in document:
            text = json.dumps(document["singleuser"])
            document["files"]["singleuser.json"] = {"mode": 0o600, "text": text}
        for part in (self.folder.parents[1], self.folder.parents[0], self.folder):
            part.mkdir(mode=0o700, exist_ok=True)
            os.chown(part, self.user.pw_uid, self.user.pw_gid)
        data = self.folder / "data.json"
        data.write_text(json.dumps(document))
        data.chmod(0o600)
        os.chown(data, self.user.pw_uid, self.user.pw_gid)

    @property
    def log(self) -> str:
        path = self.folder / "job.log"
        return path.read_text() if path.exists() else ""

    def wait_for_words(self, words: str, within: float = 30) -> None:
        self._wait(lambda: words in self.log, within)

    def _wait(self, what: Any, within: float) -> None:
        end = time.monotonic() + within
        while not what():
            ended = (self.folder / "end.json").exists()
            if ended or time.monotonic() > end:
                mark = (self.folder / "end.json").read_text() if ended else "no end mark"
                raise AssertionError(f"{self.cluster.job_state(self.job)}; {mark}; job.log:\n{self.log}")
            time.sleep(0.1)

    def wait_for_server(self) -> None:
        """Wait until the server answers."""
        self._wait(lambda: self.id in self.hub.ports, 60)
        self._wait(self._answers, 60)

    def _answers(self) -> bool:
        try:
            return bool(self._request("GET", "api/status"))
        except OSError:
            return False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.hub.ports[self.id]}/user/{USER}/"

    def _request(self, method: str, path: str) -> Any:
        headers = {"Authorization": f"token {TOKEN}", "Content-Type": "application/json"}
        data = b"{}" if method == "POST" else None
        asked = urllib.request.Request(f"http://{self.address}{path}", data, headers, method=method)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return json.load(answer)

    async def cell(self, code: str) -> str:
        """Run code in a notebook's kernel and return its output."""
        if not self.kernel:
            self.kernel = (await asyncio.to_thread(self._request, "POST", "api/kernels"))["id"]
        url = f"ws://{self.address}api/kernels/{self.kernel}/channels"
        socket = await websocket_connect(HTTPRequest(url, headers={"Authorization": f"token {TOKEN}"}))
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": "execute_request",
            "username": "",
            "session": "s",
            "version": "5.3",
        }
        content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        await socket.write_message(json.dumps(message))
        printed = ""
        while True:
            text = await asyncio.wait_for(socket.read_message(), 60)
            assert text is not None, f"the kernel's connection was closed; it printed {printed!r}"
            got = json.loads(text)
            if got["parent_header"].get("msg_id") != header["msg_id"]:
                continue
            if got["msg_type"] == "stream":
                printed += got["content"]["text"]
            elif got["msg_type"] == "error":
                printed += "\n".join(got["content"]["traceback"])
            elif got["msg_type"] == "status" and got["content"]["execution_state"] == "idle":
                socket.close()
                return printed

    def processes(self) -> list[str]:
        """Return the command lines of all processes of the session on this machine."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self.id.encode() in (path / "environ").read_bytes():
                    found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
            except OSError:
                continue
        return found

    def scancel(self) -> float:
        """End the job as a user does, and return the time until nothing was left."""
        began = time.monotonic()
        self.cluster.run("scancel", str(self.job), user=USER)
        while self.processes() and time.monotonic() < began + 30:
            time.sleep(0.1)
        return time.monotonic() - began
