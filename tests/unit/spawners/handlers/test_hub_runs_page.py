"""The hub's page of runs shows what a session has sent, with what the hub knows better, and takes nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2 import ChoiceLoader, DictLoader, Environment, FileSystemLoader
from pydantic import ValidationError

from carme_hub.spawners.handlers.pages import templates_path
from carme_hub.spawners.handlers.runs import MAX_RUNS, STATES, RunList, matching
from carme_hub.spawners.home.runs import LOST, shown_runs

NOW = 1_795_000_000.0


def row(id: str = "r1", **more: Any) -> dict[str, Any]:
    plain = {"id": id, "name": id, "state": "finished", "label": "Finished", "began": NOW - 600, "took": 420.0}
    facts = {"ranks": 4, "gpus": 4, "nodes": ["n1", "n2"], "gpu_seconds": 1800.0, "scalars": {"loss": 0.25}}
    return RunList.model_validate({"runs": [{**plain, **facts, **more}]}).model_dump()["runs"][0]  # type: ignore[no-any-return]


def shown(one: dict[str, Any], jobs: dict[str, Any] | None = None, sessions: tuple[str, ...] = ()) -> Any:
    [found] = shown_runs([one], jobs or {}, sessions, NOW)
    return found


def test_a_run_is_said_in_words_for_people() -> None:
    found = shown(row(virtual=True, progress=[30, 100], scalars={"loss": 0.123456, "bad": "nan"}))
    assert (found.size, found.took, found.gpu_hours) == ("4 ranks, 4 virtual GPUs, 2 nodes", "7 min", "0.50")
    assert (found.progress, found.scalars) == ("30 of 100", ("loss 0.1235", "bad nan"))
    assert shown(row(took=12_000)).took == "3 h 20 min"
    fast = shown(row(speed="step 30 of 100, 90 samples/s", progress=[30, 100]))
    assert (fast.progress, ("Speed", "step 30 of 100, 90 samples/s") in fast.facts) == ("", True), "it has both"
    cpu = shown(row(ranks=1, gpus=0, nodes=["n1"], progress=[None, None], took=0))
    assert (cpu.size, cpu.gpu_hours, cpu.progress, cpu.took) == ("1 rank, 1 node", "", "", "")


RUNS = {"state": "running", "label": "Running", "session": "s"}
WAITS = {"state": "waiting", "label": "Waiting", "submitted": True}
IS_BATCH = {**RUNS, "submitted": True}
FAILED = {"state": "failed", "label": "Failed", "reason": "Rank 1", "submitted": True}


@pytest.mark.parametrize(
    ("sent", "job", "sessions", "found"),
    [
        (RUNS, None, ("s",), ("running", "Running", "")),
        (RUNS, None, (), ("lost", LOST, "")),
        ({**RUNS, "session": ""}, None, (), ("running", "Running", "")),
        (WAITS, ("ending", "It is being cancelled."), (), ("stopping", "Stopping", "It is being cancelled.")),
        (WAITS, ("running", ""), (), ("running", "Running", "")),
        (WAITS, ("waiting", "You are next."), (), ("waiting", "Waiting", "You are next.")),
        (IS_BATCH, ("ended", ""), (), ("finished", "Finished", "")),
        (IS_BATCH, ("ended", "No."), (), ("failed", "Ended", "No.")),
        (IS_BATCH, None, (), ("running", "Running", "")),
        (FAILED, ("running", ""), (), ("failed", "Failed", "Rank 1")),
    ],
)
def test_what_may_have_changed_since_is_what_the_hub_knows(
    sent: dict[str, Any], job: tuple[str, str] | None, sessions: tuple[str, ...], found: tuple[str, str, str]
) -> None:
    jobs = {"r1": {"state": job[0], "said": job[1], "succeeded": not job[1]}} if job else {}
    seen = shown(row(**sent), jobs, sessions)
    assert (seen.state, seen.label, seen.reason) == found


def test_runs_are_found_by_words_state_and_star() -> None:
    rows = [
        row("lr-1", tags=["paper"], star=True, note="Best so far"),
        row("lr-2", state="failed", label="Failed", reason="Rank 1 ran out of memory"),
        row("live", state="running", label="Running", session="s"),
    ]
    runs = shown_runs(rows, {}, ("s",), NOW)
    for asked, expected in (
        ({}, ["lr-1", "lr-2", "live"]),
        ({"words": "LR"}, ["lr-1", "lr-2"]),
        ({"words": "lr memory"}, ["lr-2"]),
        ({"words": "best paper"}, ["lr-1"]),
        ({"state": "live"}, ["live"]),
        ({"state": "failed"}, ["lr-2"]),
        ({"state": "finished", "starred": True}, ["lr-1"]),
        ({"words": "nothing"}, []),
    ):
        assert [run.id for run in matching(runs, **asked)] == expected, asked  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "../x"},
        {"id": "x\n"},
        {"name": "a\nb"},
        {"took": float("nan")},
        {"ranks": -1},
        {"scalars": {str(n): 1.0 for n in range(13)}},
        {"tags": "paper"},
        {"note": "x" * 2001},
        {"state": None},
    ],
)
def test_what_is_no_list_of_runs_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        row(**wrong)


def test_a_list_has_an_end_and_what_a_newer_image_adds_is_left_out() -> None:
    with pytest.raises(ValidationError):
        RunList.model_validate({"runs": [row(f"r{n}") for n in range(MAX_RUNS + 1)]})
    assert "args" not in row(args="--token secret")


def page(**more: Any) -> str:
    base = DictLoader({"templates/page.html": "{% block stylesheet %}{% endblock %}{% block main %}{% endblock %}"})
    environment = Environment(loader=ChoiceLoader([base, FileSystemLoader(templates_path())]), autoescape=True)
    given = {"base_url": "/hub/", "failed": "", "words": "", "state": "", "states": STATES, "starred": False}
    return environment.get_template("carme_runs.html").render({**given, "server_url": "", "at": "14:05", **more})


def test_the_page_escapes_what_it_shows_and_has_an_empty_and_a_failed_state() -> None:
    one = shown(row(name="<b>x</b>", note="<script>", star=True, tags=["a&b"], reason="Rank <1>"))
    html = page(runs=[one], every=3, words='"><script>')
    assert "<script>" not in html
    assert "&lt;b&gt;x&lt;/b&gt;" in html
    assert "1 of 3 runs, as of 14:05" in " ".join(html.split())
    assert 'href="/hub/spawn"' in html
    assert "/user/alice/carme/runs.html" in page(runs=[one], every=1, server_url="/user/alice/carme/runs.html")
    assert "No run matches." in page(runs=[], every=3)
    assert "No runs yet" in page(runs=[], every=0)
    failed = page(runs=[], every=0, failed="The database does not answer.")
    assert 'role="alert">The database does not answer.' in failed
    assert "No runs yet" not in failed
