"""Companions on a real Slurm: requested with a session's own token, held and charged, and ended with their session."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import pytest
from rig.books import disagreements
from rig.hub import Answer, Hub, wait_for
from rig.oracle import Oracle
from rig.truth import Truth
from session_parts import SessionOnNode


@dataclass
class Story:
    """Alice with one A100, her session's own token, and other users."""

    hub: Hub
    seen: SessionOnNode
    token: str
    remaining: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, hub: Hub) -> Story:
        """Return the story of alice's current session."""
        seen = SessionOnNode.of(hub, "alice")
        return cls(hub, seen, seen.token)

    @property
    def url(self) -> str:
        return f"/carme/sessions/{self.seen.row.id}/companions"

    def ask(self, method: str, path: str = "", body: Any = None, token: str | None = None, key: str = "") -> Answer:
        """Send a request as a program in the session."""
        headers = {"Authorization": f"token {self.token if token is None else token}"}
        if key:
            headers["Idempotency-Key"] = key
        text = json.dumps(body) if body is not None else None
        return self.hub.request(method, f"/hub/api{self.url}{path}", text, headers, timeout=40)

    def companion(self, id: str) -> dict[str, Any]:
        """Return one companion from the list."""
        found = [each for each in self.ask("GET").body["companions"] if each["id"] == id]
        assert len(found) == 1, found
        return dict(found[0])

    def until(self, id: str, *states: str, limit: float = 60) -> dict[str, Any]:
        """Wait until a companion is in one of these states."""
        wait_for(lambda: self.companion(id)["state"] in states, limit, f"{id} to be {states}")
        return self.companion(id)

    def opened(self, **body: Any) -> dict[str, Any]:
        """Open a companion that starts now, and wait until it runs."""
        answer = self.ask("POST", body={"nodes": 2, "gpus": 4, "cpus": 1, "memory_mib": 2048, "minutes": 30, **body})
        assert answer.status == 201, answer
        return self.until(answer.body["id"], "running")

    def entries(self, session: str) -> dict[str, int]:
        """Return the ledger's entries of a session: kind to sum of GPU-seconds."""
        found: dict[str, int] = {}
        for kind, amount in self.sql("SELECT kind, amount FROM ledger WHERE session = ?", session):
            found[kind] = found.get(kind, 0) + amount // 1000
        return found

    def sql(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        with contextlib.closing(
            sqlite3.connect(f"file:{self.hub.demo.folder / 'carme-hub.sqlite'}?mode=ro", uri=True, timeout=5)
        ) as database:
            return database.execute(question, values).fetchall()

    def job(self, id: str) -> dict[str, str]:
        """Return the one live job of a companion, as Slurm shows it."""
        found = self.hub.cluster.run("scontrol", "show", "job", "--oneliner", str(self.companion(id)["job"])).stdout
        return dict(word.split("=", 1) for word in found.split() if "=" in word)

    def gpus_in_use(self) -> int:
        """Return how many A100 of the cluster Slurm has allocated."""
        text = self.hub.cluster.run(
            "sinfo", "-h", "-a", "-N", "-n", "node1,node2", "-O", "NodeList:20,GresUsed:80"
        ).stdout
        used = {line.split()[0]: line.split()[1] for line in text.splitlines()}
        return sum(int(gres.partition("gpu:a100:")[2].partition("(")[0]) for gres in used.values())


@pytest.fixture(scope="module")
def story(site: Hub) -> Story:
    site.login("alice")
    site.start_server("alice", profile="a100", gpus=1, cpus=1, memory_gib=2, time_minutes=60)
    return Story.of(site)


def test_a_quote_has_the_price_and_the_start_and_changes_nothing(story: Story) -> None:
    # Holds only: earlier sessions of this hub are settled meanwhile, which adds charges and releases.
    tables = ("session", "ledger WHERE kind = 'hold'", "claim")
    counts = "SELECT " + ", ".join(f"(SELECT count(*) FROM {table})" for table in tables)
    before, jobs = story.sql(counts), story.hub.jobs()
    wait_for(lambda: story.ask("GET", "/quote?nodes=2&gpus=4").body["said"].endswith("starts now"), 40, "a look")
    answer = story.ask("GET", "/quote?nodes=2&gpus=4&cpus=1&memory_mib=2048&minutes=30")
    assert answer.status == 200, answer
    output = answer.body
    assert (output["allowed"], output["gpu_seconds"], output["minutes"]) == (True, 4 * 30 * 60, 30), output
    assert output["message"].startswith("Costs up to 2 GPU-hours of "), output
    assert output["price"].startswith("1.00 "), output
    assert output["said"] == "2 nodes are free with 2 × virtual a100, 1 CPU and 2 GiB; starts now"
    assert 58 <= story.ask("GET", "/quote?nodes=1&gpus=1").body["minutes"] <= 60  # the rest of the session's time
    assert (story.sql(counts), story.hub.jobs()) == (before, jobs)
    assert story.ask("GET").body == {"companions": []}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"nodes": 17, "gpus": 17}, "1 to 16 nodes"),
        ({"nodes": 2, "gpus": 3}, "not the same number on each of 2 nodes. Ask for 2 or 4."),
        ({"nodes": 1, "gpus": 5}, "gives 1 to 4 a100 on each node; you asked for 5"),
        ({"nodes": 2, "gpus": 0}, "gives 1 to 4 a100 on each node; you asked for 0"),
        ({"nodes": 1, "gpus": 1, "cpus": 33}, "gives 32 CPUs on each node at most"),
        ({"nodes": 3, "gpus": 3}, "Only 2 nodes of this partition could ever give 1 × virtual a100"),
    ],
)
def test_a_size_outside_the_profile_is_refused_alike_by_quote_and_post(
    story: Story, asked: dict[str, int], words: str
) -> None:
    query = "&".join(f"{name}={value}" for name, value in asked.items())
    quoted, posted = story.ask("GET", f"/quote?{query}"), story.ask("POST", body=asked)
    assert (quoted.status, quoted.body["allowed"]) == (200, False)
    assert posted.status == 409, posted
    assert words in quoted.body["message"] == posted.body["message"]
    assert story.ask("GET").body == {"companions": []}


