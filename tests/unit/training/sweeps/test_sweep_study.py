"""A study that several ranks share ends with the number of trials that was asked for, whatever ends a rank before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from conducted_here import end_of
from optuna.trial import TrialState

from carme_hub.training import here, sweeps
from carme_hub.training.launch.new_run import create
from carme_hub.training.run.private_files import write_json
from carme_hub.training.run.run_folder import Run
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.sweeps import study as studies

CELL = """
import time
from carme_hub.training import here, sweeps

def objective(trial):
    x = trial.suggest_float("x", -10, 10)
    for step in range(1, 6):
        trial.report(x * x + 1 / step, step)
        time.sleep(0.01)
    return x * x

study = sweeps.open_study("square")
sweeps.optimize(study, objective, trials=12)
"""
#: Begins a trial in a run, and hangs in it.
HANGS = """
import os, time
from carme_hub.training import sweeps

def objective(trial):
    trial.suggest_float("x", -10, 10)
    open("in-trial", "w").close()
    time.sleep(60)

sweeps.optimize(sweeps.open_study("square"), objective, trials=3)
"""


@pytest.fixture(autouse=True)
def session(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CARME_RUN_FOLDER", "CARME_RUN", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def run_in(state: str, name: str = "sweep", **more: Any) -> Run:
    """Return a run in this state; a live one has a conductor that starts."""
    run = create(RunOptions(1, name=name), cell="pass")
    write_json(run.folder / "state.json", run.state() | {"state": state, **more})
    return run


def square(trial: optuna.Trial) -> float:
    return trial.suggest_float("x", -10, 10) ** 2


def states(study: optuna.Study) -> list[str]:
    return [trial.state.name for trial in study.get_trials()]


def begin(study: optuna.Study, folder: object, **attributes: Any) -> optuna.Trial:
    """Begin a trial in a run, with parameters, and leave it."""
    trial = study.ask()
    trial.suggest_float("x", -10, 10)
    for name, value in {studies.RUN: str(folder), **attributes}.items():
        trial.set_user_attr(name, value)
    return trial


def test_ranks_share_a_study_and_its_page_is_in_the_home(home: Path) -> None:
    run = create(RunOptions(3, name="sweep"), cell=CELL)
    state = end_of(run)
    assert state["state"] == "finished", state
    study = sweeps.open_study("square")
    found = study.get_trials()
    assert {trial.state for trial in found} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert 12 <= len(found) <= 14  # ranks that end trials at once
    assert {trial.user_attrs[studies.RUN] for trial in found} == {str(run.folder)}
    assert {trial.user_attrs[studies.RANK] for trial in found} == {0, 1, 2}
    assert oct((home / ".carme/optuna").stat().st_mode)[-3:] == "700"
    assert state["ranks"][0]["step"] >= 12
    assert state["ranks"][0]["total"] == 12


def test_a_study_that_has_enough_trials_gets_none_and_goes_on_where_more_are_asked_for() -> None:
    study = sweeps.open_study("square")
    for trials, expected in ((3, 3), (3, 3), (5, 5), (2, 5)):
        sweeps.optimize(sweeps.open_study("square"), square, trials=trials)
        assert len(study.get_trials()) == expected


@pytest.mark.parametrize("way", ["killed", "interrupted"])
def test_a_trial_whose_rank_ended_in_its_middle_is_begun_again(way: str, home: Path) -> None:
    run = run_in("running")
    environ = os.environ | {"CARME_RUN_FOLDER": str(run.folder), "CARME_RUN": run.id}
    with subprocess.Popen([sys.executable, "-c", HANGS], env=environ, stderr=subprocess.DEVNULL) as rank:
        until = time.monotonic() + 30
        while not (home / "in-trial").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        rank.send_signal(signal.SIGKILL if way == "killed" else signal.SIGINT)
    study = sweeps.open_study("square")
    if way == "killed":
        assert states(study) == ["RUNNING"]
        write_json(run.folder / "state.json", run.state() | {"state": "failed"})
    sweeps.optimize(study, square, trials=2)
    found = study.get_trials()
    assert [trial.state.name for trial in found] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert found[1].params == found[0].params
    assert found[1].user_attrs[studies.TRIES] == 2
    assert found[2].params != found[0].params


def test_what_somebody_works_on_is_left_alone_and_counts(tmp_path: Path) -> None:
    study = sweeps.open_study("square")
    begin(study, run_in("running", conductor={}).folder)
    begin(study, "/home/other/.carme/runs/theirs")
    stranger = study.ask()  # of code that knows nothing of runs: nobody can say whether it will end
    stranger.suggest_float("x", -10, 10)
    sweeps.optimize(study, square, trials=4)
    assert states(study) == ["RUNNING"] * 3 + ["COMPLETE"] * 2


def test_a_restarted_run_begins_its_own_trials_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_in("running")
    monkeypatch.setenv("CARME_RUN_FOLDER", str(run.folder))
    study = sweeps.open_study("square")
    begin(study, run.folder)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    sweeps.optimize(study, square, trials=1)
    assert states(study) == ["FAIL", "COMPLETE"]
    assert study.get_trials()[1].user_attrs[studies.RESTART] == 1


def test_a_trial_that_ends_its_run_each_time_is_given_up() -> None:
    study = sweeps.open_study("square")
    begin(study, run_in("failed").folder, **{studies.TRIES: studies.MAX_TRIES})
    begin(study, "/".join((str(run_in("failed").folder.parent), "deleted")))
    sweeps.optimize(study, square, trials=2)
    found = study.get_trials()
    assert [trial.state.name for trial in found] == ["FAIL", "FAIL", "COMPLETE", "COMPLETE"]
    assert found[2].params == found[1].params
    assert found[3].params not in (found[0].params, found[1].params)


def test_of_two_ranks_one_begins_a_trial_again(monkeypatch: pytest.MonkeyPatch) -> None:
    study = sweeps.open_study("square")
    begin(study, run_in("failed").folder)
    other, get = sweeps.open_study("square"), study.get_trials
    seen = get(deepcopy=False, states=(TrialState.RUNNING,))
    monkeypatch.setattr(study, "get_trials", lambda **words: seen)
    studies._retry_interrupted(other)
    studies._retry_interrupted(study)  # has seen it before the other one gave it up
    monkeypatch.setattr(study, "get_trials", get)
    assert states(study) == ["FAIL", "WAITING"]


def test_no_trial_begins_that_needs_longer_than_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(here, "time_left", lambda: 0.02)
    study = sweeps.open_study("square")
    sweeps.optimize(study, lambda trial: time.sleep(0.05) or square(trial), trials=5)
    assert states(study) == ["COMPLETE"]
    assert "1 of 5 trials are finished; the time left is too short" in capsys.readouterr().out


def test_an_error_ends_the_sweep_unless_it_is_caught() -> None:
    def fails(trial: optuna.Trial) -> float:
        if square(trial) >= 0 and trial.number == 0:
            raise MemoryError("too large")
        return 1.0

    study = sweeps.open_study("square")
    with pytest.raises(MemoryError):
        sweeps.optimize(study, fails, trials=2)
    other = sweeps.open_study("other")
    sweeps.optimize(other, fails, trials=2, catch=MemoryError)
    assert states(other) == ["FAIL", "COMPLETE", "COMPLETE"]


def test_what_is_asked_for_has_to_fit(tmp_path: Path) -> None:
    sweeps.open_study("square")
    with pytest.raises(ValueError, match="its direction is 'minimize'"):
        sweeps.open_study("square", direction="maximize")
    with pytest.raises(ValueError, match="trials is 0"):
        sweeps.optimize(sweeps.open_study("square"), square, trials=0)
    elsewhere = sweeps.open_study("square", direction="maximize", storage=tmp_path / "other.log")
    sweeps.optimize(elsewhere, square, trials=1)
    assert (tmp_path / "other.log").stat().st_size
    assert states(sweeps.open_study("square")) == []


def test_a_study_stops_where_its_own_code_says_so() -> None:
    study = sweeps.open_study("square")
    sweeps.optimize(study, square, trials=9, callbacks=[lambda study, trial: trial.number == 1 and study.stop()])
    assert len(study.get_trials()) == 2
