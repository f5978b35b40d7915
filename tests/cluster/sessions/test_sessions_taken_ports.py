"""No visitor reaches a server that another user started on the port of a session."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rig.faults import server_process
from rig.hub import Hub, Person, wait_for
from rig.truth import Row, Truth
from session_parts import SessionOnNode, environments

from carme_hub.sandbox import Cluster

#: A user's servers that are killed at once, with another user's program waiting for the port of each; and how often.
NAMES, ROUNDS = ("one", "two", "three", "four", "five"), 4
PAGE = b"HTTP/1.1 200 OK\r\nX-JupyterHub-Version: 6.1.1\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


class ServerOfAlice(threading.Thread):
    """Listens on the port of a user's session, as soon as it is known, and answers with alice's certificate."""

    def __init__(self, hub: Hub, user: str, port: int = 0) -> None:
        super().__init__(daemon=True)
        self.truth, self.user, self.wanted = Truth(hub), user, port
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        files = SessionOnNode.of(hub, "alice").document["files"]
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


def test_a_session_whose_port_another_user_has_taken_is_ended_and_gets_no_route(site: Hub) -> None:
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
    assert "Another program answers on the session's port" in str(last["message"])
    wait_for(lambda: not truth.session(row.id).open, 30, "the session to be closed")
    assert truth.live_jobs(row.id) == []
    assert "Another program answers" in truth.session(row.id).end_reason
    assert ("bob", "") not in (truth.routes() or {})
    site.start_server("bob", profile="cpu")  # the next one is bob's own
    assert ("bob", "") in (truth.routes() or {})


def kill_all_of(*rows: Row) -> None:
    """Kill all processes of sessions on their nodes, supervisors first, as a node without memory may."""
    ids = {row.id for row in rows}

    def left() -> list[int]:
        return sorted(pid for pid, words in environments() if words.get("CARME_SESSION") in ids)

    end = time.monotonic() + 20
    while (pids := left()) and time.monotonic() < end:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not left()


def start_servers(hub: Hub, user: str, *names: str) -> None:
    """Start servers of a user at once, whatever is left of earlier ones."""

    def start(name: str) -> None:
        if hub.server(user, name) is not None:
            hub.stop_server(user, name)
        hub.start_server(user, name, profile="cpu")

    with ThreadPoolExecutor(5) as pool:  # the hub answers when a server is there, or after ten seconds
        list(pool.map(start, names or ("",)))


def visitor(hub: Hub, user: str, *names: str) -> Person:
    """Return a user in whose browser labs are open: its cookies hold a token for each server."""
    person = hub.login(user)
    for name in names or ("",):
        path = f"/user/{user}/{name}".rstrip("/")
        assert person.get(f"{path}/lab").status == 200
        assert token_in(person, user, name)
    return person


def token_in(person: Person, user: str, name: str) -> str:
    """Return the token that a visitor's cookie for a server holds: it is signed, not encrypted."""
    cookie = person.cookies["-".join(filter(None, ("jupyterhub-user", user, name)))].strip('"')
    return base64.b64decode(cookie.split("|")[4].partition(":")[2]).decode()