def test_only_its_own_token_and_its_user_may_ask(story: Story) -> None:
    hub = story.hub
    hub.login("bob")
    other_user = hub.api("POST", "/users/bob/tokens", {"note": "test"}).body["token"]
    hub.start_server("bob", profile="cpu", cpus=1, memory_gib=1)
    other_server = SessionOnNode.of(hub, "bob").token
    hub.stop_server("bob")
    hub.start_server("alice", "second", profile="cpu", cpus=1, memory_gib=1)
    sibling = SessionOnNode.of(hub, "alice", "second").token
    for token in (other_user, other_server, sibling, "wrong"):
        for method, path, body in (
            ("GET", "", None),
            ("GET", "/quote?nodes=1&gpus=1", None),
            ("POST", "", {"gpus": 1}),
        ):
            assert story.ask(method, path, body, token).status in (403, 404), (method, path)
        assert story.ask("DELETE", f"/{uuid.uuid4()}", token=token).status in (403, 404)
    hub.stop_server("alice", "second")
    mine = hub.api("POST", "/users/alice/tokens", {"note": "test"}).body["token"]
    assert story.ask("GET", token=mine).status == 200
    assert story.ask("DELETE", f"/{uuid.uuid4()}").status == 404
    assert story.ask("POST", body={"gpus": 1, "partition": "gpu"}).status == 400
    assert story.ask("POST", body={"gpus": True}).status == 400
    assert hub.jobs() == [job for job in hub.jobs() if job["name"] == f"carme-{story.seen.row.id}"]


