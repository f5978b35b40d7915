"""An administrator's day at the console: new starts, a message, a node and a session, all of it in the audit log."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.hub import Hub, Person, wait_for
from rig.truth import Truth
from session_parts import message

ROOT = "/hub/carme/console"


class Day:
    """ada administers; alice has a session with a GPU; bob wants one."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.ada, self.alice, self.bob = (hub.login(name) for name in ("ada", "alice", "bob"))
        hub.start_server("alice", profile="a100", gpus=1, cpus=1, memory_gib=2, time_minutes=30)
        self.session = Truth(hub).row("alice", "")

    def act(self, form: str, **fields: str) -> str:
        """Send a form of the console; return the page."""
        self.ada.get(f"{ROOT}/{form}")
        return " ".join(str(self.ada.post(f"{ROOT}/{form}", fields).body).split())

    def api(self, path: str) -> Any:
        """Ask the console's REST as ada."""
        answer = self.ada.request_api("GET", f"/hub/api/carme/console/{path}")
        assert answer.status == 200, answer
        return answer.body

    def audit(self) -> list[dict[str, Any]]:
        """Return the events of the audit file."""
        lines = (self.hub.demo.folder / "audit.jsonl").read_text().splitlines()
        every = [json.loads(line) for line in lines]
        return [each for each in every if each.get("__schema__") == "urn:carme-hub:administration"]

    def lab(self, method: str = "GET", body: Any = None) -> Any:
        """Ask the server extension of alice's session, as JupyterLab does."""
        return self.hub.server_api(method, "alice", "", "/carme/activity", body).body


@pytest.fixture(scope="module")
def day(site: Hub) -> Iterator[Day]:
    yield Day(site)
    site.stop_all()


def streamed(person: Person, words: str, limit: float = 60) -> None:
    """Wait until a text comes on the stream of a person's home page."""
    cookie = "; ".join(f"{name}={value}" for name, value in person.cookies.items())
    connection = http.client.HTTPConnection("127.0.0.1", person.hub.demo.ports["public"], timeout=limit)
    try:
        connection.request("GET", "/hub/carme/home/events", headers={"Cookie": cookie})
        answer = connection.getresponse()
        assert answer.status == 200
        until = time.monotonic() + limit
        for line in answer:
            if words in line.decode():
                return
            assert time.monotonic() < until, f"{words} did not come on the stream"
    finally:
        connection.close()


def test_the_console_lists_everybodys_sessions_and_jobs(day: Day) -> None:
    assert day.bob.get(ROOT).status == 403
    assert [row["user"] for row in day.api("sessions?user=alice")["sessions"]] == ["alice"]
    [job] = day.api("jobs?user=alice&state=running")["jobs"]
    assert (job["node"], job["gpus"]) == (day.session.node, 1)
    assert day.session.node in {row["id"] for row in day.api("nodes")["nodes"]}
    assert "alice" in str(day.ada.get(f"{ROOT}?node={day.session.node}").body)


def test_stopped_starts_are_refused_with_the_reason_also_after_a_restart_and_what_runs_goes_on(day: Day) -> None:
    hub = day.hub
    assert "New starts of everything are stopped" in day.act("stop-starts", reason="A new driver comes")
    words = "Nothing new can be started at the moment: A new driver comes."
    answer = hub.begin("bob", profile="cpu")
    assert answer.status == 400
    assert words in message(answer)
    more = hub.api("POST", f"/carme/sessions/{day.session.id}/companions", {"nodes": 1, "gpus": 1, "minutes": 5})
    assert (more.status, more.body["error"]) == (409, "starts-stopped"), "more nodes are a new start, too"
    hub.restart()
    answer = hub.begin("bob", profile="cpu")
    assert answer.status == 400
    assert words in message(answer)
    assert words in str(day.bob.get("/hub/spawn").body)
    found = hub.server("alice")
    assert found is not None
    assert found["ready"]
    [rule] = day.api("start-stops")["start_stops"]
    day.act("allow-starts", id=rule["id"], reason="The driver is there")
    hub.start_server("bob", profile="cpu")
    hub.stop_server("bob")


def test_a_message_arrives_in_the_running_session_and_on_the_page_and_is_seen_once(day: Day) -> None:
    text = "Please save <your> work"
    assert "for 1 user." in day.act("message", to="node", name=day.session.node, text=text, reason="A fan fails")
    streamed(day.alice, "Please save &lt;your&gt; work")
    wait_for(lambda: (day.lab()["state"] or {}).get("messages"), 90, "the message in the session's state")
    [found] = day.lab()["state"]["messages"]
    assert (found["from"], found["text"]) == ("ada", text)
    assert day.lab("POST", {"do": "seen", "message": found["id"]})["done"] is True
    assert day.lab()["state"]["messages"] == []
    assert "Please save" not in str(day.alice.get("/hub/home").body)
    assert [each["seen"] for each in day.api("messages")["messages"]] == [1]


