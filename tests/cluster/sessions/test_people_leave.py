"""alice leaves a real hub on a real Slurm: listed, ended, recorded; twice changes nothing; she cannot come back."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rig.hub import Hub, wait_for
from rig.rest import Rest, clear_calendar, wait_for_calendar

CALENDAR, QUOTAS = "/services/reservations/api/v1/", "/services/quotas/api/v1/"


class Leaving:
    """alice has a session that bob may use, a job of sbatch, a token, a booking and a request; ada administers."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.alice = hub.login("alice")
        hub.login("ada")
        self.token = hub.api("POST", "/users/ada/tokens", {"note": "offboarding"}).body["token"]
        self.script = hub.api("POST", "/users/alice/tokens", {"note": "my script"}).body["token"]
        hub.start_server("alice", profile="a100", gpus=1, cpus=1, memory_gib=2, time_minutes=30)
        hub.login("bob")
        shared = hub.api("POST", "/shares/alice/", {"user": "bob"}, token=self.token)
        code = hub.api("POST", "/share-codes/alice/", {}, token=self.token)
        assert (shared.status, code.status) == (200, 200), (shared, code)
        self.job = hub.cluster.sbatch("--mem=50", "-J", "train", user="alice", script="#!/bin/sh\nsleep 600\n")
        start = int(time.time()) // 3600 * 3600 + 2 * 86_400
        asks = {"title": "Lab", "gpu_type": "h100", "gpus": 1, "start": start, "end": start + 3600}
        booked = Rest(hub, "alice", CALENDAR).send("bookings", asks)
        assert booked.status == 200, booked
        self.booking = booked.body["bookings"][0]["id"]
        wanted = {"account": "physics", "gpu_hours": 5, "reason": "Runs"}
        assert Rest(hub, "alice", QUOTAS).send("requests", wanted).status == 200

    def command(self, *argv: str) -> dict[str, Any]:
        """Return ``carme-hub users`` as the hub's user, with ada's token, as arguments of ``subprocess``."""
        demo = self.hub.demo
        more = ["--config", str(demo.config_file)] if argv[0] == "offboard" else []
        line = [f"{demo.environment}/bin/carme-hub", "users", *argv, *more]
        environ = {**demo._environment(), "JUPYTERHUB_API_URL": demo.url, "JUPYTERHUB_API_TOKEN": self.token}
        return {"args": line, "env": environ, "cwd": "/", "user": demo.user, "group": demo.user, "extra_groups": []}

    def run(self, *argv: str) -> tuple[int, str, str]:
        done = subprocess.run(**self.command(*argv), capture_output=True, text=True, check=False, timeout=400)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    def parts(self, *argv: str) -> tuple[int, dict[str, dict[str, Any]]]:
        code, out, err = self.run("offboard", "alice", "--json", *argv)
        assert out, err
        return code, {one["part"]: one for one in json.loads(out)["parts"]}

    def jobs(self) -> set[str]:
        return {row["name"] for row in self.hub.cluster.squeue("-t", "PD,R,CG", "-u", "alice")}

    def acts(self) -> list[dict[str, Any]]:
        lines = (self.hub.demo.folder / "audit.jsonl").read_text().splitlines()
        every = [json.loads(line) for line in lines]
        return [one for one in every if one.get("action", "").endswith("-user") and one["target"] == "alice"]


@pytest.fixture(scope="module")
def leaving(site: Hub) -> Iterator[Leaving]:
    wait_for_calendar(site)
    clear_calendar(site)
    site.wait_settled()
    found = Leaving(site)
    try:
        yield found
    finally:
        found.run("unlock", "alice", "--reason", "The test is over")
        site.cluster.run("scancel", "-u", "alice", check=False)
        site.stop_all()
        clear_calendar(site)


