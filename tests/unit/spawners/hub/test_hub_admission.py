"""The hub asks the ledger for the person as the hub knows them, and shared limits count all members."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import NoAccount, QuotaExceeded
from carme_hub.spawners.hub.admission import Admission, ServiceDown, running
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import Filter

ACCOUNTS = {"alice": ("physics", "teaching"), "bob": ("physics",), "eve": ()}


class BookAsKnown:
    """Who may charge what, as the test sets it."""

    known = True

    def accounts_of(self, user: str) -> tuple[str, ...]:
        return ACCOUNTS[user]


def user(name: str, *groups: Any) -> Any:
    return SimpleNamespace(name=name, admin=False, groups=list(groups))


def group(name: str, *members: str) -> Any:
    return SimpleNamespace(name=name, users=[SimpleNamespace(name=member) for member in members])


def admission(tmp_path: Path, *quotas: dict[str, object], **settings: object) -> Admission:
    engine = CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()
    quota_settings = CarmeQuotas(policy={"quotas": list(quotas)}, **settings)
    watcher: Any = SimpleNamespace(latest=None)
    book: Any = BookAsKnown()
    return Admission(quota_settings, engine, "lab", book, watcher, logging.getLogger("test"))


def request(gpus: int = 1, minutes: int = 60, account: str = "") -> Request:
    return Request("gpu", "base", Gpus("a100", gpus) if gpus else Gpus(), time_limit=minutes, account=account)


def silent(_percent: int, _text: str) -> None:
    """Take what is said during a start."""


async def test_what_is_held_is_charged_to_the_account_that_slurm_is_told(tmp_path: Path) -> None:
    asked = admission(tmp_path)
    alice = user("alice")
    assert (await asked.hold(alice, "s1", request(), silent)).account == "physics"
    assert (await asked.hold(alice, "s2", request(account="teaching"), silent)).account == "teaching"
    assert {n: b.held for n, b in (await asked.ledger.balances()).items()} == {
        "physics": GPU_HOUR,
        "teaching": GPU_HOUR,
    }


async def test_who_has_no_account_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(NoAccount, match="no Slurm account"):
        await admission(tmp_path).hold(user("eve"), "s1", request(), silent)


async def test_members_of_a_group_share_its_limit(tmp_path: Path) -> None:
    students = group("students", "alice", "bob")
    asked = admission(tmp_path, {"id": "all", "group": "students", "together": True, "concurrent_gpus": 4})
    await asked.hold(user("alice", students), "s1", request(3), silent)
    with pytest.raises(QuotaExceeded, match="students"):
        await asked.hold(user("bob", students), "s2", request(2), silent)
    await asked.hold(user("bob", students), "s3", request(1), silent)


async def test_a_role_is_known_by_its_group(tmp_path: Path) -> None:
    asked = admission(tmp_path, {"id": "guests", "role": "guest", "session_gpus": 1})
    with pytest.raises(QuotaExceeded):
        await asked.hold(user("alice", group("role:guest", "alice")), "s1", request(2), silent)
    await asked.hold(user("alice"), "s2", request(2), silent)


async def test_two_starts_at_once_cannot_spend_the_same_hour(tmp_path: Path) -> None:
    asked = admission(tmp_path, {"id": "day", "user": "*", "gpu_time": 10, "window": "day"})
    alice = user("alice")
    starts = [asked.hold(alice, f"s{n}", request(), silent) for n in range(40)]
    outcomes = await asyncio.gather(*starts, return_exceptions=True)
    assert sum(isinstance(outcome, Request) for outcome in outcomes) == 10
    assert sum(isinstance(outcome, QuotaExceeded) for outcome in outcomes) == 30


OVER = {"id": "alice-day", "user": "alice", "gpu_time": 1, "window": "day", "soft": True, "soft_qos": "low"}


async def test_over_a_soft_limit_the_start_is_warned_about_and_has_the_lower_qos(tmp_path: Path) -> None:
    asked, alice = admission(tmp_path, OVER), user("alice")
    heard: list[str] = []
    within = await asked.hold(alice, "s1", request(minutes=60), lambda _percent, text: heard.append(text))
    assert (within.qos, [text for text in heard if "should use" in text]) == ("", [])
    over = await asked.hold(alice, "s2", request(minutes=60), lambda _percent, text: heard.append(text))
    assert over.qos == "low"
    assert heard[-1] == (
        "You should use at most 1 GPU-hour a day; 1 is used or held, and this needs 1. It runs with QOS low."
    )


async def test_more_time_over_a_soft_limit_is_warned_about_and_no_other_qos_is_promised(tmp_path: Path) -> None:
    asked, alice = admission(tmp_path, OVER), user("alice")
    granted = await asked.hold(alice, "s1", request(minutes=60), silent)
    session = Session("s1", "lab", "alice", "", granted, SessionState.RUNNING, time.time())
    [warning] = await asked.extend(alice, session, 30)
    assert warning == "You should use at most 1 GPU-hour a day; 1 is used or held, and this needs 0.5."
    plain = admission(tmp_path)
    assert await plain.extend(alice, session, 30) == ()


async def test_who_has_less_priority_than_others_is_nice_to_them(tmp_path: Path) -> None:
    asked = admission(
        tmp_path,
        {"id": "students", "group": "students", "priority": 40},
        {"id": "bob", "user": "bob", "priority": 100},
    )
    students = group("students", "alice", "bob")
    for name, groups, nice in (("alice", [students], 60), ("bob", [students], 0), ("alice", [], 100)):
        held = await asked.hold(user(name, *groups), f"{name}{nice}", request(gpus=0), silent)
        assert held.nice == nice


async def test_while_the_service_is_down_gpus_are_closed_or_open_as_the_site_says(tmp_path: Path) -> None:
    closed = admission(tmp_path, fresh_for=60.0)
    closed._began = time.time() - 61
    with pytest.raises(ServiceDown, match="quotas service is not running"):
        await closed.hold(user("alice"), "s1", request(), silent)
    await closed.hold(user("alice"), "s2", request(gpus=0), silent)
    (tmp_path / "open").mkdir()
    open_ = admission(tmp_path / "open", fresh_for=60.0, when_service_down="open")
    open_._began = time.time() - 61
    await open_.hold(user("alice"), "s1", request(), silent)
    [hold] = await open_.ledger.statement(Filter())
    assert "provisionally" in hold.reason


async def test_a_hold_of_a_start_that_failed_is_given_back(tmp_path: Path) -> None:
    asked = admission(tmp_path)
    await asked.hold(user("alice"), "s1", request(), silent)
    await asked.release_hold("s1", "It never got a job.")
    await asked.release_hold("s1", "It never got a job.")
    assert (await asked.ledger.balances())["physics"].held == 0


async def test_each_account_that_could_pay_has_its_balance_by_one_look_at_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = admission(
        tmp_path,
        {"id": "grants", "account": "teaching", "needs_grant": True},
        {"id": "month", "account": "physics", "gpu_time": 20, "window": "month"},
        {"id": "not-hers", "user": "bob", "gpu_time": 1, "window": "month"},
    )
    await asked.ledger.grant("teaching", 5 * GPU_HOUR, key="k", actor="ada", reason="term")
    await asked.hold(user("alice"), "s1", request(), silent)
    looks, look = [], asked.ledger.quota_status

    async def counted(*args: Any) -> Any:
        looks.append(args)
        return await look(*args)

    monkeypatch.setattr(asked.ledger, "quota_status", counted)
    cost, left = await asked.cost(user("alice"), request(2, account="teaching"))
    assert {name: each.text for name, each in left.items()} == {"physics": "19 h left", "teaching": "5 h left"}
    assert cost is not None
    assert "5 left before, 3 after" in cost.sentence
    assert "20" not in cost.sentence, "the other account's limit has no part in it"
    assert len(looks) == 1
    # What is filled in may make no sense yet; the balances are there all the same.
    assert await asked.cost(user("alice"), None) == (None, left)


def test_jobs_of_everybody_that_run_on_gpus_count_as_running() -> None:
    def job(id: int, **more: Any) -> Job:
        return Job(id, f"j{id}", "bob", "RUNNING", Phase.ACTIVE, **{"start": 5.0, "gpus": Gpus("a100", 1), **more})

    jobs = {1: job(1), 2: job(2, gpus=Gpus()), 3: Job(3, "j3", "bob", "PENDING", Phase.WAITING, gpus=Gpus("a100", 1))}
    assert [usage.job_id for usage in running(Snapshot(1.0, 2.0, jobs))] == [1]
    assert running(None) == ()


def refused(reason: str, rule: str) -> float:
    return REGISTRY.get_sample_value("carme_quotas_refused_total", {"reason": reason, "rule": rule}) or 0.0


async def test_refusals_are_counted_among_the_hubs_metrics_by_reason_and_whose_rule_it_was(tmp_path: Path) -> None:
    known = [("gpu-time", "user"), ("session-gpus", "account"), ("no-account", "none"), ("quotas-service-down", "none")]
    before = [refused(*each) for each in known]
    desk = admission(
        tmp_path,
        {"id": "alices-own", "user": "*", "gpu_time": 2, "window": "day"},
        {"id": "physics-only", "account": "physics", "session_gpus": 1},
    )
    await desk.ledger.settle([], sessions=[])
    await desk.hold(user("alice"), "s1", request(minutes=60), silent)
    for number, wanted in enumerate((request(minutes=120), request(gpus=2, minutes=15))):
        with pytest.raises(QuotaExceeded):
            await desk.hold(user("alice"), f"s{number + 2}", wanted, silent)
    with pytest.raises(NoAccount):
        await desk.hold(user("eve"), "s4", request(), silent)
    assert [refused(*each) - was for each, was in zip(known, before, strict=True)] == [1, 1, 1, 0]
    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
    assert not [each for each in samples if "alices-own" in each.labels.values() or "alice" in each.labels.values()]
