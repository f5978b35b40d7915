"""A run that another job continues waits from the moment in which this one ends; one that goes in circles does not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from carme_hub.domain.sessions.session import CONTINUES
from carme_hub.training import conduct_batch
from carme_hub.training.conductor import requeue
from carme_hub.training.conductor.requeue import MOST_SHORT, SHORT_SECONDS, WAITS, continuation
from carme_hub.training.here import OUT_OF_TIME
from carme_hub.training.launch.new_run import create
from carme_hub.training.run.run_folder import Run
from carme_hub.training.run.run_options import RunOptions

OPTIONS = RunOptions(1, submit=True, requeue=True, seconds=600, detach=True)


@pytest.fixture
def run(home: Path) -> Run:
    return create(OPTIONS, cell="")


def test_the_hub_and_the_job_mean_the_same_status() -> None:
    assert conduct_batch.CONTINUES == CONTINUES


@pytest.mark.parametrize(
    ("over", "state", "options", "waits"),
    [
        (True, "finished", OPTIONS, True),
        (False, "finished", OPTIONS, False),
        (True, "failed", OPTIONS, False),
        (True, "finished", RunOptions(1, submit=True, seconds=600), False),
        (True, "finished", RunOptions(1, requeue=True), False),
    ],
)
def test_it_waits_where_its_code_has_stopped_in_time(
    run: Run, over: bool, state: str, options: RunOptions, waits: bool
) -> None:
    if over:
        (run.folder / OUT_OF_TIME).touch()
    end: dict[str, Any] = {"state": state, "message": ""}
    found = continuation(run, options, end, time.monotonic() - SHORT_SECONDS - 1)
    assert (found.get("state") == "waiting", end["state"]) == (waits, state)
    assert (run.batch_job()["said"] == WAITS) is waits


def test_one_whose_time_is_too_short_ends_with_what_to_do(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.folder / OUT_OF_TIME).touch()

    def ended(began: float) -> dict[str, Any]:
        end: dict[str, Any] = {"state": "finished", "message": ""}
        continuation(run, OPTIONS, end, began)
        return end

    now = time.monotonic()
    assert [ended(now)["state"] for _ in range(MOST_SHORT - 1)] == ["finished"] * (MOST_SHORT - 1)
    assert ended(now - SHORT_SECONDS - 1)["state"] == "finished"  # this one has worked, and they are counted anew
    assert [ended(now)["state"] for _ in range(MOST_SHORT)][-1] == "failed"
    assert "Set a longer --time" in ended(now)["message"]
    monkeypatch.setattr(requeue, "MOST_SHORT", 99)
    assert ended(now)["state"] == "finished"
