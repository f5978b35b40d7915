"""A policy is tried on what is stored of sessions, and the report has what the hub has done; on a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carme_hub.activity.idle.report import idle_report
from carme_hub.activity.idle.trial import IdleTrial, TrialMonth, try_idle_rules
from carme_hub.domain.activity.minutes import GpuMinute, Minute
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.quotas.idle.rules import Action
from carme_hub.domain.quotas.policy import parse_policy
from carme_hub.domain.quotas.rules import Person
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.store.activity import ActivityStore, Report
from carme_hub.store.engine import CarmeStore
from carme_hub.store.idle import ENDED, HERE, WARNED, IdleEvent, IdleStore
from carme_hub.store.sessions import SessionStore

START = 1_800_000_000
RULES = {"idle": [{"group": "exempt", "action": "none"}, {"after": "30 min", "warn": ["10 min"], "action": "stop"}]}
QUIET = Minute(START, 60, cpu=1.0, gpus=(GpuMinute(0.0), GpuMinute(0.0)), kernels=0, terminals=0, runs=0)


class Lab:
    """Sessions that have ended, with their minutes."""

    def __init__(self, engine: Any) -> None:
        self.sessions, self.activity = SessionStore(engine), ActivityStore(engine, "lab")
        self.events = IdleStore(engine, "lab")

    def ran(self, id: str, line: str, user: str = "alice", *, begun: int = START, **changes: Any) -> Session:
        """Store a session with a minute for each character: "." idle, "#" at work."""
        request = Request("a100", "base", Gpus("a100", 2), account="physics", time_limit=240)
        ended = float(begun + 60 * len(line))
        row = Session(id, "lab", user, "", request, SessionState.ENDED, float(begun), node="n1", started=float(begun))
        row = row.replace(**{"ended": ended, **changes})
        self.sessions.add(row)
        minutes = tuple(
            replace(QUIET, at=begun + 60 * number, kernels=int(each == "#")) for number, each in enumerate(line)
        )
        if minutes:
            self.activity.record([Report(id, "n1", minutes)])
        return row

    def tried(self, people: dict[str, Person] | None = None, since: float = START - 1) -> IdleTrial:
        parts = self.sessions, self.activity, "lab", parse_policy(RULES), people or {}
        return try_idle_rules(*parts, since, START + 86400.0)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    engine = CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()
    yield Lab(engine)
    engine.dispose()


def test_a_policy_is_tried_on_what_is_kept_when_minutes_are_dropped(lab: Lab) -> None:
    lab.ran("left", "." * 120)
    lab.ran("back", "." * 36 + "#" * 30, user="bob")
    lab.ran("busy", "#" * 120, user="cem")
    lab.ran("bare", "", user="dan", ended=START + 3600.0)
    before = lab.tried()
    lab.activity.prune(START + 86400.0, 0.0)
    assert lab.activity.minutes(["left"], 0) == {}
    found = lab.tried()
    assert found == before
    assert [(each.session.id, each.outcome.is_false_alarm) for each in found.tried] == [("left", False), ("back", True)]
    left = found.tried[0]
    assert left.given_back == 2 * (START + 7200 - left.outcome.at)
    total = left.given_back + found.tried[1].given_back
    assert found.months == (TrialMonth("2027-01", 2, int(total), 1),)
    assert (found.sessions, found.unmeasured, found.minutes, found.unknown) == (4, 1, 306, 0)


def test_groups_count_and_companions_are_no_sessions_of_their_own(lab: Lab) -> None:
    lab.ran("left", "." * 120)
    lab.ran("beside", "", parent="left", ended=START + 7200.0)
    assert lab.tried().tried == (), "it had a companion all the time"
    lab.ran("alone", "." * 120, user="bob")
    assert [each.session.id for each in lab.tried().tried] == ["alone"]
    assert lab.tried({"bob": Person("bob", frozenset({"exempt"}))}).tried == ()


def test_what_was_due_before_the_time_is_no_part_of_it(lab: Lab) -> None:
    lab.ran("left", "." * 120)
    assert lab.tried(since=START + 3600.0).tried == ()
    assert lab.tried(since=START + 3600.0).sessions == 1
    assert lab.tried().tried[0].outcome.action is Action.STOP


def test_the_report_has_what_the_hub_has_done_by_month(lab: Lab) -> None:
    lab.ran("one", "." * 60)
    lab.ran("two", "#", begun=START + 3600 + 300)
    for kind, at in ((WARNED, 50), (WARNED, 55), (HERE, 56), (ENDED, 60)):
        lab.events.add(IdleEvent("one", START + 60.0 * at, kind))
    lab.events.add(IdleEvent("nobody knows", START + 60.0, ENDED))
    lab.ran("stopped", "." * 60, user="bob", end_reason="Stopped by its user, who was faster.")
    lab.events.add(IdleEvent("stopped", START + 3600.0, ENDED, about={"reason": "It was idle for 30 min."}))
    found = idle_report(lab.events, lab.sessions, "lab", "UTC", START - 1.0, START + 86400.0)
    [month] = found.months
    assert (month.month, month.ended, month.false_alarms, month.warned, month.kept) == ("2027-01", 1, 1, 1, 1)
    assert month.gpu_seconds == 2 * 3 * 3600
    assert idle_report(lab.events, lab.sessions, "lab", "UTC", 0.0, 1.0).months == []
