"""A real Jupyter server with a session's configuration: its apps, and no port, whatever the user's own files say."""

from __future__ import annotations

import getpass
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread, Timer

import pytest
from rig.extension import extension, installed_extension
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect
from traitlets.config import Config

from carme_hub.spawners.apps.settings import BASHRC, BUILT_IN, CONFIG, CarmeApps

__all__ = ["extension", "installed_extension"]
TELLS = """
import http.server, os, socketserver, sys
class Tells(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(repr((self.path, dict(self.headers), dict(os.environ), sys.argv[1:])).encode())
    def address_string(self): return ""
class Serving(socketserver.ThreadingMixIn, socketserver.UnixStreamServer): daemon_threads = True
place = sys.argv.index("--socket") + 1 if "--socket" in sys.argv else 1
Serving(sys.argv[place], Tells).serve_forever()
"""
# Takes as long as nobody says that it may begin.
WAITS = """
import os, time
while not os.path.exists(os.environ["HOME"] + "/begin"): time.sleep(0.02)
"""
TALKS = """
import asyncio, sys
from tornado import httpserver, netutil, web, websocket
class Talks(websocket.WebSocketHandler):
    def check_origin(self, origin): return True
    def on_message(self, said): self.write_message(repr((said, self.request.uri, dict(self.request.headers))))
async def main():
    httpserver.HTTPServer(web.Application([("/.*", Talks)])).add_socket(netutil.bind_unix_socket(sys.argv[1]))
    await asyncio.Event().wait()
asyncio.run(main())
"""
APPS = {
    "talks": {"title": "Talks", "command": ["{python}", "-c", TALKS, "{unix_socket}"], "closed": ["/proxy/"]},
    "tells": {"title": "Tells", "command": ["{python}", "-c", TELLS, "{unix_socket}"], "closed": ["/proxy/"]},
    "workplace": {"title": "Workplace", "command": ["{python}", "-c", TELLS, "{unix_socket}"], "hub": True},
    "fails": {"title": "Fails", "command": ["{python}", "-c", "raise SystemExit(3)", "{unix_socket}"]},
    "slow": {"title": "Slow", "command": ["{python}", "-c", f"{WAITS}{TELLS}", "{unix_socket}"]},
    "absent": {"title": "Absent", "command": ["nowhere-at-all", "{unix_socket}"], "needs": "program:nowhere-at-all"},
}


@dataclass
class JupyterServer:
    """A server that runs; its base path is alice's."""

    port: int
    process: subprocess.Popen[bytes]
    home: Path
    near: Path

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as line:
            line.request("GET", f"/user/alice/{path}", headers={"Authorization": "token tok", **headers})
            answer = line.getresponse()
            return answer.status, answer.read().decode()


@contextmanager
def serving(
    folder: Path,
    *argv: str,
    user_config: str = "",
    environ: Mapping[str, str] | None = None,
    offered: Sequence[str] = tuple(BUILT_IN),
) -> Iterator[JupyterServer]:
    """Start a Jupyter server as a session does, and end it."""
    session, home, near, bin = (folder / name for name in ("home/session", "home", "near", "bin"))
    for each in (home, session, near, bin):
        each.mkdir(mode=0o700)
    (bin / "code-server").write_text(f"#!{sys.executable}\n{TELLS}")  # forged: it only tells how it was started
    (bin / "code-server").chmod(0o700)
    (home / ".jupyter").mkdir()
    (home / ".jupyter" / "jupyter_server_config.py").write_text(user_config)
    for name, text in CarmeApps(config=Config(CarmeApps={"apps": APPS, "offered": list(offered)})).files().items():
        (session / name).write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [word.replace("{session}", str(session)) for word in argv]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "jupyter_server", "--allow-root", "--no-browser", "--ip=127.0.0.1"),
            *(f"--port={port}", "--IdentityProvider.token=tok", "--ServerApp.base_url=/user/alice/", *words),
        ],
        env={
            "PATH": f"{bin}:{os.environ['PATH']}",
            "HOME": str(home),
            "TMPDIR": str(near) if len(str(near)) < 48 else "/tmp",
            "JUPYTER_CONFIG_PATH": str(session),
            "JUPYTERHUB_API_TOKEN": "the-hub's-token",
            **(environ or {}),
        },
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    server = JupyterServer(port, process, home, near)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                assert server.get("api")[0] == 200
                break
            except OSError:
                assert process.poll() is None, process.stdout and process.stdout.read().decode()
                assert time.monotonic() < end
                time.sleep(0.1)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=30)
        print(said.decode())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    # A user's own file would switch the package's pages on again.
    theirs = "c.ServerApp.jpserver_extensions = {'jupyter_server_proxy': True}\nc.ServerApp.allow_origin = ''\n"
    with serving(tmp_path_factory.mktemp("s"), user_config=theirs) as found:
        yield found


