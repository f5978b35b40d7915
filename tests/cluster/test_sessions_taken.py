"""Nobody is led to a server that another user put on the port of a session."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.faults import server_process
from rig.hub import Hub, Person, wait_for
from rig.truth import Row, Truth
from session_parts import Seen, environments

from carme_hub.sandbox import Cluster

#: Times that a server is killed with another user's program waiting for its port.
ATTACKS = 20 if os.environ.get("CARME_NIGHTLY") else 2
PAGE = b"HTTP/1.1 200 OK\r\nX-JupyterHub-Version: 6.1.1\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


class ServerOfAlice(threading.Thread):
    """Listens on the port of a user's session, as soon as that is known, and answers with alice's certificate."""

    def __init__(self, hub: Hub, user: str, port: int = 0) -> None:
        super().__init__(daemon=True)
        self.truth, self.user, self.wanted = Truth(hub), user, port
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        files = Seen.of(hub, "alice").document["files"]
        with tempfile.TemporaryDirectory() as folder:
            for name in ("tls.crt", "tls.key"):
                Path(folder, name).write_text(files[name]["text"])
            self.context.load_cert_chain(Path(folder, "tls.crt"), Path(folder, "tls.key"))
        self.over, self.port, self.asked, self.received = threading.Event(), 0, 0, b""

    def run(self) -> None:
        while not self.over.is_set() and not self._port():
            time.sleep(0.005)
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            while not self.over.is_set():
                with contextlib.suppress(OSError):  # who had it before is still letting go
                    listening.bind(("0.0.0.0", self._port()))
                    break
            listening.listen()
            listening.settimeout(0.2)
            self.port = self._port()
            while not self.over.is_set():
                with contextlib.suppress(OSError):
                    line, _ = listening.accept()
                    self.asked += 1
                    line.settimeout(5)
                    with self.context.wrap_socket(line, server_side=True) as secured:
                        self.received += secured.recv(4096)
                        secured.sendall(PAGE)

    def _port(self) -> int:
        if self.wanted:
            return self.wanted
        row = next((r for r in self.truth.rows() or [] if r.user == self.user and r.open), None)
        return row.port if row is not None else 0


@contextlib.contextmanager
def first_on_the_port(hub: Hub, user: str, port: int = 0) -> Iterator[ServerOfAlice]:
    server = ServerOfAlice(hub, user, port)
    server.start()
    try:
        yield server
    finally:
        server.over.set()
        server.join(10)


def test_a_session_whose_port_another_user_has_taken_is_ended_and_nobody_is_led_there(site: Hub) -> None:
    truth = Truth(site)
    for user in ("alice", "bob"):
        site.login(user)
    site.start_server("alice", profile="cpu")
    wait_for(lambda: not [r for r in truth.rows_now() if r.open and r.user == "bob"], 60, "bob to have no session")
    with first_on_the_port(site, "bob") as taken:
        site.begin("bob", profile="cpu")
        last = site.progress("bob")[-1]
        row = truth.row("bob")
        assert taken.port == row.port != 0
        assert taken.asked
    assert last.get("failed"), last
    assert "Something else answers on the session's port" in str(last["message"])
    wait_for(lambda: not truth.session(row.id).open, 30, "the session to be closed")
    assert truth.live_jobs(row.id) == []
    assert "Something else answers" in truth.session(row.id).end_reason
    assert ("bob", "") not in (truth.routes() or {})
    site.start_server("bob", profile="cpu")  # the next one is bob's own
    assert ("bob", "") in (truth.routes() or {})


def kill_all_of(row: Row) -> None:
    """Kill everything of a session on its node, its supervisor first, as a node that runs out of memory may."""

    def left() -> list[int]:
        return sorted(pid for pid, words in environments() if words.get("CARME_SESSION") == row.id)

    end = time.monotonic() + 10
    while (pids := left()) and time.monotonic() < end:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not left()


def start_anew(hub: Hub, user: str) -> None:
    """Start a user's server, whatever is left of another one."""
    if hub.server(user) is not None:
        hub.stop_server(user)
    hub.start_server(user, profile="cpu")


def visitor(hub: Hub, user: str) -> Person:
    """Return a user in whose browser the lab is open: its cookies hold a token for the server."""
    person = hub.login(user)
    assert person.get(f"/user/{user}/lab").status == 200
    assert any("user" in name for name in person.cookies)
    return person


@pytest.mark.parametrize("silent", [False, True], ids=["slurm answers", "slurm is silent"])
def test_a_program_that_takes_the_port_of_a_killed_server_gets_no_byte_of_its_visitors(
    site: Hub, cluster: Cluster, silent: bool
) -> None:
    truth = Truth(site)
    if not site.server("alice"):
        site.start_server("alice", profile="cpu")
    for _ in range(ATTACKS):
        start_anew(site, "bob")
        browser, row = visitor(site, "bob"), truth.row("bob")
        if silent:
            cluster.freeze("slurmctld")
        try:
            kill_all_of(row)
            with first_on_the_port(site, "bob", row.port) as taken:
                wait_for(lambda taken=taken: taken.port, 10, "the other program to listen")
                for _ in range(20):
                    answer = browser._send("GET", "/user/bob/lab")
                    assert answer.body != "{}"
                assert taken.received == b""
                if silent:  # nobody has told the hub, so the route is there, and the proxy itself refuses
                    assert taken.asked
        finally:
            if silent:
                cluster.thaw("slurmctld")
        wait_for(lambda row=row: not truth.session(row.id).open, 90, "the session to be closed")


def test_the_end_of_a_server_is_told_at_once_though_slurm_is_silent(site: Hub, cluster: Cluster) -> None:
    truth = Truth(site)
    start_anew(site, "bob")
    browser, row = visitor(site, "bob"), truth.row("bob")

    def led() -> bool:
        return ("bob", "") in (truth.routes() or {})

    assert led()
    cluster.freeze("slurmctld")
    try:
        os.kill(server_process(row.id), signal.SIGKILL)
        began = time.monotonic()
        wait_for(lambda: truth.routes() is not None and not led(), 5, "the route to be taken away")
        print(f"nobody is led there any more after {time.monotonic() - began:.2f} s")
        assert truth.session(row.id).open  # what Slurm has not said is not believed of the job
        page = browser.get("/hub/home")
        assert "Your server has ended" in str(page.body)
        assert browser.get("/user/bob/lab").status in (424, 404)
    finally:
        cluster.thaw("slurmctld")
    wait_for(lambda: not truth.session(row.id).open, 60, "the session to be closed")
    assert truth.session(row.id).end_reason.startswith("The session was ended by signal 9")
    start_anew(site, "bob")
