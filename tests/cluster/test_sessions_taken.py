"""Nobody is led to a server that another user put on the port of a session."""

from __future__ import annotations

import contextlib
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rig.hub import Hub, wait_for
from rig.truth import Truth
from session_parts import Seen

PAGE = b"HTTP/1.1 200 OK\r\nX-JupyterHub-Version: 6.1.1\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


class ServerOfAlice(threading.Thread):
    """Waits until the port of a user's session is known, listens there first, and answers with alice's certificate."""

    def __init__(self, hub: Hub, user: str) -> None:
        super().__init__(daemon=True)
        self.truth, self.user = Truth(hub), user
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        files = Seen.of(hub, "alice").document["files"]
        with tempfile.TemporaryDirectory() as folder:
            for name in ("tls.crt", "tls.key"):
                Path(folder, name).write_text(files[name]["text"])
            self.context.load_cert_chain(Path(folder, "tls.crt"), Path(folder, "tls.key"))
        self.over, self.port, self.asked = threading.Event(), 0, 0

    def run(self) -> None:
        while not self.over.is_set() and not self._port():
            time.sleep(0.005)
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(("0.0.0.0", self._port()))
            listening.listen()
            listening.settimeout(0.2)
            self.port = self._port()
            while not self.over.is_set():
                with contextlib.suppress(OSError):
                    line, _ = listening.accept()
                    with self.context.wrap_socket(line, server_side=True) as secured:
                        self.asked += 1
                        secured.recv(4096)
                        secured.sendall(PAGE)

    def _port(self) -> int:
        row = next((r for r in self.truth.rows() or [] if r.user == self.user and r.open), None)
        return row.port if row is not None else 0


@contextlib.contextmanager
def first_on_the_port(hub: Hub, user: str) -> Iterator[ServerOfAlice]:
    server = ServerOfAlice(hub, user)
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
