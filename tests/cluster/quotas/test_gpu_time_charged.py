"""GPU time on a real cluster: held at the start, extended, charged to the second, given back, refused with a reason."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.hub import Hub, wait_for
from rig.truth import Record, Truth
from slurm_parts import requeue, starts

from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.sandbox.demo import DEFAULT_POLICY

HOUR = 3600


def policy_of(minutes: int) -> dict[str, object]:
    """Return a policy that leaves alice so many minutes of one GPU."""
    return {
        "quotas": [
            {"id": "alice-month", "user": "alice", "gpu_time": f"{minutes} min", "window": "month"},
            {"id": "tina-stays", "user": "tina", "may_extend": False},
        ]
    }


@pytest.fixture(scope="module", autouse=True)
def policy(site: Hub) -> Iterator[None]:
    time.sleep(25)  # two settlings: jobs from outside that ran before are charged by then
    site.wait_settled()
    # Other tests on this cluster have used some of alice's month.
    used = -sum(int(str(entry["amount"])) for entry in entries(site, user="alice") if entry["kind"] == "charge")
    site.demo.set_policy(policy_of(-(-used // 60_000) + 120))
    yield
    site.stop_all()
    site.demo.set_policy(DEFAULT_POLICY)


def entries(site: Hub, session: str = "", user: str = "") -> list[dict[str, object]]:
    """Return the ledger's entries of a session or of a user, oldest first, as the database has them."""
    database = sqlite3.connect(f"file:{site.demo.folder / 'carme-hub.sqlite'}?mode=ro", uri=True)
    try:
        database.row_factory = sqlite3.Row
        where = ("session", session) if session else ("user", user)
        return [
            dict(row) for row in database.execute(f'select * from ledger where "{where[0]}" = ? order by id', where[1:])
        ]
    finally:
        database.close()


def ended(truth: Truth, session: str) -> Record:
    records = truth.records(session) or []
    assert len(records) == 1
    return records[0]


