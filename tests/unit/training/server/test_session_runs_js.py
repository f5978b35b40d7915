"""The panel in JupyterLab says how far trainings are and what can be done to them; the module itself runs, in Node."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rig.javascript import run_module

from carme_hub.paths import share_folder

MODULE = share_folder().parent / "jupyter/labextensions/carme-hub/static/session-runs.js"
NOW = 1_800_000_000
ROW: dict[str, Any] = {
    **{"id": "r1", "name": "resnet", "state": "running", "label": "Running", "reason": "", "elastic": False},
    **{"began": NOW - 100, "took": 100, "progress": [40, 100], "scalars": {"loss": 0.333333, "acc": 0.5, "lr": 1}},
}
FAILED = {**ROW, "id": "r2", "state": "failed", "label": "Failed", "reason": "ValueError: no data"}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ROW, "running, 40 of 100, loss 0.3333, acc 0.5"),
        ({**ROW, "progress": [None, None], "scalars": {}}, "running"),
        ({**ROW, "scalars": {"loss": "nan"}}, "running, 40 of 100, loss nan"),
        (FAILED, "failed, ValueError: no data"),
    ],
)
def test_it_says_how_far_a_run_is_or_why_it_failed(row: dict[str, Any], words: str) -> None:
    assert run_module(MODULE, f"out = m.runWords({json.dumps(row)})") == words


def test_runs_that_go_on_come_first_and_old_failures_not_at_all() -> None:
    rows = [
        *({**FAILED, "began": NOW - 7200}, FAILED, {**ROW, "id": "r3", "state": "finished"}, ROW),
        *({**ROW, "id": f"w{number}", "state": "waiting"} for number in range(9)),
    ]
    shown = run_module(MODULE, f"out = m.shownRuns({json.dumps(rows)}, {NOW}).map((row) => row.id)")
    assert shown == ["r1", *(f"w{number}" for number in range(7))]
    assert run_module(MODULE, f"out = m.shownRuns({json.dumps(rows[:3])}, {NOW}).map((row) => row.id)") == ["r2"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["stop"]),
        ({"elastic": True}, ["+1", "-1", "stop"]),
        ({"state": "stopping"}, []),
        ({"state": "failed", "elastic": True}, []),
    ],
)
def test_a_run_is_stopped_and_an_elastic_one_resized(changes: dict[str, Any], words: list[str]) -> None:
    row = json.dumps({**ROW, **changes})
    assert run_module(MODULE, f"out = m.runButtons({row}).map(([word]) => word)") == words
