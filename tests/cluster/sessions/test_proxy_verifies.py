"""The real proxy forwards to the server that a route names, and to no other process, however it got the port."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from certipy import Certipy

from carme_hub.spawners.hub.proxy import CERTIFICATE, proxy_environment
from carme_hub.spawners.hub.tls import AUTHORITY, certificate_of, issue

BIN = Path(sys.prefix) / "bin"
TOKEN = "of-the-proxy"
COOKIE = "jupyterhub-user-alice=secret-of-a-visitor"
ATTACKS = 20


class TlsServer:
    """Answers every request with its own name, with one certificate, and records the requests."""

    def __init__(self, folder: Path, name: str, texts: dict[str, str], port: int = 0, *, old: bool = False) -> None:
        self.name, self.received = name, b""
        for part in ("keyfile", "certfile"):
            (folder / part).write_text(texts[part])
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "certfile", folder / "keyfile")
        if old:
            self._context.maximum_version = ssl.TLSVersion.TLSv1_2
        self._listening = socket.create_server(("127.0.0.1", port), reuse_port=False)
        self.port = self._listening.getsockname()[1]
        self.lines: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with contextlib.suppress(OSError), self._context.wrap_socket(line, server_side=True) as secured:
            self.lines.append(secured)
            while data := secured.recv(65536):
                self.received += data
                if b"upgrade: websocket" in data.lower():
                    secured.sendall(b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
                elif data.startswith((b"GET", b"POST")):
                    body = self.name.encode() if data.startswith(b"GET") else self._body(secured, data)
                    secured.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                else:
                    secured.sendall(data)

    def _body(self, line: ssl.SSLSocket, data: bytes) -> bytes:
        head, _, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        while length and len(body) < int(length[1]):
            more = line.recv(65536)
            self.received += more
            body += more
        return body

    def die(self) -> None:
        """End as a killed process does: nobody listens, and its connections are closed."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)
        for line in self.lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()