def test_a_dry_run_lists_everything_and_changes_nothing(leaving: Leaving) -> None:
    before = leaving.jobs()
    code, parts = leaving.parts("--dry-run")
    assert code == 0, parts
    assert {name for name, one in parts.items() if one["state"] == "left"} == {
        *("access", "sessions", "jobs", "bookings", "shares", "tokens", "requests", "holds"),
    }
    kept = [item["what"] for part in ("jobs", "folders", "hub user") for item in parts[part]["items"] if item["kept"]]
    assert f"job {leaving.job} (train), " in " ".join(kept)
    assert any(word.endswith("/alice") for word in kept), kept
    assert any("my script" in item["what"] for item in parts["tokens"]["items"])
    assert leaving.jobs() == before
    server = leaving.hub.server("alice")
    assert server is not None
    assert server["ready"]
    assert leaving.acts() == []


def test_what_a_silent_slurm_would_know_is_unknown(leaving: Leaving) -> None:
    leaving.hub.cluster.processes.signal("slurmctld", signal.SIGSTOP)
    try:
        code, parts = leaving.parts("--dry-run")
    finally:
        leaving.hub.cluster.processes.signal("slurmctld", signal.SIGCONT)
    assert (code, parts["jobs"]["state"]) == (1, "unknown"), parts
    assert len(parts["sessions"]["items"]) == 1, "the hub knows its sessions"


def test_all_of_it_ends_and_is_recorded_and_a_second_run_changes_nothing(leaving: Leaving) -> None:
    hub = leaving.hub
    words = ("offboard", "alice", "--reason", "Her contract has ended", "--yes", "--all-jobs")
    first = subprocess.Popen(**leaving.command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: any(act["action"] == "lock-user" for act in leaving.acts()), 60, "the lock")
    finally:
        first.kill()
        first.wait()
    code, parts = leaving.parts(*words[2:])
    assert code == 0, parts
    assert {one["state"] for one in parts.values()} == {"done"}
    assert (hub.server("alice"), leaving.jobs(), hub.open_holds()) == (None, set(), 0)
    booking = Rest(hub, "ada", CALENDAR).get(f"bookings/{leaving.booking}")
    assert (booking["state"], booking["reason"]) == ("cancelled", "Her contract has ended")
    assert hub.api("GET", "/users/alice/tokens").body["api_tokens"] == []
    assert hub.api("GET", "/user", token=leaving.script).status == 403
    for path in ("/shares/alice", "/share-codes/alice", "/users/bob/shared"):
        assert hub.api("GET", path, token=leaving.token).body["items"] == [], path
    assert 'name="password"' in str(leaving.alice.get("/hub/home").body), "her browser is at the login again"
    acts = leaving.acts()
    assert (acts[0]["action"], acts[0]["actor"], acts[0]["reason"]) == (
        "offboard-user",
        "ada",
        "Her contract has ended",
    )
    assert [act["action"] for act in acts].count("lock-user") == 1
    assert {act["outcome"] for act in acts} == {"done"}

    code, again = leaving.parts("--reason", "x", "--yes", "--all-jobs")
    assert (code, {one["ended"] for one in again.values()}) == (0, {0})
    assert leaving.acts() == acts


def test_she_cannot_come_back_until_somebody_unlocks_her(leaving: Leaving) -> None:
    hub = leaving.hub
    password = hub.cluster.passwords["alice"]
    assert leaving.alice.login(password).status == 403
    hub.restart()
    assert leaving.alice.login(password).status == 403, "also after a restart"
    assert "alice" in leaving.run("locked")[1]
    wait_for_calendar(hub)  # it restarts with the hub, and is unknown until then
    code, parts = leaving.parts("--reason", "She is gone", "--yes", "--remove")
    assert (code, parts["hub user"]["ended"]) == (0, 1), parts
    assert hub.api("GET", "/users/alice").status == 404
    assert leaving.alice.login(password).status == 403, "deleted is not let in again"
    assert leaving.run("unlock", "alice", "--reason", "A new contract")[0] == 0
    assert leaving.alice.login(password).status in (200, 302, 303)
