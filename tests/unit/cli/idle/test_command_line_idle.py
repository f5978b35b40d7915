"""``carme-hub idle replay`` and ``report`` on a site's database, in words and in JSON."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from rig.command_line import CommandLine, line

from carme_hub.cli.idle.replay import ReplayApp
from carme_hub.cli.idle.report import ReportApp
from carme_hub.domain.activity.minutes import GpuMinute, Minute
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.store.activity import ActivityStore, Report
from carme_hub.store.engine import CarmeStore
from carme_hub.store.idle import ENDED, WARNED, IdleEvent, IdleStore
from carme_hub.store.sessions import SessionStore

__all__ = ["line"]
POLICY = "zone: Europe/Berlin\nidle:\n  - {after: 30 min, warn: [10 min], action: stop}\n"
HOURS = 2


@pytest.fixture
def site(line: CommandLine) -> CommandLine:
    """A session of alice that was idle for two hours until a short time ago, and then ended by the hub."""
    begun = int(time.time()) // 60 * 60 - HOURS * 3600 - 600
    ended = float(begun + HOURS * 3600)
    engine = CarmeStore(url=line.url).open()
    request = Request("a100", "base", Gpus("a100", 2), account="physics", time_limit=240)
    row = Session("one", "lab", "alice", "", request, SessionState.ENDED, float(begun), node="n1")
    SessionStore(engine).add(row.replace(started=float(begun), ended=ended))
    minutes = tuple(
        Minute(begun + 60 * number, 60, cpu=1.0, gpus=(GpuMinute(0.0),), kernels=0, terminals=0, runs=0)
        for number in range(60 * HOURS)
    )
    ActivityStore(engine, "lab").record([Report("one", "n1", minutes)])
    IdleStore(engine, "lab").add(IdleEvent("one", ended - 300, WARNED, 300))
    IdleStore(engine, "lab").add(IdleEvent("one", ended, ENDED))
    engine.dispose()
    return line


@pytest.fixture
def policy(tmp_path: Path) -> str:
    file = tmp_path / "new.yaml"
    file.write_text(POLICY)
    return str(file)


def test_a_policy_is_tried_before_it_is_in_force(site: CommandLine, policy: str) -> None:
    code, out, _ = site.run(ReplayApp, "--policy", policy)
    assert code == 0
    assert "alice" in out
    assert "GPU-hours given back" in out
    assert "1 sessions ran." in out
    found = site.json(ReplayApp, "--policy", policy)
    [one] = found["sessions"]
    assert (one["user"], one["action"], one["false_alarm"], one["gpus"]) == ("alice", "stop", False, 2)
    assert 2 * 80 * 60 < one["given_back"] <= 2 * 90 * 60
    assert found["months"][0]["given_back"] == one["given_back"]
    assert found["counted"] == {"sessions": 1, "not_measured": 0, "minutes": 120, "unknown_minutes": 0}


def test_a_policy_without_idle_rules_or_a_wrong_time_is_an_error(site: CommandLine, policy: str) -> None:
    code, _, err = site.run(ReplayApp)
    assert (code, "the policy has no rules on idle sessions" in err) == (2, True)
    code, _, err = site.run(ReplayApp, "--policy", policy, "--from", "2026-10-02", "--to", "2026-10-01")
    assert (code, "--to must be after --from" in err) == (2, True)
    Path(policy).write_text("idle: [{after: 5 min, action: stop}]")
    code, _, err = site.run(ReplayApp, "--policy", policy)
    assert (code, "give 10 minutes or more" in err) == (2, True)


def test_a_time_before_what_is_kept_is_said(site: CommandLine, policy: str) -> None:
    code, out, err = site.run(ReplayApp, "--policy", policy, "--from", "2020-01-01", "--to", "2020-01-31")
    assert code == 0
    assert "kept for 90 days" in err
    assert "No session would have been ended." in out


def test_the_report_says_what_was_given_back(site: CommandLine) -> None:
    code, out, _ = site.run(ReportApp)
    assert code == 0
    assert out.splitlines()[0].split() == [
        *("month", "ended", "GPU-hours", "given", "back", "false", "alarms", "warned", "still", "here"),
    ]
    assert out.splitlines()[1].split()[1:] == ["1", "4", "0", "1", "0"]
    found = site.json(ReportApp, "--months", "2")
    assert [end["given_back"] for end in found["ends"]] == [2 * 2 * 3600]
    assert (found["months"][0]["ended"], found["months"][0]["gpu_seconds"]) == (1, 4 * 3600)


def test_a_site_without_idle_sessions_has_an_empty_report(line: CommandLine) -> None:
    assert line.run(ReportApp)[1] == "No session was idle for as long as a rule says.\n"