class Proxy:
    """configurable-http-proxy, started as the hub's own."""

    def __init__(self, folder: Path, client: dict[str, str], authority: Path, *, verifies: bool = True) -> None:
        for part in ("keyfile", "certfile"):
            (folder / part).write_text(client[part])
        self.port, self.api_port = free_port(), free_port()
        argv = [f"{BIN}/node", f"{BIN}/configurable-http-proxy", "--ip", "127.0.0.1", "--port", str(self.port)]
        argv += ["--api-ip", "127.0.0.1", "--api-port", str(self.api_port), "--log-level", "error"]
        argv += ["--client-ssl-key", str(folder / "keyfile"), "--client-ssl-cert", str(folder / "certfile")]
        argv += ["--client-ssl-ca", str(authority), "--client-ssl-request-cert", "--client-ssl-reject-unauthorized"]
        environ = {**os.environ, "CONFIGPROXY_AUTH_TOKEN": TOKEN}
        self.process = subprocess.Popen(argv, env=proxy_environment(environ) if verifies else environ)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self.routes()
                return
            time.sleep(0.05)
        raise AssertionError("the proxy does not answer")

    def lead(self, path: str, target: str) -> None:
        status, _ = self._api("POST", path, {"target": target, "jupyterhub": True})
        assert status == 201

    def remove(self, path: str) -> None:
        assert self._api("DELETE", path)[0] == 204

    def routes(self) -> dict[str, Any]:
        return dict(json.loads(self._api("GET", "")[1]))

    def visit(self, path: str, host: str = "hub.example.org") -> tuple[int, bytes]:
        return self._ask(self.port, "GET", path, None, {"Host": host, "Cookie": COOKIE})

    def post(self, path: str, body: str) -> tuple[int, bytes]:
        return self._ask(self.port, "POST", path, body, {"Host": "hub.example.org", "Cookie": COOKIE})

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(10)

    def upgrade(self, path: str) -> socket.socket | None:
        """Open a websocket with the visitor's cookie; None where that is refused."""
        line = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        line.sendall(
            f"GET {path} HTTP/1.1\r\nHost: hub.example.org\r\nCookie: {COOKIE}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n".encode()
        )
        if b" 101 " in line.recv(4096).partition(b"\r\n")[0]:
            return line
        line.close()
        return None

    def _api(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        text = json.dumps(body) if body is not None else None
        return self._ask(self.api_port, method, f"/api/routes{path}", text, {"Authorization": f"token {TOKEN}"})

    def _ask(self, port: int, method: str, path: str, body: str | None, headers: dict[str, str]) -> tuple[int, bytes]:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            line.request(method, path, body, headers)
            answer = line.getresponse()
            return answer.status, answer.read()
        finally:
            line.close()


class Site:
    """An authority, and certificates of sessions that it has signed: all of them name the same node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        Certipy(store_dir=str(folder / "ssl")).create_ca(AUTHORITY)
        self.bundle = folder / "ssl" / AUTHORITY / f"{AUTHORITY}.crt"

    def certificate(self, name: str) -> dict[str, str]:
        names = ["IP:127.0.0.1", "DNS:localhost"]
        return issue(str(self.folder / "ssl"), str(self.bundle), name, names, timedelta(hours=1))

    def server(self, name: str, texts: dict[str, str], port: int = 0, *, old: bool = False) -> TlsServer:
        own = self.folder / name
        own.mkdir(exist_ok=True)
        return TlsServer(own, name, texts, port, old=old)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def proxy(site: Site) -> Iterator[Proxy]:
    running = Proxy(site.folder, site.certificate("proxy"), site.bundle)
    yield running
    running.process.terminate()
    running.process.wait(10)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def target(port: int, texts: dict[str, str]) -> str:
    return f"https://127.0.0.1:{port}{CERTIFICATE}{certificate_of(texts)}"


def test_another_sessions_server_on_the_port_of_one_that_died_gets_no_byte_and_no_cookie(
    site: Site, proxy: Proxy
) -> None:
    bobs = site.certificate("bob")
    for number in range(ATTACKS):
        hers = site.certificate("alice")
        server = site.server("alice", hers)
        proxy.lead("/user/alice", target(server.port, hers))
        assert proxy.visit("/user/alice/lab") == (200, b"alice")
        server.die()
        taken = site.server("bob", bobs, server.port, old=number % 2 == 1)  # its handshake ends at another moment
        try:
            answers = [proxy.visit("/user/alice/lab")[0] for _ in range(3)]
            assert answers == [503, 503, 503]
            assert proxy.upgrade("/user/alice/api/kernels/1/channels") is None
            assert taken.received == b""
        finally:
            taken.die()


def test_a_websocket_reaches_the_session_and_no_server_with_another_certificate(site: Site, proxy: Proxy) -> None:
    hers = site.certificate("alice")
    server = site.server("alice", hers)
    proxy.lead("/user/alice", target(server.port, hers))
    line = proxy.upgrade("/user/alice/api/kernels/1/channels")
    assert line is not None
    line.sendall(b"a message")
    assert line.recv(100) == b"a message"
    line.close()
    server.die()


def test_a_connection_that_was_opened_for_one_session_never_serves_another(site: Site, proxy: Proxy) -> None:
    """A program that inherits the open connections of an ended session's server does not serve the next session."""
    hers, bobs = site.certificate("alice"), site.certificate("bob")
    server = site.server("bob", bobs)
    proxy.lead("/user/bob", target(server.port, bobs))
    assert proxy.visit("/user/bob/") == (200, b"bob")
    proxy.lead("/user/alice", target(server.port, hers))  # the same node and port, and bob's connection is still open
    before = server.received
    assert proxy.visit("/user/alice/")[0] == 503
    assert server.received == before
    server.die()


def test_the_host_header_of_a_visitor_does_not_matter(site: Site, proxy: Proxy) -> None:
    """The proxy compares the certificate with the target's host; the visitor chooses the Host header."""
    hers = site.certificate("hub")
    server = site.server("hub", hers)
    proxy.lead("/", f"https://127.0.0.1:{server.port}")
    for host in ("hub.example.org", "127.0.0.1", "localhost", "192.0.2.7"):
        assert proxy.visit("/hub/", host) == (200, b"hub")
    proxy.lead("/", f"https://localhost:{server.port}")
    assert proxy.visit("/hub/", "hub.example.org") == (200, b"hub")
    server.die()


@pytest.mark.parametrize("words", ["certificate=", "certificate=12", "certificate=" + "g" * 64, "CERTIFICATE=x", ""])
def test_a_target_with_an_unknown_fragment_reaches_nobody(site: Site, proxy: Proxy, words: str) -> None:
    hers = site.certificate("alice")
    server = site.server("alice", hers)
    proxy.lead("/user/alice", f"https://127.0.0.1:{server.port}/#{words}")
    assert proxy.visit("/user/alice/")[0] == 503
    assert server.received == b""
    server.die()


def test_a_route_says_that_its_server_is_verified_and_a_plain_proxy_does_not(site: Site, proxy: Proxy) -> None:
    hers = site.certificate("alice")
    proxy.lead("/user/alice", target(4711, hers))
    proxy.lead("/other", "https://127.0.0.1:4711")
    routes = proxy.routes()
    assert routes["/user/alice"]["verified"] == "certificate"
    assert "verified" not in routes["/other"]
    proxy.remove("/other")
    plain = Proxy(site.folder, site.certificate("proxy"), site.bundle, verifies=False)
    try:
        plain.lead("/user/alice", target(4711, hers))
        assert "verified" not in plain.routes()["/user/alice"]
    finally:
        plain.process.terminate()
        plain.process.wait(10)


def test_who_clicks_while_the_hub_is_away_waits_and_is_served_once(site: Site, proxy: Proxy) -> None:
    """The hub restarts, is upgraded, or another host takes over."""
    own, port = site.certificate("hub"), free_port()
    proxy.lead("/", target(port, own))
    with ThreadPoolExecutor(2) as pool:
        page = pool.submit(proxy.visit, "/hub/home")
        start = pool.submit(proxy.post, "/hub/spawn/alice", "profile=a100&gpus=2")
        time.sleep(2)
        assert not page.done()
        assert not start.done()
        server = site.server("hub", own, port)
        assert page.result(10) == (200, b"hub")
        assert start.result(10) == (200, b"profile=a100&gpus=2")
    assert server.received.count(b"POST /hub/spawn/alice") == 1
    server.die()


def test_who_clicks_while_the_hubs_host_is_frozen_is_served_by_the_other_one(site: Site, proxy: Proxy) -> None:
    """A frozen host takes connections, and nobody ends a handshake; then its address leads to another one."""
    own = site.certificate("hub")
    frozen = socket.create_server(("127.0.0.1", 0))
    port = int(frozen.getsockname()[1])
    proxy.lead("/", target(port, own))
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(proxy.post, "/hub/spawn/alice", "profile=a100")
        time.sleep(1)
        frozen.close()
        server = site.server("hub", own, port)
        assert start.result(10) == (200, b"profile=a100")
    server.die()


def test_who_clicks_waits_behind_a_load_balancer_that_has_no_hub_at_the_moment(site: Site, proxy: Proxy) -> None:
    """It takes each connection, and closes it at once."""
    own = site.certificate("hub")
    balancer = socket.create_server(("127.0.0.1", 0))
    port, seen = int(balancer.getsockname()[1]), []

    def close_each() -> None:
        with contextlib.suppress(OSError):
            while True:
                balancer.accept()[0].close()
                seen.append(1)

    closing = threading.Thread(target=close_each)
    closing.start()
    proxy.lead("/", target(port, own))
    with ThreadPoolExecutor(8) as pool:
        starts = [pool.submit(proxy.post, "/hub/spawn/alice", f"number={number}") for number in range(8)]
        time.sleep(5)
        assert not any(each.done() for each in starts)
        balancer.shutdown(socket.SHUT_RDWR)
        balancer.close()
        closing.join()
        server = site.server("hub", own, port)
        assert [each.result(10)[0] for each in starts] == [200] * 8
    assert len(seen) > 8
    server.die()


def test_of_who_leaves_while_it_waits_nothing_is_sent(site: Site, proxy: Proxy) -> None:
    own, port = site.certificate("hub"), free_port()
    proxy.lead("/", target(port, own))
    line = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    line.request("POST", "/hub/spawn/gone", "profile=a100", {"Host": "hub.example.org"})
    time.sleep(1)
    line.close()
    time.sleep(0.5)
    server = site.server("hub", own, port)
    assert proxy.visit("/hub/home") == (200, b"hub")
    time.sleep(1.5)
    assert b"/hub/spawn/gone" not in server.received
    server.die()


def test_no_other_program_on_the_hubs_port_gets_what_waits(site: Site, proxy: Proxy) -> None:
    own, other, port = site.certificate("hub"), site.certificate("alice"), free_port()
    proxy.lead("/", target(port, own))
    with ThreadPoolExecutor(1) as pool:
        page = pool.submit(proxy.visit, "/hub/home")
        time.sleep(1)
        taken = site.server("alice", other, port)
        assert page.result(10)[0] == 503
    assert taken.received == b""
    taken.die()


def test_checks_of_load_balancers_and_visitors_of_sessions_do_not_wait(site: Site, proxy: Proxy) -> None:
    own = site.certificate("hub")
    proxy.lead("/", target(free_port(), own))
    proxy.lead("/user/alice", target(free_port(), site.certificate("alice")))
    began = time.monotonic()
    for path in ("/hub/health", "/hub/ready?verbose=1", "/user/alice/lab"):
        assert proxy.visit(path)[0] == 503, path
    assert time.monotonic() - began < 2


def test_a_hub_that_stays_away_is_said_to_be_away_after_the_time_that_is_set(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARME_PROXY_WAIT", "2")
    short = Proxy(site.folder, site.certificate("proxy"), site.bundle)
    try:
        short.lead("/", target(free_port(), site.certificate("hub")))
        began = time.monotonic()
        assert short.visit("/hub/home")[0] == 503
        assert 1 < time.monotonic() - began < 4
    finally:
        short.end()


@pytest.mark.parametrize("words", ["soon", "-1"])
def test_a_time_that_is_none_is_refused_at_the_start(words: str) -> None:
    environ = {**proxy_environment(os.environ), "CARME_PROXY_WAIT": words}
    argv = [f"{BIN}/node", f"{BIN}/configurable-http-proxy", "--version"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert f"CARME_PROXY_WAIT is {words}; set seconds" in done.stderr
    assert done.returncode == 1
