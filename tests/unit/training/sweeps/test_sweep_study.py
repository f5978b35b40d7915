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
from pathlib import Path
from carme_hub.training import here, sweeps

study = sweeps.open_study("square")
Path(f"here-{here.rank}").touch()
while len(list(Path().glob("here-*"))) < 3:  # one that comes late would find no trial
    time.sleep(0.01)

def objective(trial):
    x = trial.suggest_float("x", -10, 10)
    for step in range(1, 6):
        trial.report(x * x + 1 / step, step)
        time.sleep(0.02)
    return x * x

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
    for name in ("CARME_RUN_FOLDER", "CARME_RUN", "TORCHELASTIC_RESTART_COUNT", "CARME_GENERATION"):
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


def begin(study: optuna.Study, folder: object, uid: int | None = None, **attributes: Any) -> optuna.Trial:
    """Begin a trial in a run, with parameters, and leave it."""
    trial = study.ask()
    trial.suggest_float("x", -10, 10)
    for name, value in {studies.RUN: of(folder, uid), **attributes}.items():
        trial.set_user_attr(name, value)
    return trial


def of(folder: object, uid: int | None = None) -> dict[str, Any]:
    """Return the attribute of a trial of this run."""
    return {"run": str(folder), "uid": os.getuid() if uid is None else uid, "rank": 0, "restart": 0}


def test_ranks_share_a_study_and_its_page_is_in_the_home(home: Path) -> None:
    run = create(RunOptions(3, name="sweep"), cell=CELL)
    state = end_of(run)
    assert state["state"] == "finished", state
    found = sweeps.open_study("square").get_trials()
    assert sum(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in found) == 12
    for trial in found:  # those that ranks began at once, and that were too many, have not run
        assert trial.state != TrialState.FAIL or not trial.params
    of = [trial.user_attrs[studies.RUN] for trial in found]
    assert {each["run"] for each in of} == {str(run.folder)}
    assert {each["rank"] for each in of} == {0, 1, 2}
    assert oct((home / ".carme/optuna").stat().st_mode)[-3:] == "700"
    assert max(each["step"] for each in state["ranks"]) == 12
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


def test_what_somebody_works_on_is_left_alone_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    study = sweeps.open_study("square")
    begin(study, run_in("running", conductor={}).folder)
    begin(study, "/home/other/.carme/runs/theirs")
    begin(study, run_in("failed", "container").folder, uid=12345)  # of somebody whose home has the same path
    stranger = study.ask()  # of code that knows nothing of runs: nobody can say whether it will end
    stranger.suggest_float("x", -10, 10)
    sweeps.optimize(study, square, trials=5)
    assert states(study) == ["RUNNING"] * 4 + ["COMPLETE"] * 2
    assert "2 of 5 trials are finished; 3 are in work elsewhere." in capsys.readouterr().out


def test_a_restarted_run_begins_its_own_trials_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_in("running")
    monkeypatch.setenv("CARME_RUN_FOLDER", str(run.folder))
    study = sweeps.open_study("square")
    begin(study, run.folder)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    sweeps.optimize(study, square, trials=1)
    assert states(study) == ["FAIL", "COMPLETE"]
    assert study.get_trials()[1].user_attrs[studies.RUN]["restart"] == 1
    monkeypatch.setenv("CARME_GENERATION", "3")  # of an elastic run
    begin(study, run.folder)
    sweeps.optimize(study, square, trials=2)
    assert states(study) == ["FAIL", "COMPLETE", "FAIL", "COMPLETE"]


def test_a_trial_that_ends_its_run_each_time_is_given_up() -> None:
    study = sweeps.open_study("square")
    begin(study, run_in("failed").folder, **{studies.TRIES: studies.MAX_TRIES})
    begin(study, "/".join((str(run_in("failed").folder.parent), "deleted")))
    sweeps.optimize(study, square, trials=2)
    found = study.get_trials()
    assert [trial.state.name for trial in found] == ["FAIL", "FAIL", "COMPLETE", "COMPLETE"]
    assert found[2].params == found[1].params
    assert found[3].params not in (found[0].params, found[1].params)


def test_of_two_ranks_one_begins_a_trial_again() -> None:
    study, other = sweeps.open_study("square"), sweeps.open_study("square")
    begin(study, run_in("failed").folder)
    [seen] = studies._running(study)
    studies._retry_interrupted(other)
    studies._give_up(study, seen)  # has seen it before the other one gave it up
    assert states(study) == ["FAIL", "WAITING"]


def test_a_run_that_was_lost_just_now_may_only_look_so() -> None:
    study = sweeps.open_study("square")
    run = run_in("running", began=0.0)  # its conductor holds no lock
    assert run.state()["state"] == "lost"
    begin(study, run.folder)
    sweeps.optimize(study, square, trials=2)
    assert states(study) == ["RUNNING", "COMPLETE"]
    os.utime(run.folder / "state.json", (0, 0))
    sweeps.optimize(study, square, trials=2)
    assert states(study) == ["FAIL", "COMPLETE", "COMPLETE"]
    assert study.get_trials()[2].params == study.get_trials()[0].params