@pytest.mark.parametrize("silent", [False, True], ids=["slurm answers", "slurm is silent"])
def test_a_program_that_takes_the_port_of_a_killed_server_gets_no_byte_of_its_visitors(
    site: Hub, cluster: Cluster, silent: bool
) -> None:
    """Twenty times: in each round all of a user's servers die at once, and each has another program on its port."""
    truth = Truth(site)
    if not site.server("alice"):
        site.start_server("alice", profile="cpu")
    for _ in range(ROUNDS):
        start_servers(site, "bob", *NAMES)
        browser, rows = visitor(site, "bob", *NAMES), [truth.row("bob", name) for name in NAMES]
        leaked = [token_in(browser, "bob", name) for name in NAMES]
        assert {site.api("GET", "/user", token=token).status for token in leaked} == {200}
        if silent:
            cluster.freeze("slurmctld")
        try:
            kill_all_of(*rows)
            with contextlib.ExitStack() as stack:
                taken = [stack.enter_context(first_on_the_port(site, "bob", row.port)) for row in rows]
                wait_for(lambda taken=taken: all(each.port for each in taken), 20, "the other programs to listen")
                for path in ["lab", "api/status", "api/kernels/1/channels"] * 3:
                    headers = {"Upgrade": "websocket", "Connection": "Upgrade"} if "channels" in path else {}
                    for name in NAMES:
                        answer = browser._send("GET", f"/user/bob/{name}/{path}", headers=headers)
                        assert answer.body != "{}"
                        assert answer.status not in (101, 200)
                assert [each.received for each in taken] == [b""] * len(rows)
                if silent:  # the hub does not know yet, so the routes exist, and the proxy itself refuses
                    assert all(each.asked for each in taken)
        finally:
            if silent:
                cluster.thaw("slurmctld")
        wait_for(lambda rows=rows: not any(truth.session(row.id).open for row in rows), 90, "the sessions to be closed")
        # What did leak in an outage would be worth nothing from here on.
        wait_for(
            lambda leaked=leaked: {site.api("GET", "/user", token=token).status for token in leaked} == {403},
            10,
            "the tokens of the visitors to be gone",
        )


def test_the_end_of_a_server_is_shown_at_once_while_slurm_does_not_answer(site: Hub, cluster: Cluster) -> None:
    truth = Truth(site)
    start_servers(site, "bob")
    browser, row = visitor(site, "bob"), truth.row("bob")

    def routed() -> bool:
        return ("bob", "") in (truth.routes() or {})

    assert routed()
    cluster.freeze("slurmctld")
    try:
        os.kill(server_process(row.id), signal.SIGKILL)
        began = time.monotonic()
        pages = []

        def shown_after() -> bool:
            pages.append(browser.get("/user/bob/lab"))
            return "Your server has ended" in str(pages[-1].body)

        wait_for(shown_after, 5, "the visitor to be told")
        print(f"the visitor is told after {time.monotonic() - began:.2f} s")
        for page in pages[:-1]:  # the pages before that are not empty either
            assert page.status == 200 or "does not answer at the moment" in str(page.body), page
        wait_for(lambda: truth.routes() is not None and not routed(), 5, "the route to be taken away")
        assert truth.session(row.id).open  # what Slurm has not said is not believed of the job
        page = browser.get("/hub/home")
        assert "Your server has ended" in str(page.body)
        assert browser.get("/user/bob/lab").status in (424, 404)
    finally:
        cluster.thaw("slurmctld")
    wait_for(lambda: not truth.session(row.id).open, 60, "the session to be closed")
    assert truth.session(row.id).end_reason.startswith("The session was ended by signal 9")
    start_servers(site, "bob")


def test_visitors_reach_their_server_through_a_restart_of_the_hub_and_its_route_comes_back_after_one_of_the_proxy(
    site: Hub,
) -> None:
    truth = Truth(site)
    start_servers(site, "bob")
    browser, over, seen = visitor(site, "bob"), threading.Event(), []

    def target() -> str:
        return (truth.routes() or {}).get(("bob", ""), "")

    def visit() -> None:
        while not over.is_set():
            seen.append(browser._send("GET", "/user/bob/api/status").status)
            time.sleep(0.05)

    named = target()
    assert "#certificate=" in named
    visiting = threading.Thread(target=visit)
    visiting.start()
    try:
        site.restart()
        wait_for(lambda: truth.routes() is not None, 20, "the proxy's answer")
        time.sleep(2)  # the hub compares its routes as it starts
    finally:
        over.set()
        visiting.join(30)
    assert set(seen) == {200}
    assert target() == named
    processes = site.demo.sandbox.processes
    processes.signal("proxy", 9)
    wait_for(lambda: not processes.alive("proxy"), 5, "the proxy to die")
    site.start()
    wait_for(lambda: target() == named, 60, "the route with its certificate to be back")
    assert browser.get("/user/bob/lab").status == 200
