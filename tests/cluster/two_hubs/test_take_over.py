"""A second hub takes over in 30 s when the first one's host is killed or freezes; sessions, kernels and routes stay."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rig.databases import OnePostgres, one_postgres
from rig.hub import Hub, wait_for
from rig.truth import Truth
from second_host import TwoHosts, two_hosts

__all__ = ["one_postgres"]
pytestmark = pytest.mark.nightly


@pytest.fixture
def hosts(demo_hub: Hub, one_postgres: OnePostgres, open_path: Path) -> Iterator[TwoHosts]:
    server = one_postgres.server()
    server._execute("CREATE DATABASE jupyterhub")
    with server.database() as ours, two_hosts(demo_hub, open_path, ours, server.url("jupyterhub")) as hosts:
        yield hosts
    server._execute("DROP DATABASE jupyterhub WITH (FORCE)")


def seconds_to_serve(hosts: TwoHosts, name: str, began: float, limit: float = 60) -> float:
    """Return after how long the hub of a host answers people, with alice's session ready."""

    def serves() -> bool:
        try:
            if hosts.address._target.read_text() != str(hosts.ports[name]["hub"]):
                return False
            # The sandbox's proxy asks host one for its pages of errors, frozen or not: a site's asks the address.
            answer = hosts.hub.api("GET", "/users/alice", timeout=2)
            server = answer.body["servers"].get("") if answer.status == 200 else None
        except (OSError, AttributeError, KeyError, TypeError, json.JSONDecodeError):
            return False
        return server is not None and bool(server["ready"])

    try:
        wait_for(serves, limit, f"the hub of host {name}")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{hosts.log('one')[-3000:]}\n{hosts.log('two')[-3000:]}") from error
    return time.monotonic() - began


def api_answers(hub: Hub) -> bool:
    try:
        return hub.api("GET", "/users").status == 200
    except OSError:
        return False


class Click(threading.Thread):
    """A start that somebody requests while no hub answers; ``tries``: how often until a hub took it."""

    def __init__(self, hub: Hub, user: str) -> None:
        super().__init__(daemon=True)
        self.hub, self.user, self.tries, self.began = hub, user, 0, round(time.time(), 1)
        self.said: list[object] = []
        self.start()

    def run(self) -> None:
        until = time.monotonic() + 90
        while time.monotonic() < until:
            self.tries += 1
            with suppress(OSError):
                answer = self.hub.api(
                    "POST", f"/users/{self.user}/server", {"user_options": {"profile": "cpu"}}, timeout=60
                )
                self.said.append((round(time.time()), answer.status, answer.body))
                if answer.status in (201, 202):
                    return
            time.sleep(1)

    def served(self) -> None:
        """Wait until the server is there, and stop it."""
        self.join(120)
        assert not self.is_alive()
        assert self.hub.wait_server(self.user)["ready"]
        self.hub.stop_server(self.user)


@dataclass
class Story:
    """Two hosts, of which one is active, and alice's session with a kernel."""

    hosts: TwoHosts
    kernel: str
    job: str
    active: str = "one"
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def other(self) -> str:
        return "two" if self.active == "one" else "one"

    def take_over(self, how: str) -> None:
        """Let the active host go in one way, wait until the other one serves, and bring the first one back."""
        hosts, hub, active = self.hosts, self.hosts.hub, self.active
        pids = hosts.everything(active)
        before = len(hosts.log(active))
        began = time.monotonic()
        if how == "kill -9":
            os.kill(pids[0], signal.SIGKILL)  # the hub dies with what holds its lease
            time.sleep(1)  # what it had received in that moment is answered by an error
        else:
            hosts.signal(pids[:1] if how == "SIGSTOP of what holds the lease" else pids, signal.SIGSTOP)
        click = Click(hub, "bob")
        self.seconds.setdefault(how, []).append(seconds_to_serve(hosts, self.other, began))
        assert hub.run_cell("alice", self.kernel, "print(mark)").strip() == "42"
        click.served()
        lost = f"no hub had received it: {click.said}, since {click.began}\n{hosts.log('proxy')[-3000:]}"
        lost += "".join(f"\n{name}: {hosts.log(name)[-6000:]}" for name in hosts.ports)
        assert click.tries == 1 or how != "kill -9", lost

        def log() -> str:
            return hosts.log(active)[before:]

        def hub_is_gone() -> bool:
            return not Path(f"/proc/{pids[1]}/exe").exists()

        if how == "kill -9":
            assert hub_is_gone()
            hosts.start(active)
        elif how == "SIGSTOP":  # its hub and its services continue before what could kill them
            hosts.signal(pids[1:], signal.SIGCONT)
            wait_for(hub_is_gone, 10, "the thawed hub to end by itself")
            hosts.signal(pids[:1], signal.SIGCONT)
            wait_for(lambda: "The hub is killed" in log(), 10, "what held the lease to notice")
        else:
            wait_for(hub_is_gone, 10, "the hub to end although nothing kills it")
            assert "This hub ends: Another hub is active" in log()
            hosts.signal(pids[:1], signal.SIGCONT)
        # The log of a process that is started anew begins anew.
        wait_for(lambda: "this host stands by" in (hosts.log(active) if how == "kill -9" else log()), 60, "a standby")
        self.active = self.other
        routes = Truth(hub).routes()
        assert routes is None or ("alice", "") in routes
        assert [row["id"] for row in hub.jobs() if row["user"] == "alice"] == [self.job]


@pytest.fixture
def story(hosts: TwoHosts) -> Iterator[Story]:
    hub = hosts.hub
    hosts.start("one")
    wait_for(lambda: api_answers(hub) or not hosts.processes.alive("host-one"), 90, "the first hub")
    assert hosts.processes.alive("host-one"), hosts.log("one")[-5000:]
    # The sandbox's one hub had another address, and what waits keeps the one to which it was to go.
    wait_for(lambda: "Updating Hub route" in hosts.log("one"), 60, "the proxy to know the address of both")
    hosts.start("two")
    wait_for(lambda: "this host stands by" in hosts.log("two"), 30, "the second host")
    hub.ensure_user("bob")
    hub.start_server("alice")
    kernel = hub.new_kernel("alice")
    assert hub.run_cell("alice", kernel, "mark = 6 * 7") == ""
    (job,) = [row["id"] for row in hub.jobs()]
    yield Story(hosts, kernel, job)
    hub.stop_all()
    wait_for(lambda: not hub.jobs(), 60, "the jobs to end")


def test_ten_times_the_other_hub_serves_within_30_s_after_kill_9_and_after_a_freeze(story: Story) -> None:
    for how in ("kill -9", "SIGSTOP") * 5:
        story.take_over(how)
    print("\ntake-over, until people are served:", story.seconds)
    assert sum(map(len, story.seconds.values())) == 10
    assert max(max(of) for of in story.seconds.values()) <= 30


def test_a_hub_ends_by_itself_where_only_what_holds_its_lease_stands_still(story: Story) -> None:
    story.take_over("SIGSTOP of what holds the lease")
    story.take_over("kill -9")
    print("\ntake-over, until people are served:", story.seconds)
    assert max(max(of) for of in story.seconds.values()) <= 30
