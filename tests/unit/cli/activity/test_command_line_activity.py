"""``carme-hub activity``: finished jobs with advice, and what accounts did not use, as tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from rig.forged_http import ForgedHandler, ForgedServer, run, serving

from carme_hub.cli.activity.command import JobsApp, UnusedApp
from carme_hub.services.activity.rest import models_finished as models
from carme_hub.services.activity.rest.finished import JobsQuery, UnusedQuery

TOKEN = "of-alice"
PART = {"gpu_hours": 8.0, "gpu_hours_unused": 3.0, "gpu_hours_unknown": 4.0, "gpu_busy": 20.0}
CPU = {"cpu_hours": 32.0, "cpu_hours_unused": 26.0, "cpu_hours_unknown": 0.0}
MEMORY = {"memory_gib_hours": 9.0, "memory_gib_hours_unused": 0.0, "memory_gib_hours_unknown": 9.0}
SUMS: dict[str, Any] = {"jobs": 2, **PART, **CPU, **MEMORY}
JOB: dict[str, Any] = {
    **{"job_id": 3, "shown_id": "3_1", "session": "", "name": "train", "image": "", "working_folder": "/home/a"},
    **{"account": "lab", "partition": "gpu", "state": "OUT_OF_MEMORY", "submitted": 0, "started": 0, "ended": 4000},
    **{"source": "sacct", "virtual": False, "line": "Memory: 8 GiB of 8 GiB at most.", "note": "", "sooner": None},
    "suggestion": "It ran out of memory: ask for more than 8 GiB, such as 12 GiB.",
    "asked": {"gpus": 0, "gpu_type": "", "nodes": 1, "cpus": 1, "memory_mib": 8192, "minutes": 60},
    "used": {
        **{"gpus": None, "gpu_utilisation": None, "gpu_memory_mib": None, "nodes": 1, "cpus": 1.0, "cpus_most": None},
        **{"memory_mib": 8192, "seconds": 4000},
    },
}


class ForgedActivity(ForgedServer):
    """Answers as the activity service does, with documents of its models."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.jobs: list[dict[str, Any]] = [JOB]
        self.status = 200

    def answer(self, path: str, query: dict[str, str]) -> Any:
        if path == "jobs":
            JobsQuery.model_validate(query)
            return models.FinishedJobsOut(user="alice", jobs=self.jobs).model_dump(mode="json")  # type: ignore[arg-type]
        UnusedQuery.model_validate(query)
        weeks = [{"week": 1_795_996_800, **SUMS}]
        one = {"account": query.get("account", "physics"), "total": SUMS, "weeks": weeks}
        return models.AccountsUnusedOut(accounts=[one]).model_dump(mode="json")  # type: ignore[list-item]


class _Handler(ForgedHandler):
    server: ForgedActivity

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if self.headers["Authorization"] != f"token {TOKEN}":
            self.say(401, {"error": "unauthorized", "message": "Log in."})
        elif self.server.status != 200:
            self.say(self.server.status, {"error": "not-yours", "message": "These are other people's jobs."})
        else:
            path = parts.path.removeprefix("/services/activity/api/v1/")
            self.say(200, self.server.answer(path, dict(parse_qsl(parts.query))))


@pytest.fixture
def activity(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForgedActivity]:
    with serving(ForgedActivity()) as found:
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", TOKEN)
        monkeypatch.setenv("JUPYTERHUB_API_URL", f"{found.address}/hub/api")
        monkeypatch.delenv("JUPYTERHUB_PUBLIC_HUB_URL", raising=False)
        monkeypatch.setenv("COLUMNS", "100")
        yield found


def test_jobs_are_listed_with_what_to_ask_for(activity: ForgedActivity, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(JobsApp, "--days", "7") == 0
    head, line, suggestion = capsys.readouterr().out.splitlines()
    assert head.startswith("3_1  train  out of memory  1970-01-01 ")
    assert head.endswith("after 1 h 6 min")
    assert line == "  Memory: 8 GiB of 8 GiB at most."
    assert suggestion == "  It ran out of memory: ask for more than 8 GiB, such as 12 GiB."
    activity.jobs = [{**JOB, "suggestion": ""}]
    assert run(JobsApp, "--advice") == 0
    assert capsys.readouterr().out == "No job with a suggestion has ended in the last 30 days.\n"
    assert run(JobsApp, "--json") == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["job_id"] == 3


def test_what_was_not_used_is_a_table_and_unknown_is_not_zero(
    activity: ForgedActivity, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(UnusedApp, "--weeks", "4") == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == [
        *("Account", "Jobs", "GPU-h", "unused", "unknown", "busy", "CPU-h", "unused", "unknown", "GiB-h"),
        *("unused", "unknown"),
    ]
    assert row.split() == [
        *("physics", "2", "8.0", "3.0", "4.0", "20", "%", "32.0", "26.0", "0.0", "9.0", "unknown", "9.0"),
    ]
    assert run(UnusedApp, "physics") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("2026-11-30")
    assert run(UnusedApp, "--json") == 0
    assert json.loads(capsys.readouterr().out)["accounts"][0]["total"]["gpu_hours_unknown"] == 4.0


def test_a_refusal_is_the_services_sentence(activity: ForgedActivity, capsys: pytest.CaptureFixture[str]) -> None:
    activity.status = 403
    assert run(JobsApp, "--user", "bob") == 1
    assert "These are other people's jobs." in capsys.readouterr().err


@pytest.mark.parametrize(("app", "argv"), [(JobsApp, ("x",)), (UnusedApp, ("a", "b"))])
def test_arguments_that_nobody_asked_for_are_said(
    activity: ForgedActivity, capsys: pytest.CaptureFixture[str], app: Any, argv: tuple[str, ...]
) -> None:
    assert run(app, *argv) != 0
    assert "usage: carme-hub activity" in capsys.readouterr().err
