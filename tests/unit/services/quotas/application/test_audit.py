"""Whatever a person writes about GPU time, by whichever door, is told once: who, for whom, why. What failed is not."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from forged_login import Site, logged_in, running
from forged_rest import NOW, POLICY_NOW, Service
from traitlets.config import Config

from carme_hub.accounting.audit import audit_records
from carme_hub.accounting.requests import Requests
from carme_hub.accounting.settings import CarmeQuotas, write_policy
from carme_hub.accounting.slurm_limits import MIRRORED
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR, SYSTEM_ACTOR, Entry, Kind
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.policy import parse_policy
from carme_hub.errors import ConfigError
from carme_hub.services.quotas.application import policies
from carme_hub.services.quotas.application.audit import Audit
from carme_hub.store.ledger.writes import Anomaly, CommittedChanges, Note

POLICY = "zone: Europe/Berlin\nquotas:\n- {id: day, user: '*', gpu_time: 20, window: day}\n"
SEEN = {"job": "7", "gpus": "a100:2", "start": int(NOW) - 7200, "end": int(NOW), "session": "", "partition": "gpu"}


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch, POLICY, audit_file=str(tmp_path / "audit.jsonl")) as found:
        yield found


def events(folder: Path) -> list[dict[str, Any]]:
    """Return what is in the audit file, without the envelope."""
    file = folder / "audit.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("__") and k != "taskName"} for line in lines]


def anomaly(ledger: Any) -> int:
    with ledger.context.store.transaction("lab") as writes:
        seen = {**SEEN, "qos": "normal", "nodes": "n1"}
        writes.add_anomalies([Anomaly("long:lab:7:5", "long", "lab", NOW, 7, 5, "physics", "bob", seen)])
    with ledger.context.store.reading("lab") as reads:
        return int(reads.anomalies()[0].id)


# -- REST -------------------------------------------------------------------------------------------------------------


async def test_each_write_by_rest_is_one_event(service: Service, tmp_path: Path) -> None:
    asked = {"gpu_hours": "2.5", "reason": "why"}
    one = anomaly(service.ledger)
    for path, who, body in (
        ("grants", "ada", {"account": "teaching", "user": "alice", **asked}),
        ("transfers", "tina", {"source": "teaching", "target": "physics", **asked}),
        ("corrections", "ada", {"account": "teaching", "direction": "take", **asked}),
        ("requests", "alice", {"account": "physics", **asked}),
        (f"anomalies/{one}/decision", "ada", {"decision": "charge", "reason": "it ran"}),
        ("reconciliation", "ada", {"start": int(NOW) - 60, "end": int(NOW)}),
    ):
        for _ in range(2):
            answer = await service.post(path, who, body, path.replace("/", "-"))
            assert answer.status == 200, answer.text
    (request,) = (await service.ask("requests", "alice")).json["requests"]
    answer = await service.post(f"requests/{request['id']}/decision", "ada", {"decision": "approve", "reason": "yes"})
    assert answer.status == 200, answer.text
    stamp = (await service.ask("policy", "ada")).json["stamp"]
    body = {"policy": {**POLICY_NOW, "currency": "USD"}, "stamp": stamp, "reason": "dollars"}
    assert (await service.ask("policy", "ada", method="PUT", body=body, key="p")).status == 200
    door = {"door": "service"}
    assert events(tmp_path) == [
        {"action": "grants", "actor": "ada", "account": "teaching", "user": "alice", **asked, **door},
        {"action": "transfers", "actor": "tina", "account": "teaching", "target": "physics", **asked, **door},
        {"action": "corrections", "actor": "ada", "account": "teaching", "direction": "take", **asked, **door},
        {"action": "requests", "actor": "alice", "account": "physics", "user": "alice", "id": request["id"]}
        | {**asked, **door},
        {"action": "anomalies/{id}/decision", "actor": "ada", "account": "physics", "user": "bob", "id": str(one)}
        | {"decision": "charge", "gpu_hours": "4", "reason": "it ran", **door},
        {"action": "reconciliation", "actor": "ada", **door},
        {"action": "requests/{id}/decision", "actor": "ada", "account": "physics", "user": "alice"}
        | {"id": request["id"], "decision": "approved", "gpu_hours": "2.5", "reason": "yes", **door},
        {"action": "policy", "actor": "ada", "reason": "dollars", **door},
    ]


async def test_what_was_refused_or_failed_is_not_told_as_done(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"gpu_hours": "2.5", "reason": "why"}
    move = {"source": "teaching", "target": "physics", **asked}
    assert (await service.post("transfers", "tina", move)).status == 409
    assert (await service.post("anomalies/9/decision", "ada", {"decision": "ignore", "reason": "x"})).status == 404

    def full(*_anything: object) -> None:
        raise ConfigError("the disk is full")

    monkeypatch.setattr(policies, "write_policy", full)
    stamp = (await service.ask("policy", "ada")).json["stamp"]
    body = {"policy": {**POLICY_NOW, "currency": "USD"}, "stamp": stamp, "reason": "dollars"}
    assert (await service.ask("policy", "ada", method="PUT", body=body, key="p")).status == 409
    assert events(tmp_path) == []
    assert await policies.history(service) == []


# -- pages ------------------------------------------------------------------------------------------------------------


async def nothing_runs() -> set[int]:
    """Answer for the controller."""
    return set()


async def test_each_form_is_one_event_once_it_is_confirmed(site: Site, tmp_path: Path) -> None:
    root, alice = await logged_in(site, "root"), await logged_in(site, "alice")
    hours, one = {"hours": "2.5", "reason": "why"}, anomaly(site.ledger)
    assert (await alice.post("requests", account="physics", key="r", **hours)).code == 303
    (request,) = await Requests(site.ledger).all()
    forms: list[tuple[str, dict[str, str]]] = [
        ("accounts/teaching/grants", {"key": "g", "user": "", "expires": "", **hours}),
        ("accounts/teaching/transfers", {"key": "t", "target": "physics", **hours, "hours": "1"}),
        ("accounts/teaching/corrections", {"key": "c", "direction": "add", "user": "", "day": "", **hours}),
        (f"requests/{request.id}", {"decision": "deny", "hours": "", "reason": "no"}),
        (f"administration/anomalies/{one}", {"decision": "ignore", "reason": "the clock"}),
    ]
    actions = ["requests"]
    assert [each["action"] for each in events(tmp_path)] == actions
    for path, form in forms:
        assert (await root.post(path, **form)).code == 200
        assert [each["action"] for each in events(tmp_path)] == actions
        answer = await root.post(path, **form, confirmed="yes")
        assert answer.code == 303, answer.body
        actions.append(path.removeprefix("accounts/teaching/"))
        actions[-1] = {"requests": "requests/{id}/decision", "administration": "anomalies/{id}/decision"}.get(
            path.split("/")[0], actions[-1]
        )
        assert [each["action"] for each in events(tmp_path)] == actions
    stamp = policies.current_policy(site.service).stamp
    switch = {"policy": POLICY.replace("20", "5"), "reason": "less", "stamp": stamp}
    assert (await root.post("administration/policy/switch", **switch)).code == 303
    site.service.settlement._live_job_ids = nothing_runs  # type: ignore[method-assign]
    assert (await root.post("administration/reconcile", days="1")).code == 303
    found = events(tmp_path)
    assert [(each["action"], each["actor"]) for each in found[len(actions) :]] == [
        ("policy", "root"),
        ("reconciliation", "root"),
    ]
    assert (found[1]["account"], found[1]["gpu_hours"], found[1]["reason"]) == ("teaching", "2.5", "why")
    assert (found[5]["decision"], found[5]["user"], found[5]["reason"]) == ("ignore", "bob", "the clock")


# -- what nobody typed into a form ------------------------------------------------------------------------------------


async def test_a_policy_that_is_edited_by_hand_is_told_once_with_the_files_owner(site: Site, tmp_path: Path) -> None:
    assert not await policies.record_manual_edits(site.service)
    assert events(tmp_path) == []
    file = tmp_path / "policy.yaml"
    write_policy(file, parse_policy({"quotas": []}))
    assert await policies.record_manual_edits(site.service)
    assert not await policies.record_manual_edits(site.service)
    (event,) = events(tmp_path)
    assert (event["action"], event["actor"]) == ("policy", f"file:{file.owner()}")
    assert event["reason"] == "the file was changed by hand"
    file.write_text("nonsense: 1\n")
    assert not await policies.record_manual_edits(site.service)
    stamp = policies.current_policy(site.service).stamp
    await policies.activate(site.service, POLICY, stamp=stamp, actor="root", reason="back")
    assert not await policies.record_manual_edits(site.service)
    assert [each["actor"] for each in events(tmp_path)] == [event["actor"], "root"]


def test_limits_written_to_slurm_are_told_with_which() -> None:
    def told(changed: list[str]) -> list[str]:
        note = Note(MIRRORED, 1.0, "ada", {"written": {}, "changed": changed})
        return [each.details["limits"] for each in audit_records(CommittedChanges(notes=[note]))]

    assert told(["account physics MaxJobs=3", "qos low GrpTRES=gres/gpu=4"]) == [
        "account physics MaxJobs=3; qos low GrpTRES=gres/gpu=4"
    ]
    assert told([]) == []


async def test_what_rules_write_is_no_event(service: Service, tmp_path: Path) -> None:
    await service.ledger.grant("physics", GPU_HOUR, key="g", actor="ada", reason="x", expires=NOW + 60)
    service.now += 120
    assert len(await service.ledger.expire()) == 1
    assert [each["action"] for each in events(tmp_path)] == ["grants"]


async def test_a_doubt_that_solved_itself_is_no_decision_and_what_a_person_says_of_it_later_is(
    service: Service, tmp_path: Path
) -> None:
    def job(id: int, end: float = NOW - 3600, account: str = "teaching") -> Usage:
        state = ("COMPLETED", Phase.TERMINAL) if end else ("RUNNING", Phase.ACTIVE)
        who = (id, str(id), "train", "alice", account, "gpu", "normal", *state)
        return Usage(*who, NOW - 7300, NOW - 7200, end, (Gpus("a100", 1),))

    assert (await service.ledger.settle([job(7, 0)], sessions=[], live=())).flagged
    assert len((await service.ledger.settle([job(id) for id in range(7, 28)], sessions=[], live=())).charged) == 21
    (found,) = await service.ledger.anomalies(settled=True)
    assert found.settled_by == SYSTEM_ACTOR
    assert events(tmp_path) == []
    assert (await service.ledger.settle([job(7, NOW - 1800, "physics")], sessions=[], live=())).flagged
    (found,) = await service.ledger.anomalies()
    await service.ledger.decide_anomaly(found.id, actor="ada", decision="it moved", seconds=5400)
    (event,) = events(tmp_path)
    assert (event["actor"], event["id"], event["decision"]) == ("ada", str(found.id), "charge")
    assert event["gpu_hours"] == "0.5"  # more than before: physics owes 1.5, teaching gets 1 back


def test_a_decision_is_told_with_what_was_charged_for_it_alone() -> None:
    def found(kind: str, job: int, by: str = "ada") -> Anomaly:
        key = f"{kind}:lab:{job}:5"
        return Anomaly(key, kind, "lab", NOW, job, 5, "physics", "bob", {}, NOW, by, "why", job)

    def entry(key: str, hours: int, kind: Kind = Kind.CHARGE) -> Entry:
        return Entry(key, kind, "lab", "physics", -hours * GPU_HOUR, NOW)

    def hours(*decided: Anomaly) -> list[tuple[str, str, str]]:
        told = audit_records(CommittedChanges(entries, decided=decided))
        return [(each.details["id"], each.details["decision"], each.details.get("gpu_hours", "")) for each in told]

    back = entry("changed:lab:8:5:back", -1, Kind.CORRECTION)
    entries = [
        entry("charge:lab:7:5", 2),
        entry("changed:lab:8:5", 4, Kind.CORRECTION),
        back,
        entry("charge:lab:9:5", 8),
    ]
    both = (found("long", 7), found("changed", 8))
    assert hours(*both, found("runaway", 9, SYSTEM_ACTOR)) == [("7", "charge", "2"), ("8", "charge", "3")]
    assert hours(found("long", 6)) == [("6", "ignore", "")]


# -- the file ---------------------------------------------------------------------------------------------------------


async def test_only_its_owner_reads_the_file_and_rotating_it_loses_nothing(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    body = {"account": "teaching", "gpu_hours": "1", "reason": "why"}
    await service.post("grants", "ada", body, "one")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.rename(tmp_path / "audit.1")
    await service.post("grants", "ada", body, "two")
    assert (len((tmp_path / "audit.1").read_text().splitlines()), len(events(tmp_path))) == (1, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_a_file_that_root_begins_belongs_to_who_owns_the_folder(service: Service, tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    await service.ledger.grant("physics", GPU_HOUR, key="g", actor="ada", reason="x")
    assert (tmp_path / "audit.jsonl").stat().st_uid == 12345


async def test_an_event_that_cannot_be_written_stops_no_write_and_stands_in_the_log(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    body = {"account": "teaching", "gpu_hours": "1", "reason": "why"}
    assert (await service.post("grants", "ada", body)).status == 200
    assert "No audit event for grants by ada" in caplog.text


async def test_what_cannot_be_put_into_words_is_no_failed_write(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wordless(_done: CommittedChanges) -> None:
        raise KeyError("a note of another release")

    monkeypatch.setattr("carme_hub.services.quotas.application.audit.audit_records", wordless)
    body = {"account": "teaching", "gpu_hours": "1", "reason": "why"}
    assert (await service.post("grants", "ada", body)).status == 200
    assert "No audit event" in caplog.text
    assert "a note of another release" in caplog.text


def test_the_events_name_their_door(tmp_path: Path) -> None:
    kept = CarmeQuotas(audit_file=str(tmp_path / "audit.jsonl"))
    audit = Audit(Config(), kept, kept.log, "command-line")
    audit(CommittedChanges(notes=[Note("policy", 1.0, "ada", {"reason": "x"})]))
    assert events(tmp_path) == [{"action": "policy", "actor": "ada", "door": "command-line", "reason": "x"}]
