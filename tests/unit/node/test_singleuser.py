"""carme-singleuser takes a port nobody else can take, proves itself once to the hub, and becomes the server."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from certipy import Certipy

from carme_hub.node import singleuser

PROGRAM = Path(__file__).parents[3] / "carme_hub/node/singleuser.py"
SERVER = "import os, sys; print('SERVER', os.environ['JUPYTERHUB_SERVICE_URL'], os.environ['TOKEN'], flush=True)"


class HubThatAnswers(HTTPServer):
    """The hub's callback: it gives the prepared answers one after the other, then 200, and keeps what it was sent."""

    def __init__(self, answers: list[tuple[int, str]], context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Callback)
        self.answers, self.got = answers, list[tuple[str, str, dict[str, Any]]]()
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that go away."""

    def end(self) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()


class Callback(BaseHTTPRequestHandler):
    server: HubThatAnswers

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.got.append((self.path, self.headers["Authorization"], body))
        status, words = self.server.answers.pop(0) if self.server.answers else (200, "{}")
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", str(len(words)))
        self.end_headers()
        self.wfile.write(words.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[Callable[..., HubThatAnswers]]:
    begun: list[HubThatAnswers] = []

    def begin(*answers: tuple[int, str], context: ssl.SSLContext | None = None) -> HubThatAnswers:
        begun.append(HubThatAnswers(list(answers), context))
        return begun[-1]

    yield begin
    for one in begun:
        one.end()


def write(folder: Path, callback: str, **changes: Any) -> None:
    part = {
        "callback": callback,
        "nonce": "NONCE",
        "ports": [20000, 40000],
        "bind": "127.0.0.1",
        "argv": [sys.executable, "-c", SERVER],
        "environ": {"TOKEN": "SECRET", "JUPYTERHUB_SERVICE_PREFIX": "/user/alice/"},
        **changes,
    }
    (folder / "singleuser.json").write_text(json.dumps(part))


def run(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "http_proxy": "http://127.0.0.1:1", **environ}
    argv = [sys.executable, str(PROGRAM), str(folder)]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120, check=False)


def test_port_is_reported_once_with_the_nonce_and_the_server_begins_there(tmp_path: Path, hub: Any) -> None:
    site = hub()
    write(tmp_path, f"http://127.0.0.1:{site.server_port}/hub/api/carme/sessions/u/port")
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout
    [(path, authorization, body)] = site.got
    assert path == "/hub/api/carme/sessions/u/port"
    assert authorization == "carme-nonce NONCE"
    assert list(body) == ["port"]
    assert 20000 <= body["port"] <= 40000
    assert f"SERVER http://127.0.0.1:{body['port']}/user/alice/ SECRET" in done.stdout
    assert not (tmp_path / "singleuser.json").exists()
    before_the_server = done.stdout.split("SERVER")[0] + done.stderr
    assert "NONCE" not in before_the_server
    assert "SECRET" not in before_the_server


def test_hub_that_is_away_or_in_trouble_is_asked_again(tmp_path: Path, hub: Any) -> None:
    site = hub((503, "busy"), (500, ""))
    write(tmp_path, f"http://127.0.0.1:{site.server_port}/x")
    assert run(tmp_path).returncode == 0
    assert len(site.got) == 3
    assert len({body["port"] for _, _, body in site.got}) == 1


def test_hub_that_comes_back_later_is_waited_for(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    write(tmp_path, f"http://127.0.0.1:{port}/x")
    process = subprocess.Popen([sys.executable, str(PROGRAM), str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "waiting for the hub" in process.stdout.readline()
    assert process.poll() is None
    HTTPServer.allow_reuse_address = True
    site = HubThatAnswers.__new__(HubThatAnswers)
    HTTPServer.__init__(site, ("127.0.0.1", port), Callback)
    site.answers, site.got = [], []
    site.thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.02})
    site.thread.start()
    try:
        process.communicate(timeout=120)
    finally:
        site.end()
    assert process.returncode == 0


def test_hub_that_never_answers_ends_with_74(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(singleuser, "HUB_TIMEOUT", 0.5)
    with pytest.raises(singleuser.Failed) as failed:
        singleuser.report({"callback": "http://127.0.0.1:1/x", "nonce": "n", "environ": {}}, 1234)
    assert failed.value.code == 74


@pytest.mark.parametrize("answer", [(403, '{"message": "this session has ended"}'), (404, "gone"), (302, "")])
def test_hub_that_says_no_is_believed(tmp_path: Path, hub: Any, answer: tuple[int, str]) -> None:
    site = hub(answer)
    write(tmp_path, f"http://127.0.0.1:{site.server_port}/x")
    done = run(tmp_path)
    assert done.returncode == 75
    assert len(site.got) == 1
    assert ("this session has ended" in done.stdout) == (answer[0] == 403)


def test_missing_or_odd_document_ends_with_70_and_is_not_quoted(tmp_path: Path) -> None:
    assert run(tmp_path).returncode == 70
    (tmp_path / "singleuser.json").write_text('{"nonce": "SECRET"')
    done = run(tmp_path)
    assert done.returncode == 70
    assert "SECRET" not in done.stdout + done.stderr
    write(tmp_path, "http://x/", ports=[1])
    assert run(tmp_path).returncode == 70


def test_no_free_port_ends_with_73(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        write(tmp_path, "http://127.0.0.1:1/x", ports=[port, port])
        assert run(tmp_path).returncode == 73


async def test_held_port_is_lost_to_nobody_and_the_server_can_still_listen_on_it() -> None:
    held = singleuser.reserve_port("127.0.0.1", 20000, 40000)
    port = held.getsockname()[1]
    with pytest.raises(singleuser.Failed) as no_port:
        singleuser.reserve_port("127.0.0.1", port, port)  # another session that tries the same port
    assert no_port.value.code == 73
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("127.0.0.1", port))
    from tornado.httpserver import HTTPServer as TornadoServer
    from tornado.web import Application

    server = TornadoServer(Application([]))
    server.listen(port, "127.0.0.1")
    with socket.create_connection(("127.0.0.1", port)):
        pass
    server.stop()
    await server.close_all_connections()
    held.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """Certificates as JupyterHub's internal_ssl makes them: by name, all of one authority, or of a "stranger"."""
    made: dict[str, dict[str, str]] = {}
    stores = {name: Certipy(store_dir=str(tmp_path_factory.mktemp(name))) for name in ("ours", "theirs")}
    for store in stores.values():
        store.create_ca("ca")

    def issue(name: str) -> dict[str, str]:
        if name not in made:
            store = stores["theirs" if name == "stranger" else "ours"]
            names = ["DNS:localhost", "IP:127.0.0.1"] if name != "misnamed" else ["DNS:elsewhere"]
            record = store.create_signed_pair(name, "ca", alt_names=names)
            files = record["files"]
            made[name] = {
                "key": files["key"],
                "cert": files["cert"],
                "ca": store.store.get_record("ca")["files"]["cert"],
            }
        return made[name]

    return issue