def test_a_grid_has_each_point_once_also_after_an_interruption() -> None:
    points = {"x": [1.0, 2.0, 3.0], "y": [1, 2]}

    def grid() -> optuna.Study:
        return sweeps.open_study("grid", sampler=optuna.samplers.GridSampler(points, seed=1))

    def objective(trial: optuna.Trial) -> float:
        return trial.suggest_float("x", 0, 9) * trial.suggest_int("y", 0, 9)

    study = grid()
    run = run_in("running", conductor={})
    for _ in range(4):
        trial = study.ask()
        study.tell(trial, objective(trial))
    for halfway in (False, True):
        trial = study.ask()
        trial.suggest_float("x", 0, 9)
        if not halfway:
            trial.suggest_int("y", 0, 9)
        trial.set_user_attr(studies.RUN, of(run.folder))
    write_json(run.folder / "state.json", run.state() | {"state": "failed"})
    sweeps.optimize(grid(), objective, trials=6)
    done = [trial.params for trial in study.get_trials() if trial.state == TrialState.COMPLETE]
    assert sorted((each["x"], each["y"]) for each in done) == [(x, y) for x in (1, 2, 3) for y in (1, 2)]


def test_parameters_that_were_asked_for_are_not_lost_with_their_run() -> None:
    study = sweeps.open_study("square")
    study.enqueue_trial({"x": 4.5}, user_attrs={"why": "a guess"})
    run = run_in("running", conductor={})
    study.ask().set_user_attr(studies.RUN, of(run.folder))  # before it has suggested anything
    write_json(run.folder / "state.json", run.state() | {"state": "failed"})
    sweeps.optimize(study, square, trials=1)
    again = study.get_trials()[-1]
    assert (again.params, again.user_attrs["why"]) == ({"x": 4.5}, "a guess")


def test_code_that_ends_in_a_trial_leaves_it_to_be_begun_again() -> None:
    study = sweeps.open_study("square")

    def ends(trial: optuna.Trial) -> float:
        trial.suggest_float("x", -10, 10)
        raise SystemExit(0)

    with pytest.raises(SystemExit):
        sweeps.optimize(study, ends, trials=1)
    assert states(study) == ["FAIL", "WAITING"]


def test_an_objective_that_returns_nothing_ends_the_sweep() -> None:
    study = sweeps.open_study("square")
    with pytest.raises(sweeps.SweepFailed, match="10 trials in a row have failed"):
        sweeps.optimize(study, lambda trial: None, trials=3)  # type: ignore[arg-type,return-value]
    with pytest.raises(sweeps.SweepFailed):
        sweeps.optimize(study, lambda trial: 1 / 0, trials=3, catch=ZeroDivisionError)
    assert set(states(study)) == {"FAIL"}


def test_a_trial_too_many_does_not_run_and_loses_no_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where many ranks find room at the same moment."""
    study, run = sweeps.open_study("square"), run_in("running", conductor={})
    monkeypatch.setenv("CARME_RUN_FOLDER", str(run.folder))
    begin(study, run.folder)
    study.enqueue_trial({"x": 4.5})
    with pytest.raises(studies.EnoughTrials):
        studies._run_trial(study.ask(), square, 1)
    assert states(study)[2:] == ["WAITING"]
    study.ask()  # of another rank, which has not said yet whose it is; it has no room either
    with pytest.raises(studies.EnoughTrials):
        studies._run_trial(study.ask(), square, 3)
    assert study.get_trials()[2].system_attrs["fixed_params"] == {"x": 4.5}


def test_a_study_of_several_values_is_one_too() -> None:
    study = sweeps.open_study("pareto", direction=["minimize", "maximize"])
    sweeps.optimize(study, lambda trial: (square(trial), 1.0), trials=2)
    assert len(sweeps.open_study("pareto", direction=["minimize", "maximize"]).best_trials) >= 1
    with pytest.raises(ValueError, match=r"its direction is \['minimize', 'maximize'\]"):
        sweeps.open_study("pareto")


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
    (tmp_path / "folder").mkdir()
    sweeps.open_study("square")
    with pytest.raises(ValueError, match="its direction is 'minimize'"):
        sweeps.open_study("square", direction="maximize")
    with pytest.raises(ValueError, match="'down' is neither"):
        sweeps.open_study("new", direction="down")
    with pytest.raises(ValueError, match="trials is 0"):
        sweeps.optimize(sweeps.open_study("square"), square, trials=0)
    elsewhere = sweeps.open_study("square", direction="maximize", storage="folder/other.log")
    sweeps.optimize(elsewhere, square, trials=1)
    assert (tmp_path / "folder/other.log").stat().st_size
    lock = elsewhere._storage._backend._lock  # type: ignore[attr-defined]
    lock.acquire()
    assert (tmp_path / "folder/other.log.lock").exists()  # the link leads somewhere, or the lock could not be broken
    lock.release()
    database = sweeps.open_study("square", direction="maximize", storage=f"sqlite:///{tmp_path}/optuna.db")
    assert database.get_trials() == []
    assert states(sweeps.open_study("square")) == []


def test_a_study_stops_where_its_own_code_says_so() -> None:
    study = sweeps.open_study("square")
    sweeps.optimize(study, square, trials=9, callbacks=[lambda study, trial: trial.number == 1 and study.stop()])
    assert len(study.get_trials()) == 2
