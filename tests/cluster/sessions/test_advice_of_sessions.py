"""A session that asks for four virtual GPUs and uses one is told so, and a job of the command line what it used.

The use of the virtual GPU is forged, as ``carme-hub sandbox gpu`` forges it, and everything that is said of it says
*virtual*.
"""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rig.hub import Hub, wait_for
from rig.truth import Truth
from session_parts import SessionOnNode

from carme_hub.sandbox.slurm.virtual_driver import change

API = "/services/activity/api/v1"
ONE_OF_FOUR = r"1 of 4 virtual GPUs was used, at \d+ % on average\."
#: Holds 300 MiB for longer than the shortest job that is stored.
HOLD = "#!/usr/bin/env python3\nimport time\nheld = bytearray(300 << 20)\ntime.sleep(75)\n"


class Asked:
    """A session of alice with four virtual GPUs, of which one works."""

    def __init__(self, hub: Hub) -> None:
        self.hub, self.person = hub, hub.login("alice")
        hub.start_server("alice", profile="a100", gpus=4, cpus=4, memory_gib=8, time_minutes=30)
        self.session = SessionOnNode.of(hub, "alice")
        self.token = hub.api("POST", "/users/alice/tokens", {"note": "advice"}).body["token"]
        self.node, self.began = str(self.session.row.node), time.monotonic()
        self.forge(utilisation=80, memory=12_000)

    def forge(self, **values: int) -> None:
        change(self.hub.cluster.layout.dev, self.node, 0, values)

    def ask(self, path: str, token: str = "") -> Any:
        answer = self.hub.request("GET", f"{API}/{path}", None, {"Authorization": f"token {token or self.token}"})
        assert answer.status == 200, answer
        return answer.body

    def reported(self) -> int:
        """Return the seconds that the service knows of."""
        nodes = self.ask(f"sessions/{self.session.row.id}")["nodes"]
        return int(nodes[0]["total"]["seconds"]) if nodes else 0

    def stop(self) -> None:
        self.hub.stop_server("alice")
        wait_for(lambda: Truth(self.hub).session(self.session.row.id).state == "ended", 60, "the session to end")

    def home(self) -> str:
        """Return what the home page says."""
        page = str(self.person.get("/hub/home").body)
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())

    def jobs(self) -> dict[int, dict[str, Any]]:
        """Return the finished jobs that the service has stored, by their ids; none before it is ready."""
        answer = self.hub.request("GET", f"{API}/jobs?days=1", None, {"Authorization": f"token {self.token}"})
        return {job["job_id"]: job for job in answer.body["jobs"]} if answer.status == 200 else {}


def wait_slowly(condition: Callable[[], bool], limit: float, what: str) -> None:
    """Wait as ``wait_for`` does, and look once in two seconds."""

    def look() -> bool:
        time.sleep(2)
        return condition()

    wait_for(look, limit, what)


@pytest.fixture(scope="module")
def asked(site: Hub) -> Iterator[Asked]:
    found = Asked(site)
    yield found
    found.forge(utilisation=0, memory=0)
    site.stop_all()


def test_a_session_that_used_one_of_four_gpus_is_told_so(asked: Asked) -> None:
    hub = asked.hub
    of_shell = hub.cluster.sbatch("-p", "batch", "-t", "10", "--mem=1000", "-J", "hold", user="alice", script=HOLD)
    wait_slowly(lambda: asked.reported() >= 60, 200, "a minute of the session")
    asked.stop()
    assert re.search(ONE_OF_FOUR, asked.home()), "at once, before accounting was read"
    wait_slowly(lambda: not hub.cluster.squeue("-j", str(of_shell), "-t", "PD,R,CG"), 120, "the job to end")
    hub.restart()  # the service reads finished jobs when it starts, and every five minutes
    hub.login("alice")
    wait_slowly(lambda: {of_shell, asked.session.row.job_id} <= set(asked.jobs()), 120, "both jobs")
    session, other = asked.jobs()[asked.session.row.job_id], asked.jobs()[of_shell]
    assert re.match(ONE_OF_FOUR, session["line"]), session
    assert (session["source"], session["virtual"], session["used"]["gpus"]) == ("reporter", True, 1)
    assert session["note"] == "It ran for less than 10 min, which is too short for advice."
    assert (other["source"], other["name"], other["state"]) == ("sacct", "hold", "COMPLETED")
    assert 300 <= other["used"]["memory_mib"] < 1000, other
    assert other["used"]["gpus"] is None
    page = asked.home()
    assert page.count(f"{of_shell} hold : completed") == 1, "one list of jobs, with what can be done"
    row = page.partition(f"{of_shell} hold : completed")[2]
    assert other["line"] in row.partition("Submit again")[0], row


def test_nobody_sees_the_jobs_of_others_or_what_accounts_did_not_use(asked: Asked) -> None:
    hub = asked.hub
    hub.login("bob")
    bobs = hub.api("POST", "/users/bob/tokens", {"note": "advice"}).body["token"]
    headers = {"Authorization": f"token {bobs}"}
    for path in ("jobs?user=alice", "unused"):
        assert hub.request("GET", f"{API}/{path}", None, headers).status == 403, path
    assert hub.request("GET", "/services/activity/unused", None, headers).status == 403


@pytest.mark.nightly
def test_after_ten_minutes_it_is_told_what_to_ask_for_and_the_form_has_a_link(site: Hub) -> None:
    found = Asked(site)
    try:
        wait_slowly(lambda: time.monotonic() - found.began > 630, 900, "ten minutes")
        found.stop()
        assert "Ask for 1 virtual GPU." in found.home()
        form = html.unescape(str(found.person.get("/hub/spawn/alice").body))
        assert "Last time with image" in form
        assert "A100 with 1 × virtual a100" in form
        assert re.search(r'href="/hub/spawn/alice\?opt-profile=a100&[^"]*opt-gpus=1', form)
    finally:
        found.forge(utilisation=0, memory=0)
        site.stop_all()
