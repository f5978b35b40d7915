"""A session's card says which trainings go on in it, and how far they are."""

from __future__ import annotations

from typing import Any

import pytest

from carme_hub.spawners.home.runs import LiveRun, live_runs

ROW: dict[str, Any] = {
    **{"id": "r1", "name": "resnet", "state": "running", "label": "Running", "session": "s1", "submitted": False},
    **{"progress": [40, 100], "scalars": {"loss": 0.33333, "accuracy": 0.9, "rate": 0.1}},
}


def test_it_says_the_step_and_the_first_scalars() -> None:
    assert live_runs([ROW], "s1") == (LiveRun("resnet", "running, 40 of 100, loss 0.3333, accuracy 0.9", True),)


@pytest.mark.parametrize("progress", [[], [40], [40, None], [None, None]])
def test_a_run_that_does_not_know_its_end_says_no_step(progress: list[Any]) -> None:
    row = {**ROW, "progress": progress, "scalars": {}}
    assert live_runs([row], "s1") == (LiveRun("resnet", "running", False),)


@pytest.mark.parametrize("changes", [{"state": "finished"}, {"session": "s2"}, {"submitted": True}])
def test_runs_that_have_ended_or_go_on_elsewhere_are_not_its(changes: dict[str, Any]) -> None:
    assert live_runs([{**ROW, **changes}], "s1") == ()