def test_a_node_is_drained_and_resumed_and_both_are_in_the_audit_log(day: Day) -> None:
    node, cluster = day.session.node, day.hub.cluster
    # An Operator of Slurm, which the sandbox's hub is, may not change nodes.
    page = day.act("drain", node=node, reason="A fan fails")
    assert "does not let the hub change nodes" in page
    assert "AdminLevel=Administrator" in page
    cluster.run("sacctmgr", "-i", "modify", "user", cluster.hub_user, "set", "AdminLevel=Administrator")
    try:
        wait_for(lambda: "is drained." in day.act("drain", node=node, reason="A fan fails"), 30, "the right")
        _resumed(day, node)
    finally:
        cluster.run("sacctmgr", "-i", "modify", "user", cluster.hub_user, "set", "AdminLevel=Operator")
    done = [
        each for each in day.audit() if each["outcome"] == "done" and each["action"] in ("drain-node", "resume-node")
    ]
    assert [(each["action"], each["actor"], each["target"], each["reason"]) for each in done] == [
        ("drain-node", "ada", node, "A fan fails"),
        ("resume-node", "ada", node, "A new fan"),
    ]
    assert done[0]["details"] == {"users": "alice"}
    listed = [each for each in day.api("acts")["acts"] if each["outcome"] == "done"]
    assert [each["action"] for each in listed[:2]] == ["resume-node", "drain-node"]


def _resumed(day: Day, node: str) -> None:
    shown = day.hub.cluster.run("scontrol", "show", "node", node).stdout
    assert "DRAIN" in shown
    assert "Reason=A fan fails (ada)" in shown
    found = day.hub.server("alice")
    assert found is not None
    assert found["ready"], "what runs there goes on"
    assert "Jobs can start" in day.act("resume", node=node, reason="A new fan")
    assert "DRAIN" not in day.hub.cluster.run("scontrol", "show", "node", node).stdout


def test_the_command_does_the_same(day: Day, tmp_path: Path) -> None:
    token = day.hub.api("POST", "/users/ada/tokens", {"note": "test"}).body["token"]
    environ = {**os.environ, "JUPYTERHUB_API_URL": day.hub.demo.url, "JUPYTERHUB_API_TOKEN": token}

    def carme(*argv: str) -> tuple[int, str]:
        line = [sys.executable, "-m", "carme_hub.cli", "console", *argv]
        done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False, timeout=120)
        return done.returncode, done.stdout + done.stderr

    assert "alice" in carme("sessions", "--user", "alice")[1]
    assert str(day.session.job_id) in carme("jobs", "--node", day.session.node)[1]
    assert day.session.node in carme("nodes")[1]
    code, said = carme("message", "Hello", "--user", "alice")
    assert (code, "say why with --reason" in said) == (2, True)
    code, said = carme("announce", "New nodes", "--to", "23:59", "--reason", "News", "--json")
    assert code == 0, said
    assert "New nodes" in str(day.bob.get("/hub/home").body)
    assert carme("withdraw", json.loads(said)["id"], "--reason", "Not yet")[0] == 0
    assert "New nodes" not in str(day.bob.get("/hub/home").body)
    assert carme("stop-starts", "--profile", "none", "--reason", "x", "--yes")[0] == 1
    code, said = carme("stop-starts", "--profile", "h100", "--reason", "Driver", "--yes", "--json")
    assert code == 0, said
    assert "Driver" in carme("starts")[1]
    assert carme("allow-starts", json.loads(said)["id"], "--reason", "Done")[0] == 0
    code, said = carme("acts", "--actor", "ada")
    assert (code, said.count("allow-starts")) == (0, 2)


def test_a_session_is_stopped_and_its_user_reads_why(day: Day) -> None:
    day.act("stop", session=day.session.id, reason="It blocks a repair")
    wait_for(lambda: day.hub.server("alice") is None, 60, "the session to stop")
    wait_for(lambda: not Truth(day.hub).session(day.session.id).open, 60, "the session to end")
    answer = day.alice.get("/hub/home")
    assert "Stopped by an administrator: It blocks a repair" in str(answer.body), day.hub.log_text()[-6000:]
    [last] = [each for each in day.audit() if each["action"] == "stop-session"]
    assert (last["target"], last["details"]["user"]) == (day.session.id, "alice")
