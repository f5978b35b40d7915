"""What a session uses is measured beside it on its node, and is known when it has ended; no minute is lost."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rig.hub import Answer, Hub, wait_for
from rig.truth import Truth
from session_parts import SessionOnNode, command_lines

from carme_hub.sandbox.slurm.virtual_driver import change

API = "/services/activity/api/v1"
#: Seconds of processor time, which take longer on a busy machine.
BURNT = 10
BURN = f"import time\nwhile time.process_time() < {BURNT}: sum(range(10000))"


class Seen:
    """A session of alice with one virtual GPU."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        hub.login("alice")
        hub.start_server("alice", profile="a100", gpus=1, cpus=2, memory_gib=2, time_minutes=30)
        self.session = SessionOnNode.of(hub, "alice")
        self.token = hub.api("POST", "/users/alice/tokens", {"note": "test"}).body["token"]
        wait_for(lambda: (self.session.folder / "usage.json").exists(), 30, "the first sample")
        self.uuid = str(self.now()["gpus"][0]["uuid"])

    def now(self) -> dict[str, Any]:
        """Return the newest sample."""
        return dict(json.loads((self.session.folder / "usage.json").read_text()))

    def forge(self, **values: int) -> None:
        """Have the session's virtual GPU say that it is used."""
        _, _, node, number = self.uuid.split("-")
        change(self.hub.cluster.layout.dev, node, int(number), values)

    def ask(self, path: str, token: str = "") -> Answer:
        """Ask the service with alice's own token."""
        return self.hub.request("GET", f"{API}/{path}", None, {"Authorization": f"token {token or self.token}"})

    def nodes(self) -> list[dict[str, Any]]:
        """Return what the service knows of the session."""
        answer = self.ask(f"sessions/{self.session.row.id}")
        assert answer.status == 200, answer
        return list(answer.body["nodes"])

    def post(self, body: dict[str, Any], token: str) -> Answer:
        """Send minutes to the service, as its reporter does or as somebody else."""
        headers = {"Authorization": f"carme-activity {token}", "Content-Type": "application/json"}
        return self.hub.request("POST", f"{API}/sessions/{body['session']}/minutes", json.dumps(body), headers)


@pytest.fixture(scope="module")
def seen(site: Hub) -> Iterator[Seen]:
    found = Seen(site)
    yield found
    found.forge(utilisation=0, memory=0)
    site.stop_all()


def test_the_sample_is_of_the_sessions_own_gpu_and_says_that_it_is_virtual(seen: Seen) -> None:
    wait_for(lambda: seen.now()["memory"] > 50, 30, "a sample of a lab that has started and takes some memory")
    now = seen.now()
    assert (now["virtual"], now["node"], now["session"]) == (True, seen.session.row.node, seen.session.row.id)
    assert (now["memory_limit"], now["cpus"]) == (2048, 2)
    assert now["memory"] < 2048
    assert now["gpus"][0]["name"] == "Virtual A100"
    seen.forge(utilisation=80, memory=12000)
    wait_for(lambda: seen.now()["gpus"][0]["utilisation"] == 80, 30, "the next sample")
    assert seen.now()["gpus"][0]["memory"] == 12000


def test_nobody_else_on_the_node_reads_it_and_no_command_line_has_the_token(seen: Seen) -> None:
    token = seen.session.document["activity"]["token"]
    for name in ("usage.json", "usage.ring", "data.json"):
        assert (seen.session.folder / name).stat().st_mode & 0o077 == 0
    assert not [line for _, line in command_lines() if token in line]
    assert token not in seen.session.log()
    assert token not in seen.hub.log_text()


def test_a_reporter_writes_its_own_session_and_nothing_else(seen: Seen) -> None:
    body = {"version": 1, "session": seen.session.row.id, "node": "n", "now": time.time(), "gpus": [], "minutes": []}
    token = seen.session.document["activity"]["token"]
    assert seen.post(body, "0" * 64).status == 403
    assert seen.post(body, seen.session.nonce).status == 403
    refused = seen.post(body, token)
    assert (refused.status, refused.body["error"]) == (422, "unprocessable-entity"), refused
    assert seen.post({**body, "session": body["session"].replace("-", "-", 1)[::-1]}, token).status in (403, 404)


def test_at_its_end_the_service_knows_what_it_used(seen: Seen) -> None:
    hub = seen.hub
    kernel = hub.new_kernel("alice")
    hub.run_cell("alice", kernel, BURN, limit=120)
    ended = time.time()  # what is used after the last sample is not known
    wait_for(lambda: seen.now()["at"] > ended, 30, "a sample of all of it")
    hub.stop_server("alice")
    wait_for(lambda: Truth(hub).session(seen.session.row.id).state == "ended", 60, "the session to end")
    [node] = seen.nodes()
    total, gpu = node["total"], node["total"]["gpus"][0]
    assert (node["node"], node["virtual"], node["memory_limit"]) == (seen.session.row.node, True, 2048)
    assert gpu["utilisation_most"] == 80
    assert 0 < gpu["utilisation"] <= 80
    assert gpu["memory"] == 12000
    assert total["cpus"] * total["seconds"] > 0.8 * BURNT
    assert total["seconds"] >= 30
    assert not list(seen.session.folder.glob("usage*")), "nothing of it is left in the home"
    assert not [line for _, line in command_lines() if f"carme-report {seen.session.folder}" in line]


def test_other_people_do_not_see_it_and_a_reader_does(seen: Seen) -> None:
    hub = seen.hub
    hub.login("bob")
    bobs = hub.api("POST", "/users/bob/tokens", {"note": "test"}).body["token"]
    assert seen.ask(f"sessions/{seen.session.row.id}", bobs).status == 404
    assert seen.ask("sessions?everybody=true", bobs).status == 403
    assert seen.ask("metrics", bobs).status == 403


@pytest.mark.nightly
def test_while_the_hub_is_away_no_minute_is_lost(site: Hub) -> None:
    seen = Seen(site)
    try:
        wait_for(lambda: bool(seen.nodes()), 130, "the first minute")
        site.stop()
        time.sleep(150)
        site.start()
        before = time.time()
        wait_for(lambda: seen.nodes()[0]["until"] > before, 400, "a minute after the restart")
        points = seen.nodes()[0]["points"]
        gaps = [after["at"] - point["at"] for point, after in itertools.pairwise(points)]
        assert set(gaps) == {60}, "each minute once, and none is missing"
    finally:
        site.recover()
        site.stop_all()
