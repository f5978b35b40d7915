"""GPU time through the real hub and proxy: a user, a teacher who owns an account, an administrator, and their jobs."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from rig import rest
from rig.hub import Hub, wait_for

from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.sandbox import Cluster

ROOT = "/services/quotas/api/v1/"


class Rest(rest.Rest):
    """REST as one user, with the user's token."""

    def __init__(self, hub: Hub, user: str) -> None:
        super().__init__(hub, user, ROOT)

    def account(self, name: str) -> dict[str, Any]:
        return next(each for each in self.get("standing")["accounts"] if each["name"] == name)


@pytest.fixture(scope="module")
def people(site: Hub) -> dict[str, Rest]:
    return {user: Rest(site, user) for user in ("alice", "bob", "tina", "ada")}


def test_everybody_sees_their_own_gpu_time(people: dict[str, Rest]) -> None:
    alice = people["alice"].get("standing")
    assert [each["name"] for each in alice["accounts"]] == ["physics", "teaching"]
    assert [each["name"] for each in people["bob"].get("standing")["accounts"]] == ["physics"]
    assert [each["name"] for each in people["tina"].get("accounts")["accounts"]] == ["teaching"]
    seen = {each["name"]: each for each in people["ada"].get("accounts")["accounts"]}
    assert {"physics", "teaching"} <= seen.keys()
    assert {"alice", "tina"} <= {member["user"] for member in seen["teaching"]["members"]}
    assert people["alice"].get("accounts")["accounts"] == []


def test_the_administrator_grants_gpu_time_that_the_student_sees(people: dict[str, Rest]) -> None:
    assert people["ada"].send("settle", {}).status == 200  # nothing of other tests is charged meanwhile
    before = people["alice"].account("teaching")["balance"]
    body = {"account": "teaching", "gpu_hours": "1.5", "reason": "for the course"}
    for who in ("alice", "tina"):  # tina owns the account, and makes nothing out of nothing
        assert people[who].send("grants", body).status == 403
    key = uuid.uuid4().hex
    answers = [people["ada"].send("grants", body, key) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200], answers
    assert answers[0].body == answers[1].body
    after = people["alice"].account("teaching")["balance"]
    assert after["limit"] == before["limit"] + 3 * GPU_HOUR // 2
    assert after["left"] == after["limit"] - after["used"] - after["held"]


def test_a_request_is_approved_by_the_teacher_or_above_a_limit_by_the_administrator(
    people: dict[str, Rest],
) -> None:
    (teaching,) = people["tina"].get("accounts")["accounts"]
    may = teaching["owners_approve_left"]
    assert 0 < may <= teaching["owners_approve"] == 20 * GPU_HOUR
    for hours, who in ((2, "tina"), (20, "ada")):
        body = {"account": "teaching", "gpu_hours": hours, "reason": "the last exercise"}
        asked = people["alice"].send("requests", body)
        assert asked.status == 200, asked
        id = asked.body["id"]
        assert id in [each["id"] for each in people["tina"].get("requests?state=open")["requests"]]
        if who == "ada":
            refused = people["tina"].send(f"requests/{id}/decision", {"decision": "approve"})
            assert (refused.status, refused.body["error"]) == (409, "no-source")
        assert people[who].send(f"requests/{id}/decision", {"decision": "approve"}).body["granted"] == hours * GPU_HOUR
        known = people["alice"].get("requests")["requests"]
        assert [(each["state"], each["decided_by"]) for each in known if each["id"] == id] == [("approved", who)]
    (teaching,) = people["tina"].get("accounts")["accounts"]
    assert teaching["owners_approve_left"] == may - 2 * GPU_HOUR


def test_a_job_from_outside_the_hub_is_charged_to_the_second_and_slurm_agrees(
    people: dict[str, Rest], cluster: Cluster
) -> None:
    job = cluster.sbatch("--gres=gpu:a100:2", "-A", "teaching", "--mem=50", user="alice", script="#!/bin/sh\nsleep 3\n")
    cluster.wait_job(job, "COMPLETED", within=40)
    found: list[dict[str, Any]] = []

    def charged() -> bool:
        done = people["ada"].send("settle", {})
        assert done.status == 200, done
        lines = people["alice"].get("statement?account=teaching&kind=charge")["entries"]
        found[:] = [line for line in lines if line["job_id"] == job]
        return bool(found)

    wait_for(charged, 20, "the charge")
    (line,) = found
    row = cluster.run("sacct", "-D", "-X", "-n", "-P", "-j", str(job), "-o", "ElapsedRaw").stdout.split()
    assert line["amount"] == -int(row[0]) * 2 * 1000
    assert (line["gpus"], line["user"], line["end"] - line["start"]) == ("a100:2", "alice", int(row[0]))
    compared = people["ada"].send("reconciliation", {})
    assert (compared.status, compared.body["difference"]) == (200, 0), compared
    rows = people["ada"].get("report?by=user")["rows"]
    assert any(each["name"] == "alice" and each["jobs"] >= 1 for each in rows)
    assert not [each for each in people["bob"].get("statement")["entries"] if each["job_id"] == job]


def test_a_browser_needs_the_token_against_forged_requests(people: dict[str, Rest], site: Hub) -> None:
    assert people
    ada = site.login("ada")
    page = ada.get("/services/quotas/")
    assert page.status == 200
    body = json.dumps({"account": "teaching", "gpu_hours": 1, "reason": "from the page"})
    headers = {"Content-Type": "application/json", "Idempotency-Key": uuid.uuid4().hex, "Sec-Fetch-Mode": "cors"}
    assert ada._send("POST", ROOT + "grants", body, headers).status == 401
    answer = ada._send("POST", ROOT + "grants", body, {**headers, "X-XSRFToken": ada.cookies["_xsrf"]})
    assert answer.status == 200, answer


def test_nobody_gets_in_without_a_login(site: Hub) -> None:
    assert site.request("GET", ROOT + "standing").status == 401
    assert site.request("GET", ROOT + "openapi.json").body["openapi"] == "3.1.0"
    assert site.request("GET", ROOT + "health").body["settling"] is True


def test_the_service_comes_back_with_a_hub_that_was_killed(people: dict[str, Rest], site: Hub) -> None:
    before = people["alice"].account("teaching")["balance"]
    site.kill()
    site.start()
    assert people["alice"].account("teaching")["balance"] == before


def test_the_document_and_the_service_agree(people: dict[str, Rest], tmp_path: Path) -> None:
    config = f'headers = {{ Authorization = "token ${{CARME_TEST_TOKEN}}" }}\n[checks]\n{rest.EXPECTED}\n'
    rest.check_document(people["ada"], tmp_path, config, "--max-examples", "5")