def hub_context(pair: dict[str, str], clients: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=clients)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(pair["cert"], pair["key"])
    return context


@pytest.mark.parametrize(
    ("hub_pair", "own_pair", "accepted"),
    [("hub", "alice", True), ("stranger", "alice", False), ("misnamed", "alice", False), ("hub", "stranger", False)],
)
def test_internal_tls_proves_both_sides(
    tmp_path: Path,
    hub: Any,
    authority: Any,
    monkeypatch: pytest.MonkeyPatch,
    hub_pair: str,
    own_pair: str,
    accepted: bool,
) -> None:
    own = authority(own_pair)
    ours = authority("alice")["ca"]
    site = hub(context=hub_context(authority(hub_pair), ours))
    environ = {
        "JUPYTERHUB_SSL_KEYFILE": own["key"],
        "JUPYTERHUB_SSL_CERTFILE": own["cert"],
        "JUPYTERHUB_SSL_CLIENT_CA": ours,
        "JUPYTERHUB_SERVICE_PREFIX": "/user/alice/",
        "TOKEN": "t",
    }
    write(tmp_path, f"https://127.0.0.1:{site.server_port}/x", environ=environ)
    if accepted:
        done = run(tmp_path)
        assert done.returncode == 0, done.stdout
        assert "SERVER https://127.0.0.1:" in done.stdout
    else:
        monkeypatch.setattr(singleuser, "HUB_TIMEOUT", 0.3)
        with pytest.raises(singleuser.Failed, match="did not answer"):
            singleuser.report(json.loads((tmp_path / "singleuser.json").read_text()), 1234)
    assert bool(site.got) == accepted


def test_signals_that_the_supervisor_ignores_work_again_in_the_server(tmp_path: Path, hub: Any) -> None:
    site = hub()
    write(tmp_path, f"http://127.0.0.1:{site.server_port}/x", argv=["/bin/sh", "-c", "kill -TERM $$; echo still here"])

    def ignore() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    argv = [sys.executable, str(PROGRAM), str(tmp_path)]
    done = subprocess.run(argv, preexec_fn=ignore, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGTERM
    assert "still here" not in done.stdout


def test_document_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("{}")
    (tmp_path / "singleuser.json").symlink_to(tmp_path / "elsewhere")
    assert run(tmp_path).returncode == 70
