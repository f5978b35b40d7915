"""Before maintenance: affected users can continue elsewhere at once, or stop with a refund."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from rig.hub import Hub, Person, wait_for
from rig.rest import Rest, clear_calendar, wait_for_calendar

from carme_hub.sandbox.demo import DEFAULT_POLICY

ROOT = "/services/reservations/api/v1/"
MINUTE = 60


@pytest.fixture(autouse=True)
def one_session_at_a_time(site: Hub) -> Iterator[None]:
    """Limit alice to one session at a time, so that the hold of the first one would block the next."""
    wait_for_calendar(site)
    site.wait_settled()  # alice's sessions of other files would count
    site.demo.set_policy({"quotas": [{"id": "one", "user": "alice", "sessions": 1}]})
    yield
    site.stop_all()
    site.demo.set_policy(DEFAULT_POLICY)
    clear_calendar(site)


def job_of(site: Hub, user: str) -> dict[str, str]:
    (row,) = [row for row in site.jobs() if row["user"] == user]
    return row


def node_of(site: Hub, user: str) -> str:
    return site.cluster.run("squeue", "-h", "-j", job_of(site, user)["id"], "-o", "%N").stdout.strip()


def minutes_of(site: Hub, user: str) -> int:
    """Return the time limit of a user's job."""
    output = site.cluster.run("squeue", "-h", "-j", job_of(site, user)["id"], "-O", "TimeLimit").stdout.strip()
    return (
        int(output.split(":")[0])
        if output.count(":") == 1
        else int(output.split(":")[0]) * 60 + int(output.split(":")[1])
    )


def entries(site: Hub, session: str) -> list[dict[str, Any]]:
    database = sqlite3.connect(f"file:{site.demo.folder / 'carme-hub.sqlite'}?mode=ro", uri=True)
    try:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute("select * from ledger where session = ? order by id", (session,))]
    finally:
        database.close()


def set_maintenance(site: Hub, node: str) -> None:
    """Set a maintenance window on a node, in ten minutes, as an administrator does; wait until Slurm has it."""
    start = int(time.time()) + 10 * MINUTE
    body = {"nodes": [node], "start": start, "end": start + 60 * MINUTE, "title": "New disks"}
    answer = Rest(site, "ada", ROOT).send("maintenance", body)
    assert answer.status == 200, answer
    names = set(answer.body["maintenance"]["slurm"])
    there = ("scontrol", "show", "reservation", "--oneliner")
    wait_for(lambda: all(name in site.cluster.run(*there).stdout for name in names), 60, "the window in Slurm")


def form(person: Person, what: str) -> str:
    """Return the address of a form on a user's home page, when it appears."""
    found: list[str] = []

    def offered() -> bool:
        found[:] = re.findall(rf'action="(/hub/carme/sessions/[0-9a-f-]+/{what})"', str(person.get("/hub/home").body))
        return bool(found)

    wait_for(offered, 60, f"the offer to {what}")
    return found[0]


def test_an_affected_user_continues_elsewhere_or_stops_with_a_refund(site: Hub) -> None:
    alice, bob = site.login("alice"), site.login("bob")
    assert "carme-way-choices" not in str(alice.get("/hub/home").body)
    site.start_server("alice", "work", profile="a100", gpus=1, time_minutes=60)
    site.start_server("bob", profile="a100", gpus=1, time_minutes=60)
    before, first = node_of(site, "alice"), job_of(site, "alice")["name"].removeprefix("carme-")
    set_maintenance(site, before)

    move = form(alice, "move")
    output = unescape(str(alice.get("/hub/home").body))
    assert f"Maintenance of {before} begins at" in output
    assert "Stop now, with a refund…" in output
    assert "Another node has room for it, so it starts again at once." in output
    answer = alice.post(move, {})
    assert (answer.status, answer.headers.get("Location")) == (303, "/hub/spawn-pending/alice/work"), answer
    site.wait_server("alice", "work")
    assert node_of(site, "alice") != before
    assert 50 <= minutes_of(site, "alice") < 60, "what was left of its hour"
    assert first != job_of(site, "alice")["name"].removeprefix("carme-")
    assert alice.post(move, {}).status == 404, "asked again, nothing is done"
    assert len([row for row in site.jobs() if row["user"] == "alice"]) == 1

    there, second = node_of(site, "bob"), job_of(site, "bob")["name"].removeprefix("carme-")
    if there != before:
        set_maintenance(site, there)
    stop = form(bob, "make-way")
    other_user = bob.post(stop.replace(second, job_of(site, "alice")["name"].removeprefix("carme-")), {})
    assert other_user.status == 404
    answer = bob.post(stop, {})
    assert (answer.status, answer.headers.get("Location")) == (303, "/hub/home"), answer
    output = unescape(str(bob.get("/hub/home").body))
    assert f"topped for maintenance of {there}. The GPU time that it used is refunded." in output

    wait_for(lambda: "release" in {each["kind"] for each in entries(site, second)}, 60, "bob's settling")
    (charge,) = [each for each in entries(site, second) if each["kind"] == "charge"]
    (refund,) = [each for each in entries(site, second) if each["key"].startswith("refund:")]
    assert refund["amount"] == -charge["amount"] > 0
    assert refund["reason"] == "refunded: its user stopped it for maintenance of the node"
    shown = unescape(str(bob.get("/services/quotas/").body))
    assert "Refunded: its user stopped it for maintenance of the node." in shown, shown[:2000]
    wait_for(lambda: "release" in {each["kind"] for each in entries(site, first)}, 60, "alice's settling")
    assert not [each for each in entries(site, first) if each["key"].startswith("refund:")], "who goes on pays"
    assert sum(each["amount"] for each in entries(site, first) if each["kind"] in ("hold", "release")) == 0
