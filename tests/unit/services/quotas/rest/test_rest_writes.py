"""REST that writes: once for each key, by those who may, with who, for whom and why in the log."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from forged_rest import NOW, POLICY_NOW, PREFIX, Service, charge, used
from jupyterhub.services.auth import HubOAuth
from tornado.web import create_signed_value

from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.store.ledger.writes import Anomaly

GRANT = {"account": "teaching", "gpu_hours": "2.5", "reason": "for the course"}


async def granted(service: Service, account: str = "teaching") -> int:
    return int((await service.ledger.balances([account]))[account].granted)


# -- once ---------------------------------------------------------------------------------------------------------


async def test_an_administrator_gives_an_account_gpu_time(service: Service) -> None:
    answer = await service.post("grants", "ada", GRANT)
    assert answer.status == 200, answer.text
    (entry,) = answer.json["entries"]
    assert (entry["amount"], entry["actor"], entry["reason"]) == (9_000_000, "ada", "for the course")
    assert await granted(service) == 9_000_000
    assert [(action, actor, about["account"]) for action, actor, about in service.written] == [
        ("grants", "ada", "teaching")
    ]


async def test_the_same_request_again_is_given_the_same_answer_and_done_once(service: Service) -> None:
    first = await service.post("grants", "ada", GRANT)
    again = await service.post("grants", "ada", dict(reversed(GRANT.items())))
    assert (again.status, again.json) == (first.status, first.json)
    assert (await granted(service), len(service.written)) == (9_000_000, 1)


async def test_a_key_that_stands_for_another_request_is_refused(service: Service) -> None:
    await service.post("grants", "ada", GRANT)
    for path, body in (("grants", {**GRANT, "reason": "another"}), ("transfers", _transfer())):
        answer = await service.post(path, "ada", body)
        assert (answer.status, answer.json["error"]) == (422, "key-used")
    assert await granted(service) == 9_000_000


async def test_a_key_is_its_users_own(service: Service) -> None:
    await service.post("grants", "ada", GRANT)
    assert (await service.post("grants", "giver", GRANT)).status == 200
    assert await granted(service) == 18_000_000


async def test_ten_at_the_same_moment_with_one_key_give_once(service: Service) -> None:
    answers = await asyncio.gather(*(service.post("grants", "ada", GRANT) for _ in range(10)))
    assert {answer.status for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert await granted(service) == 9_000_000


async def test_a_key_whose_request_was_refused_may_be_used_for_the_right_one(service: Service) -> None:
    wrong = await service.post("grants", "ada", {**GRANT, "account": "nix"})
    assert (wrong.status, "no Slurm account nix" in wrong.json["message"]) == (404, True)
    assert (await service.post("grants", "ada", GRANT)).status == 200


@pytest.mark.parametrize("key", ["", "a b", "ä", "x" * 101])
async def test_a_write_without_a_proper_key_is_refused(service: Service, key: str) -> None:
    answer = await service.ask("grants", "ada", method="POST", body=GRANT, key=key)
    assert (answer.status, "Idempotency-Key" in answer.json["message"]) == (400, True)


async def test_what_is_written_is_an_event_with_who_for_whom_and_why(service: Service) -> None:
    stream = io.StringIO()
    service.config.EventLogger.handlers = [logging.StreamHandler(stream)]
    await service.post("grants", "ada", {**GRANT, "user": "alice"})
    await service.post("transfers", "tina", _transfer(), "k2")
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["__schema__"] for event in events] == ["urn:carme-hub:gpu-time-written"] * 2
    wanted = {"action": "grants", "actor": "ada", "account": "teaching", "user": "alice", "gpu_hours": "2.5"}
    assert wanted.items() <= events[0].items()
    assert (events[0]["reason"], events[1]["account"], events[1]["target"]) == ("for the course", "teaching", "physics")


# -- bodies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"gpu_hours": "0.0001"}, "gpu_hours"),
        ({"gpu_hours": -1}, "gpu_hours"),
        ({"gpu_hours": 2.5}, "gpu_hours"),
        ({"gpu_hours": "NaN"}, "gpu_hours"),
        ({"gpu_hours": True}, "gpu_hours"),
        ({"reason": "  "}, "reason"),
        ({"account": "../x"}, "account"),
        ({"expires": "1"}, "expires"),
        ({"amount": 5}, "amount"),
    ],
)
async def test_a_body_that_makes_no_sense_is_refused_with_its_field(
    service: Service, change: dict[str, Any], field: str
) -> None:
    answer = await service.post("grants", "ada", {**GRANT, **change})
    assert (answer.status, answer.json["error"]) == (400, "bad-request")
    assert field in answer.json["message"]


@pytest.mark.parametrize("body", ["", "{", "[]", "null", "[" * 5000, '"x"'])
async def test_what_is_no_object_is_refused(service: Service, body: str) -> None:
    assert (await service.post("grants", "ada", body)).status == 400


async def test_a_body_that_is_not_said_to_be_json_is_refused(service: Service) -> None:
    answer = await service.ask(
        "grants", "ada", method="POST", body="a=1", key="k", headers={"Content-Type": "text/plain"}
    )
    assert answer.status == 415


# -- who may ------------------------------------------------------------------------------------------------------


async def test_an_owners_token_for_reading_writes_nothing(service: Service) -> None:
    answer = await service.post("transfers", "looker", _transfer())
    assert answer.status == 403
    assert "custom:carme:quota:manage" in answer.json["message"]
    assert service.written == []


async def test_nobody_makes_gpu_time_out_of_nothing_without_the_scope_for_it(service: Service) -> None:
    for who in ("alice", "tina", "olga", "namesake"):  # tina owns the account
        answer = await service.post("grants", who, GRANT)
        assert answer.status == 403
        assert "custom:carme:quota:grant" in answer.json["message"]
    assert (service.written, await granted(service)) == ([], 0)


async def test_gpu_time_is_moved_away_only_by_who_owns_it(service: Service) -> None:
    await service.post("grants", "ada", GRANT, "one")
    taken = await service.post("transfers", "tina", {**_transfer(), "source": "physics", "target": "teaching"})
    assert taken.status == 403
    moved = await service.post("transfers", "tina", _transfer())
    assert [entry["amount"] for entry in moved.json["entries"]] == [-GPU_HOUR, GPU_HOUR]
    too_much = await service.post("transfers", "tina", {**_transfer(), "gpu_hours": 5}, "two")
    assert (too_much.status, too_much.json["error"]) == (409, "not-enough-left")


async def test_a_request_is_approved_once_by_an_administrator(service: Service) -> None:
    asked = await service.post("requests", "alice", {**GRANT, "gpu_hours": 4})
    id = asked.json["id"]
    assert [each["id"] for each in (await service.ask("requests?state=open", "tina")).json["requests"]] == [id]
    assert (await service.ask("requests", "bob")).json["requests"] == []
    answer = {"decision": "approve", "gpu_hours": 3, "reason": "three will do"}
    assert (await service.post(f"requests/{id}/decision", "alice", answer, "k2")).status == 403
    done = await service.post(f"requests/{id}/decision", "ada", answer)
    assert (done.json["state"], done.json["granted"], done.json["decided_by"]) == ("approved", 3 * GPU_HOUR, "ada")
    late = await service.post(f"requests/{id}/decision", "tina", {"decision": "deny"})
    assert (late.status, late.json["error"]) == (409, "decided")
    assert await granted(service) == 3 * GPU_HOUR
    entry = (await service.ask("statement?account=teaching&kind=grant", "tina")).json["entries"][0]
    assert "asked for by alice: for the course (three will do)" in entry["reason"]


async def test_an_owner_approves_out_of_another_account_of_theirs_and_out_of_nothing_never(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = (await service.post("requests", "alice", {**GRANT, "gpu_hours": 4})).json["id"]
    path, approve = f"requests/{id}/decision", {"decision": "approve"}
    refused = await service.post(path, "tina", approve, "k1")
    assert (refused.status, refused.json["error"]) == (409, "no-source")
    assert "ask an administrator" in refused.json["message"]
    assert (await service.post(path, "tina", {**approve, "source": "physics"}, "k2")).json["error"] == "not-yours"
    assert (await service.post(path, "tina", {**approve, "source": "teaching"}, "k3")).json["error"] == "not-granted"
    monkeypatch.setattr(service.associations, "coordinates", lambda user: ("physics", "teaching") * (user == "tina"))
    poor = await service.post(path, "tina", {**approve, "source": "physics"}, "k4")
    assert (poor.json["error"], await granted(service)) == ("not-enough-left", 0)
    await service.post("grants", "ada", {**GRANT, "account": "physics", "gpu_hours": 5})
    for _ in range(2):
        done = await service.post(path, "tina", {**approve, "source": "physics"}, "k5")
        assert (done.status, done.json["granted"]) == (200, 4 * GPU_HOUR)
    assert (await granted(service), await granted(service, "physics")) == (4 * GPU_HOUR, GPU_HOUR)


async def test_an_owner_approves_what_the_policy_lets_owners_approve(service: Service) -> None:
    rule = {"quotas": [{"id": "heads", "account": "teaching", "owners_approve": 5}]}
    Path(service.settings.policy_file).write_text(json.dumps(rule))
    for hours, status, left in ((4, 200, 1), (2, 409, 1), (1, 200, 0)):
        id = (await service.post("requests", "alice", {**GRANT, "gpu_hours": hours}, f"r{hours}")).json["id"]
        done = await service.post(f"requests/{id}/decision", "tina", {"decision": "approve"}, f"d{hours}")
        assert done.status == status, done.json
        (teaching,) = (await service.ask("accounts", "tina")).json["accounts"]
        assert (teaching["owners_approve"], teaching["owners_approve_left"]) == (5 * GPU_HOUR, left * GPU_HOUR)
    assert await granted(service) == 5 * GPU_HOUR


async def test_a_denied_request_gives_nothing(service: Service) -> None:
    id = (await service.post("requests", "alice", GRANT)).json["id"]
    done = await service.post(f"requests/{id}/decision", "tina", {"decision": "deny", "reason": "no"})
    assert (done.json["state"], done.json["answer"], await granted(service)) == ("denied", "no", 0)


async def test_requests_are_for_accounts_that_one_may_charge_and_not_too_many(service: Service) -> None:
    assert (await service.post("requests", "bob", GRANT)).json["error"] == "no-account"
    for number in range(5):
        assert (await service.post("requests", "alice", GRANT, f"k{number}")).status == 200
    assert (await service.post("requests", "alice", GRANT, "k9")).status == 409
    assert (await service.post("requests/0123456789abcdef/decision", "ada", {"decision": "deny"})).status == 404


# -- forged requests ----------------------------------------------------------------------------------------------


async def test_a_cookie_alone_changes_nothing(service: Service) -> None:
    secret = service.app.settings["cookie_secret"]
    cookie = create_signed_value(secret, HubOAuth.instance().cookie_name, "ada").decode()
    headers = {"Cookie": f"{HubOAuth.instance().cookie_name}={cookie}", "Sec-Fetch-Mode": "cors"}
    forged = await service.ask("grants", method="POST", body=GRANT, key="k", headers=headers)
    assert (forged.status, await granted(service)) == (401, 0)
    # The page's own requests carry the token that it was given.
    page = await service.ask(PREFIX, headers={**headers, "Sec-Fetch-Mode": "navigate"})
    token = re.search(r"_xsrf=([^;]+)", page.headers["Set-Cookie"])
    assert token is not None
    own = {**headers, "Cookie": headers["Cookie"] + f"; _xsrf={token[1]}", "X-Xsrftoken": token[1]}
    answer = await service.ask("grants", method="POST", body=GRANT, key="k", headers=own)
    assert (answer.status, await granted(service)) == (200, 9_000_000)


# -- administration -----------------------------------------------------------------------------------------------


async def test_a_policy_is_switched_on_by_who_saw_the_one_before(service: Service) -> None:
    before = (await service.ask("policy", "ada")).json
    tighter = {"quotas": [{"id": "day", "user": "*", "gpu_time": 1, "window": "day"}]}
    body = {"policy": tighter, "stamp": before["stamp"], "reason": "exam week"}
    done = await service.ask("policy", "ada", method="PUT", body=body, key="k1")
    assert done.status == 200, done.text
    assert [quota["id"] for quota in done.json["policy"]["quotas"]] == ["day"]
    assert service.policy().quotas[0].id == "day"
    late = await service.ask("policy", "ada", method="PUT", body={**body, "policy": POLICY_NOW}, key="k2")
    assert (late.status, late.json["error"]) == (409, "policy-changed")
    note = await service.ledger.note("policy")
    assert note is not None
    assert (note.actor, note.value["reason"]) == ("ada", "exam week")


async def test_a_policy_that_is_none_is_refused_with_its_place(service: Service) -> None:
    body = {"policy": {"quotas": [{"id": "x", "gpu_tme": 1}]}, "stamp": "0" * 64, "reason": "x"}
    answer = await service.ask("policy", "ada", method="PUT", body=body, key="k1")
    assert (answer.status, answer.json["error"]) == (409, "bad-policy")
    assert "quotas[0]" in answer.json["message"]


async def test_an_anomaly_is_charged_or_left_by_a_person(service: Service) -> None:
    seen = {"job": "7", "gpus": "a100:2", "start": int(NOW) - 7200, "end": int(NOW), "session": ""}
    seen |= {"partition": "gpu", "qos": "normal", "nodes": "n1"}
    with service.ledger.context.store.transaction("lab") as writes:
        for job in (7, 8):
            writes.add_anomalies([Anomaly(f"long:lab:{job}:5", "long", "lab", NOW, job, 5, "physics", "bob", seen)])
    ids = [each["id"] for each in (await service.ask("anomalies", "ada")).json["anomalies"]]
    said = {"decision": "charge", "reason": "it ran"}
    assert (await service.post(f"anomalies/{ids[0]}/decision", "ada", said)).json["settled_by"] == "ada"
    nothing = {"decision": "ignore", "reason": "the clock stepped"}
    assert (await service.post(f"anomalies/{ids[1]}/decision", "ada", nothing, "k2")).status == 200
    again = await service.post(f"anomalies/{ids[1]}/decision", "ada", said, "k3")
    assert (again.status, again.json["error"]) == (409, "decided")
    assert (await service.ledger.balances(["physics"]))["physics"].used == 4 * GPU_HOUR
    assert (await service.ask("anomalies", "ada")).json["anomalies"] == []
    assert len((await service.ask("anomalies?settled=true", "ada")).json["anomalies"]) == 2
    assert (await service.post("anomalies/99/decision", "ada", said, "k4")).status == 404


async def test_a_comparison_with_slurm_is_run_and_kept(service: Service) -> None:
    assert (await service.ask("reconciliation", "olga")).json["at"] == 0
    done = await service.post("reconciliation", "ada", {"start": int(NOW) - 60, "end": int(NOW)})
    assert (done.status, done.json["difference"]) == (200, 0)
    assert (await service.ask("reconciliation", "olga")).json == done.json
    assert (await service.post("reconciliation", "ada", {"start": int(NOW), "end": int(NOW)}, "k2")).status == 409


async def test_slurm_that_does_not_answer_is_said_without_its_words(service: Service) -> None:
    service.settlement.silent = True
    answer = await service.post("settle", "ada", {})
    assert (answer.status, answer.json["error"]) == (503, "slurm")
    assert "secret" not in answer.text
    service.settlement.silent = False
    assert (await service.post("settle", "ada", {})).status == 200


async def test_a_policy_is_tried_on_what_was_used(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    used(service, charge(1))
    body = {"policy": POLICY_NOW, "start": int(NOW), "end": int(NOW)}
    assert (await service.ask("replay", "ada", method="POST", body=body)).status == 409
    assert (await service.ask("replay", "tina", method="POST", body=body)).status == 403


def _transfer() -> dict[str, object]:
    return {"source": "teaching", "target": "physics", "gpu_hours": 1, "reason": "a loan"}