def test_a_companion_is_held_and_charged_survives_a_hub_crash_and_is_given_back(story: Story) -> None:
    hub, key = story.hub, uuid.uuid4().hex
    body = {"nodes": 2, "gpus": 4, "cpus": 1, "memory_mib": 2048, "minutes": 30, "name": "run1"}
    with Oracle(Truth(hub)) as oracle:
        first = story.ask("POST", body=body, key=key)
        again = story.ask("POST", body=body, key=key)
        assert (first.status, again.status) == (201, 201), (first, again)
        id = first.body["id"]
        assert again.body["id"] == id
        assert story.ask("POST", body={**body, "nodes": 1}, key=key).status == 422
        shown = story.until(id, "running")
        job = story.job(id)
        assert (job["NumNodes"], job["JobState"], job["TimeLimit"]) == ("2", "RUNNING", "00:30:00"), job
        assert "gres:gpu:a100:2" in job["TresPerNode"]
        assert sorted(shown["nodes"]) == ["node1", "node2"]
        assert story.gpus_in_use() == 5
        assert story.entries(id) == {"hold": -4 * 30 * 60}
        own = job["Account"], job["Partition"], job["QOS"]
        parent = hub.cluster.run("scontrol", "show", "job", "--oneliner", str(story.seen.row.job_id)).stdout
        assert own == tuple(parent.split(f"{name}=")[1].split()[0] for name in ("Account", "Partition", "QOS"))
        page = " ".join(str(hub.login("alice").get("/hub/home").body).split())
        assert "2 nodes more for run1, 4 × virtual a100" in page
        with oracle.fault():
            hub.kill()
            hub.start()
        assert story.companion(id)["job"] == shown["job"]
        assert story.until(id, "running")["started"] == shown["started"]
        assert hub.server("alice")["ready"]  # type: ignore[index]
        assert story.gpus_in_use() == 5
        begun = time.monotonic()
        assert story.ask("DELETE", f"/{id}").body["state"] in ("ending", "ended")
        wait_for(lambda: story.job(id)["JobState"] == "CANCELLED", 30, "the job to have ended")
        assert story.gpus_in_use() == 1
        print(f"free after {time.monotonic() - begun:.1f} s")
        ended = story.until(id, "ended")
        assert ended["said"] == "Given back."
        wait_for(lambda: "release" in story.entries(id), 90, "the rest to be released")
        entries = story.entries(id)
        assert entries["hold"] + entries["release"] == 0
        assert -600 < entries["charge"] < 0
        assert hub.server("alice")["ready"]  # type: ignore[index]
        oracle.settle()
    assert disagreements(hub) == []


INSIDE = """
import json, os, time
from carme_hub.training.session.step_broker import Broker, NotReady, Step
from carme_hub.training.session.companions import Hub, Refused
hub = Hub.from_environ()
assert hub.tls and hub.url.startswith("https://")
quote = hub.quote(nodes=2, gpus=2, cpus=1, minutes=10)
opened = hub.open(nodes=2, gpus=2, cpus=1, memory_mib=1024, minutes=10, name="run2")
end = time.monotonic() + 40
while [each.state for each in hub.list() if each.id == opened.id] != ["running"]:
    assert time.monotonic() < end, hub.list()
    time.sleep(0.3)
while True:
    try:
        room = Broker().allocation(opened.id)
        break
    except NotReady:
        time.sleep(0.3)
code = "import os; print(os.environ['SLURMD_NODENAME'], os.environ['SLURM_JOB_ID'], os.environ['SLURM_NTASKS'])"
step = Step("run2", 2, ("python", "-c", code), companion=opened.id, gpus_per_node=1)
with open(os.path.expanduser("~/ranks.txt"), "w+") as out:
    running = Broker().start(step, out.fileno(), out.fileno())
    status = running.wait(60)
    out.seek(0)
    lines = sorted(line for line in out.read().splitlines() if line[:3] in ("0: ", "1: "))
try:
    hub.open(nodes=1, gpus=99)
    said = ""
except Refused as refused:
    said = str(refused)
print(json.dumps([quote.allowed, quote.gpu_seconds, opened.id, room.nodes, room.gpus, status, lines, said]))
"""