@pytest.fixture
def neighbour() -> Iterator[int]:
    """The port of a server beside ours on the node."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as held:
        thread = Thread(target=held.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield held.server_port
        held.shutdown()
        thread.join()


def no_port(server: JupyterServer, port: int) -> None:
    for path in (f"proxy/{port}", f"proxy/absolute/{port}", f"proxy/127.0.0.1:{port}", f"proxy/localhost:{port}/x"):
        assert server.get(path)[0] == 404, path
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": "x" * 22 + "=="}
        assert server.get(path, **upgrade, **{"Sec-WebSocket-Version": "13"})[0] == 404, path


def test_no_port_is_served_whatever_the_user_says(server: JupyterServer, neighbour: int) -> None:
    no_port(server, neighbour)


def test_only_what_is_there_is_listed(server: JupyterServer) -> None:
    said = json.loads(server.get("server-proxy/servers-info")[1])["server_processes"]
    assert [app["name"] for app in said if app["name"] in APPS] == ["talks", "tells", "workplace", "fails", "slow"]
    assert said[0]["launcher_entry"]["path_info"].endswith("/")


def test_an_app_has_no_token_by_header_argument_or_environment(server: JupyterServer) -> None:
    told = server.get("tells/a?token=tok&x=1", Cookie="a=b", Referer="http://x/?token=tok")[1]
    assert "'/a?x=1'" in told
    for secret in ("token tok", "token=tok", "a=b", "the-hub's-token"):
        assert secret not in told
    assert "the-hub's-token" in server.get("workplace/")[1]  # a shell of the user's own asks the hub


def test_vs_code_is_started_without_its_own_login_and_its_ports_stay_closed(server: JupyterServer) -> None:
    said = json.loads(server.get("server-proxy/servers-info")[1])["server_processes"]
    assert "vscode" in [app["name"] for app in said]  # the image of this test has a code-server
    status, told = server.get("vscode/", Cookie="a=b")
    assert status == 200
    assert "'--auth', 'none'" in told
    assert "/vscode.sock'" in told
    assert "'CS_DISABLE_PROXY': '1'" in told
    assert "a=b" not in told
    for path in ("proxy/8080/", "absproxy/8080", "Proxy/8080"):
        assert server.get(f"vscode/{path}")[0] == 404, path


def test_an_app_has_pages_that_nobody_may_ask_for(server: JupyterServer) -> None:
    for path in (
        "proxy",
        "proxy/80",
        "PROXY/80",
        "x/../proxy/80",
        "/proxy/80",
        "./proxy/80",
        "%70roxy/80",
        "%2fproxy/",
    ):
        assert server.get(f"tells/{path}")[0] == 404, path
    for path in ("", "proxyless", "x/proxy/80"):
        assert server.get(f"tells/{path}")[0] == 200, path


async def talk(server: JupyterServer, path: str, **headers: str) -> str:
    """Say hello over a websocket and return what the app says."""
    address = f"ws://127.0.0.1:{server.port}/user/alice/{path}"
    line = await websocket_connect(HTTPRequest(address, headers=headers))
    try:
        await line.write_message("hello")
        return str(await line.read_message())
    finally:
        line.close()


async def test_a_websocket_is_taken_through_without_cookies_and_not_from_elsewhere(server: JupyterServer) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as line:
        line.request("GET", "/user/alice/tells/?token=tok")  # a browser that opens the server's link is given a cookie
        cookies = line.getresponse().headers.get_all("Set-Cookie") or []
    own = {"Cookie": "; ".join(cookie.partition(";")[0] for cookie in cookies)}
    assert "username-" in own["Cookie"]
    told = await talk(server, "talks/a?x=1", Origin=f"http://127.0.0.1:{server.port}", **own)
    assert told.startswith("('hello', '/a?x=1'")
    assert "username-" not in told
    assert "token tok" not in await talk(server, "talks/", Authorization="token tok")
    for path, headers in (
        ("talks/", {**own, "Origin": "http://evil.example"}),
        ("talks/", {"Origin": f"http://127.0.0.1:{server.port}"}),
        ("talks/proxy/80", {"Authorization": "token tok"}),
    ):
        with pytest.raises(HTTPClientError):
            await talk(server, path, **headers)


def opened(server: JupyterServer, path: str) -> tuple[int, str]:
    """Open a page as a person does, and again as long as it says that it is starting: it refreshes itself."""
    end = time.monotonic() + 60
    while (answer := server.get(path, **{"Sec-Fetch-Mode": "navigate"}))[0] == 202:
        assert time.monotonic() < end
        time.sleep(0.1)
    return answer


def test_an_app_that_cannot_begin_says_so(server: JupyterServer) -> None:
    status, page = server.get("fails/")
    assert status == 502
    assert '<p class="note" role="alert">Fails ended with 3 at its start. Its output is in job.log.</p>' in page
    for way in (
        'href="/user/alice/fails/">Try again',
        'href="/user/alice/lab">Back to JupyterLab',
        "width=device-width",
    ):
        assert way in page
    status, page = server.get("absent/")
    assert status == 502
    assert (
        "Absent needs nowhere-at-all, which the image of this session does not have. Start a server with another"
        in page
    )


def test_who_opens_an_app_that_takes_long_sees_that_it_starts(server: JupyterServer) -> None:
    status, page = server.get("slow/", **{"Sec-Fetch-Mode": "navigate"})
    assert status == 202  # it begins only below, so the answer did not wait for it
    assert "<h1>Slow is starting</h1>" in page
    assert '<meta http-equiv="refresh" content="1">' in page
    begins = Timer(2.5, (server.home / "begin").touch)
    begins.start()
    assert server.get("slow/x")[0] == 200  # a script waits for it
    begins.join()
    status, told = opened(server, "slow/")
    assert (status, "'/'" in told) == (200, True)
    status, page = opened(server, "fails/")
    assert (status, "Fails ended with 3" in page) == (502, True)


def test_nobody_gets_in_without_a_login(server: JupyterServer) -> None:
    for path in ("tells/", "server-proxy/icon/tensorboard", "server-proxy/servers-info"):
        assert server.get(path, Authorization="token wrong")[0] in (302, 403), path


def test_nothing_is_left_on_the_node(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert server.get("tells/")[0] == 200
        near = server.near if len(str(server.near)) < 48 else Path("/tmp")
        [pid] = [int(p.name) for p in Path("/proc").glob("[0-9]*") if _parent(p) == server.process.pid]
        folders = [found for found in near.glob("carme-apps-*") if (found / "tells.sock").exists()]
        [folder] = [found for found in folders if str(found) in Path(f"/proc/{pid}/cmdline").read_text()]
        assert folder.stat().st_mode & 0o777 == 0o700
        assert sorted(path.name for path in (tmp_path / "home/session").iterdir()) == ["carme-apps", CONFIG, BASHRC]
    assert not folder.exists()
    for _ in range(50):
        if not Path(f"/proc/{pid}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()


def test_kernels_are_reached_by_sockets_in_a_folder_of_this_user_that_goes_with_the_server(tmp_path: Path) -> None:
    write = "import shutil, sys, time; shutil.copy(sys.argv[1], 'seen.json'); time.sleep(60)"
    spec = {"argv": [sys.executable, "-c", write, "{connection_file}"], "display_name": "x", "language": "x"}
    with serving(tmp_path) as server:
        place = server.home / ".local/share/jupyter/kernels/forged"  # forged: it only keeps how it is to be reached
        place.mkdir(parents=True)
        (place / "kernel.json").write_text(json.dumps(spec))
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as line:
            headers = {"Authorization": "token tok"}
            line.request("POST", "/user/alice/api/kernels", '{"name": "forged"}', headers)
            assert line.getresponse().status == 201
        end = time.monotonic() + 30
        while not (seen := server.home / "seen.json").exists() or not seen.read_text().endswith("}"):
            assert time.monotonic() < end
            time.sleep(0.05)
        said = json.loads(seen.read_text())
        folder = Path(said["ip"]).parent
        assert (said["transport"], folder.name[:14], folder.stat().st_mode & 0o777) == ("ipc", "carme-kernels-", 0o700)
        assert len(f"{said['ip']}-99") <= 107
        assert len(f"{'x' * 33}/carme-kernels-xxxxxxxx/kernel-{'x' * 36}-ipc-99") <= 107, "with the longest TMPDIR"
    assert not folder.exists()


def test_a_runtime_folder_that_somebody_has_named_stays(tmp_path: Path) -> None:
    with serving(tmp_path, environ={"JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}) as server:
        assert list((tmp_path / "runtime").glob("jpserver-*.json"))
        assert server.get("api")[0] == 200


def test_who_wants_ports_for_kernels_has_them(tmp_path: Path) -> None:
    with serving(tmp_path, user_config="c.KernelManager.transport = 'tcp'\n") as server:
        assert list((server.home / ".local/share/jupyter/runtime").glob("jpserver-*.json"))


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_without_user_files_the_image_s_own_still_count(tmp_path: Path, neighbour: int) -> None:
    image = tmp_path / "image"
    image.mkdir()
    text = "c.ServerApp.jpserver_extensions = {'jupyter_server_proxy': True}\nc.ServerApp.custom_display_url = 'http://image'\n"
    (image / "jupyter_server_config.py").write_text(text)
    environ = {"JUPYTERHUB_DISABLE_USER_CONFIG": "1", "JUPYTER_CONFIG_PATH": str(image)}
    with serving(tmp_path, f"--config={{session}}/{CONFIG}", environ=environ) as server:
        no_port(server, neighbour)
        assert server.get("tells/")[0] == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.stdout is not None
        assert "http://image" in server.process.stdout.read().decode()


def test_an_app_of_an_installed_package_is_listed_and_proxied_as_ours_are(extension: Path, tmp_path: Path) -> None:
    with serving(tmp_path, offered=["hello"]) as found:
        listed = json.loads(found.get("server-proxy/servers-info")[1])["server_processes"]
        assert {"hello", "tells"} <= {app["name"] for app in listed}
        assert "tensorboard" not in {app["name"] for app in listed}
        status, said = found.get("hello/")
        assert (status, said) == (200, f"Hello {getpass.getuser()}\n")