def test_too_much_is_refused_with_the_possible_amount_and_early_ends_are_refunded(site: Hub) -> None:
    truth = Truth(site)
    refused = site.begin("alice", profile="a100", gpus=4, time_minutes=60)
    assert refused.status == 400, refused
    output = refused.body["message"]
    assert re.search(r"You may use [\d.]+ GPU-hours a calendar month", output)
    assert "4 × virtual a100 for 30 min" in output
    page = site.login("alice").post("/hub/spawn", {"profile": "a100", "a100.gpus": "4", "a100.time_minutes": "60"})
    assert page.status == 400
    assert "GPU-hours a calendar month" in str(page.body)
    assert site.open_holds() == 0, "a refused start holds nothing"

    site.start_server("alice", profile="a100", gpus=2, time_minutes=30)
    row = truth.row("alice")
    [hold] = entries(site, row.id)
    assert (hold["kind"], hold["amount"], hold["account"]) == ("hold", -2 * HOUR // 2 * 1000, "physics")
    held = site.begin("alice", "second", profile="a100", gpus=4, time_minutes=30)
    assert held.status == 400
    assert re.search(r"[\d.]+ (is|are) used or held, and this needs 2", held.body["message"])

    site.stop_server("alice")
    wait_for(lambda: [e["kind"] for e in entries(site, row.id)] == ["hold", "charge", "release"], 60, "the settling")
    _, charge, release = entries(site, row.id)
    record = ended(truth, row.id)
    assert charge["amount"] == -int(record.end - record.start) * 2 * 1000
    assert release["amount"] == -int(str(hold["amount"]))
    assert (charge["start"], charge["end"], charge["job_id"]) == (record.start, record.end, row.job_id)


def test_more_time_is_held_first_and_nobody_gets_past_a_limit_by_extending(site: Hub) -> None:
    truth = Truth(site)
    site.start_server("alice", profile="a100", gpus=1, time_minutes=30)
    row = truth.row("alice")
    more = f"/carme/sessions/{row.id}/time-limit"
    assert site.api("POST", more, {"minutes": 15}).status == 200
    limits = {
        job["id"]: site.cluster.run("squeue", "-h", "-j", job["id"], "-o", "%l").stdout.strip() for job in site.jobs()
    }
    assert limits == {str(row.job_id): "45:00"}
    assert sum(int(str(e["amount"])) for e in entries(site, row.id)) == -45 * 60 * 1000
    refused = site.api("POST", more, {"minutes": 120})
    assert refused.status == 409
    assert "GPU-hours a calendar month" in refused.body["message"]
    longest = site.api("POST", more, {"minutes": 100000})
    assert longest.status == 409
    assert "“A100” runs at most 480 minutes" in longest.body["message"]
    other_user = site.login("bob")
    assert other_user.request_api("POST", f"/hub/api{more}", {"minutes": 15}).status == 404
    assert site.api("POST", more, {"minutes": 0}).status == 400
    home = str(site.login("alice").get("/hub/home").body)
    assert "has time until" in home
    site.stop_server("alice")


def test_a_user_who_may_not_extend_gets_the_reason(site: Hub) -> None:
    site.start_server("tina", profile="a100", gpus=1, time_minutes=30)
    answer = site.api("POST", f"/carme/sessions/{Truth(site).row('tina').id}/time-limit", {"minutes": 15})
    assert answer.status == 409
    assert "may not extend" in answer.body["message"]
    site.stop_server("tina")


def test_a_job_from_outside_the_hub_is_charged_to_the_second_and_counts(site: Hub) -> None:
    cluster = site.cluster
    job = cluster.sbatch("--gres=gpu:a100:3", "--mem=50", "-J", "outside", user="bob", script="#!/bin/sh\nsleep 5\n")
    cluster.wait_job(job, "COMPLETED", within=40)
    wait_for(lambda: [e for e in entries(site, user="bob") if e["job_id"] == job], 60, "the charge")
    [charge] = [e for e in entries(site, user="bob") if e["job_id"] == job]
    text = cluster.run("sacct", "-nXP", "-j", str(job), "-o", "ElapsedRaw").stdout.strip()
    assert charge["amount"] == -int(text) * 3 * 1000
    assert charge["session"] == ""
    time.sleep(11)  # another settling
    assert len([e for e in entries(site, user="bob") if e["job_id"] == job]) == 1


def test_the_form_shows_the_price_of_a_choice(site: Hub) -> None:
    person = site.login("alice")
    ask = "/hub/api/carme/availability/alice?profile=a100&"
    answer = person.request_api("GET", ask + "gpus=4&time_minutes=240").body
    assert {name: bool(re.fullmatch(r"[\d.]+ h left", each["said"])) for name, each in answer["accounts"].items()} == {
        "physics": True,
        "teaching": True,
    }
    cost = answer["cost"]
    assert cost["state"] == "refused"
    assert cost["amount"] == 16 * GPU_HOUR
    assert cost["suggestion"]["options"]["gpus"] >= 1
    allowed = person.request_api("GET", ask + "gpus=1&time_minutes=30").body["cost"]
    assert "Costs up to 0.5 GPU-hours of physics" in allowed["sentence"]


# -- what a session may ask for itself ---------------------------------------------------------------------------------

#: Run in a cell: requests with the session's own token only.
CELL = """
import json, os, urllib.error, urllib.request
def ask(method, path, body=None):
    headers = {"Authorization": "token " + os.environ["JUPYTERHUB_API_TOKEN"], "Content-Type": "application/json"}
    headers["Idempotency-Key"] = "from-a-cell"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(%(url)r + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, None
mine = ask("GET", "/services/quotas/api/v1/remaining?session=" + os.environ["CARME_SESSION"])
print(json.dumps([mine] + [ask(*each) for each in %(asks)r]))
"""


def in_a_cell(site: Hub, user: str, *asks: tuple[object, ...]) -> list[Any]:
    """Return status and body of what is left of the user's session, and of each further request."""
    kernel = site.new_kernel(user)
    printed = site.run_cell(user, kernel, CELL % {"url": site.demo.url, "asks": asks})
    assert printed.startswith("["), printed
    return list(json.loads(printed))


def test_a_cell_reads_what_its_session_has_left_and_its_token_does_nothing_else(site: Hub) -> None:
    truth = Truth(site)
    site.start_server("alice", profile="a100", gpus=2, time_minutes=30)
    site.start_server("bob", profile="cpu")
    theirs, rest = truth.row("bob").id, "/services/quotas/api/v1/"
    give = {"account": "physics", "gpu_hours": "1", "reason": "from a cell"}
    forbidden = [
        ("GET", f"{rest}remaining?session={theirs}"),
        *(("GET", rest + path) for path in ("standing", "statement", "requests", "accounts", "report", "policy")),
        ("POST", f"{rest}grants", give),
        ("POST", f"{rest}requests", give),
        ("GET", "/services/quotas/"),
        ("POST", "/services/reservations/api/v1/bookings", give),
        ("POST", "/services/reservations/api/v1/maintenance", give),
        ("GET", "/hub/api/users"),
        ("GET", "/hub/api/users/bob"),
        ("POST", "/hub/api/users/alice/tokens", {"note": "more"}),
        ("POST", "/hub/api/users/alice/servers/second", {}),
        ("DELETE", "/hub/api/users/alice/server"),
    ]
    (status, mine), (_, me), *others = in_a_cell(site, "alice", ("GET", "/hub/api/user"), *forbidden)
    assert status == 200
    assert (mine["session"], mine["account"], mine["state"]) == (truth.row("alice").id, "physics", "running")
    assert 30 * 60 - 90 < mine["seconds"] < 30 * 60
    limit = json.loads(site.demo.policy_file.read_text())["quotas"][0]["gpu_time"]
    taken = [int(str(entry["amount"])) for entry in entries(site, user="alice") if entry["kind"] != "grant"]
    left = int(limit.split()[0]) * 60_000 + sum(taken)
    assert (mine["left"], mine["budget_seconds"]) == (left, left // 2000)
    assert sorted(me["scopes"]) == [
        "access:servers!server=alice/",
        "access:services!service=quotas",
        "access:services!service=reservations",
        "custom:carme:quota:read:session",
        "custom:carme:reservation:read",
        *(f"read:users:{part}!user=alice" for part in ("activity", "groups", "name")),  # every token says whose it is
        "users:activity!user=alice",
    ]
    assert [
        (ask[1], answer[0]) for ask, answer in zip(forbidden, others, strict=True) if answer[0] not in (403, 404)
    ] == []
    assert others[0][0] == 403
    site.stop_server("alice")
    site.stop_server("bob")


# -- to the second, whatever happens -----------------------------------------------------------------------------------


def accounted(site: Hub, job: int) -> list[tuple[int, int]]:
    """Return start and end of each incarnation of a job, in epoch seconds, as ``sacct -D`` has them."""
    words = ("-nDXP", "-j", str(job), "-o", "Start,End")
    done = site.cluster.run("/usr/bin/env", "SLURM_TIME_FORMAT=%s", site.cluster.command("sacct"), *words)
    return sorted((int(start), int(end)) for start, end in (line.split("|") for line in done.stdout.splitlines()))


def charged(site: Hub, user: str, job: int) -> list[tuple[int, int, int]]:
    """Return start, end and amount of each charge for a job."""
    mine = [entry for entry in entries(site, user=user) if entry["job_id"] == job and entry["kind"] == "charge"]
    return sorted((int(str(e["start"])), int(str(e["end"])), int(str(e["amount"]))) for e in mine)


def test_a_job_that_was_requeued_three_times_pays_once_for_each_time_it_ran(site: Hub) -> None:
    cluster = site.cluster
    words = ("--gres=gpu:a100:2", "--mem=50", "--requeue", "-J", "again")
    job = cluster.sbatch(*words, user="bob", script="#!/bin/sh\nsleep 300\n")
    cluster.wait_job(job, "RUNNING")
    for incarnation in (1, 2, 3):
        requeue(cluster, job, "bob", incarnation)
    cluster.wait_for(lambda: starts(cluster, job) == 4)
    time.sleep(1.2)  # accounting has whole seconds
    cluster.run("scancel", str(job), user="bob")
    wait_for(lambda: len(charged(site, "bob", job)) == 4, 60, "four charges")
    ran = accounted(site, job)
    assert len(set(ran)) == 4
    assert all(start < end for start, end in ran)
    assert charged(site, "bob", job) == [(start, end, -(end - start) * 2 * 1000) for start, end in ran]
    time.sleep(11)  # another settling
    assert len(charged(site, "bob", job)) == 4


def environment_of_the_service(site: Hub) -> dict[str, str]:
    """Return the environment of the quotas service that the hub runs."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            environ = (path / "environ").read_bytes().decode()
        except OSError:
            continue
        if b"carme_hub.services.quotas" in words and str(site.demo.folder) in environ:
            return dict(line.split("=", 1) for line in environ.split("\0") if "=" in line)
    raise AssertionError("the service does not run")


def test_a_hub_in_another_zone_and_locale_charges_the_same_seconds(site: Hub) -> None:
    cluster, truth = site.cluster, Truth(site)
    names = subprocess.run(["/usr/bin/locale", "-a"], capture_output=True, text=True, check=True).stdout.split()
    strange = next((name for name in names if not name.startswith(("C", "POSIX", "en"))), "POSIX")
    words = ("--gres=gpu:a100:1", "--mem=50", "-J", "across")
    across = cluster.sbatch(*words, user="bob", script="#!/bin/sh\nsleep 300\n")
    cluster.wait_job(across, "RUNNING")
    try:
        site.restart(TZ="Pacific/Chatham", LC_ALL=strange)
        service = environment_of_the_service(site)
        assert (service["TZ"], service["LC_ALL"]) == ("Pacific/Chatham", strange)
        site.start_server("alice", profile="a100", gpus=1, time_minutes=15)
        row = truth.row("alice")
        cluster.run("scancel", str(across), user="bob")
        site.stop_server("alice")
        wait_for(lambda: charged(site, "bob", across) and charged(site, "alice", row.job_id), 60, "the charges")
    finally:
        site.restart()
    for user, job in (("bob", across), ("alice", row.job_id)):
        [(start, end)] = accounted(site, job)
        assert start < end
        assert charged(site, user, job) == [(start, end, -(end - start) * 1000)]
    time.sleep(11)  # a settling in the usual zone finds nothing new
    assert [len(charged(site, user, job)) for user, job in (("bob", across), ("alice", row.job_id))] == [1, 1]