def test_a_program_in_the_session_opens_one_and_runs_ranks_there_and_the_home_page_gives_it_back(story: Story) -> None:
    hub = story.hub
    printed = hub.run_cell("alice", hub.new_kernel("alice"), INSIDE, limit=120)
    assert printed.lstrip().startswith("["), printed
    allowed, seconds, id, nodes, gpus, status, lines, output = json.loads(printed)
    assert (allowed, seconds, gpus, status) == (True, 2 * 600, 1, 0), printed
    assert sorted(nodes) == ["node1", "node2"]
    job = str(story.companion(id)["job"])
    assert [line.split()[1:] for line in lines] == [["node1", job, "2"], ["node2", job, "2"]]
    assert "99" in output
    # The home page's button: a GET changes nothing, nor does another user's form.
    path = f"/hub/carme/sessions/{story.seen.row.id}/companions/{id}/give-back"
    alice, bob = hub.login("alice"), hub.login("bob")
    assert f'action="{path}"' in str(alice.get("/hub/home").body)
    assert alice.get(path).status == 200
    assert bob.post(path, {}).status in (403, 404)
    assert story.companion(id)["state"] == "running"
    assert alice.post(path, {}).status == 303
    assert story.until(id, "ended")["said"] == "Given back."


def test_a_companion_that_is_cancelled_in_slurm_ends_alone(story: Story) -> None:
    id = story.opened(nodes=1, gpus=1)["id"]
    story.hub.cluster.run("scancel", str(story.companion(id)["job"]))
    assert "cancelled" in story.until(id, "ended")["said"]
    assert story.hub.server("alice")["ready"]  # type: ignore[index]


def test_companions_end_with_their_session_and_the_next_session_has_none(story: Story) -> None:
    hub = story.hub
    running = story.opened(nodes=1, gpus=2)["id"]
    waiting = story.ask("POST", body={"nodes": 2, "gpus": 8, "cpus": 1, "memory_mib": 1024}).body
    assert waiting["state"] == "waiting"
    listed = story.companion(waiting["id"])
    assert (listed["nodes"], listed["gpus"]) == ([], 8)
    wait_for(lambda: story.companion(waiting["id"])["said"].startswith("Waiting for 8 × a100"), 30, "why it waits")
    hub.stop_server("alice")
    wait_for(lambda: not hub.jobs(), 30, "all jobs to end")
    for id in (running, waiting["id"]):
        wait_for(lambda id=id: not Truth(hub).session(id).open, 60, "the companion's row to be closed")
        assert Truth(hub).session(id).end_reason == "Given back: its session has ended."
    wait_for(lambda: "release" in story.entries(running), 90, "the rest to be released")
    story.remaining.append(waiting["id"])  # released a minute later: accounting may not have its job yet
    assert story.ask("GET").status in (403, 404)
    hub.start_server("alice", profile="a100", gpus=1, cpus=1, memory_gib=2, time_minutes=60)
    later = Story.of(hub)
    assert later.ask("GET").body == {"companions": []}
    assert hub.server("alice")["ready"]  # type: ignore[index]


def test_a_companion_ends_by_itself_when_its_session_ends_while_the_hub_is_down(story: Story) -> None:
    hub = story.hub
    now = Story.of(hub)
    id = now.opened(nodes=1, gpus=2)["id"]
    job = now.companion(id)["job"]
    hub.kill()
    hub.cluster.run("scancel", str(now.seen.row.job_id))
    hub.cluster.wait_job(job, "COMPLETED", within=30)  # no hub cancelled it
    hub.start()
    wait_for(lambda: not Truth(hub).session(id).open, 60, "the companion's row to be closed")
    for each in (id, *story.remaining):
        wait_for(lambda each=each: "release" in now.entries(each), 90, "the rest to be released")
