"""A study of Optuna that all ranks of a run, further runs and batch jobs of a user share, and that can be resumed.

Optuna chooses the parameters of each trial and ends trials that fall behind; here is what a run adds: where the study
is, how many trials there are in all, progress, and trials whose run ended in their middle::

    from carme_hub.training import sweeps

    def objective(trial):
        rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
        for epoch in range(1, 21):
            loss = train_epoch(rate)
            trial.report(loss, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss

    study = sweeps.open_study("digits")
    sweeps.optimize(study, objective, trials=60)

The study is in a journal in the home folder. Optuna locks it by a symbolic link, which also works on NFS, so the ranks
need no other connection. A journal has no heartbeat: a trial has the folder of its run as an attribute, and the state
of that run says whether anybody still works on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carme_hub.training import here
from carme_hub.training.run.run_folder import ENDED, NoRun, Run, root

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

#: The journal of all studies of a user, below the home folder.
JOURNAL = ".carme/optuna/journal.log"
#: How often a trial is begun that does not end because its run does: it may be what ends the run.
MAX_TRIES = 3
#: Attributes of a trial: the folder of its run, its rank, how often that run had restarted, and the number of tries.
RUN, RANK, RESTART, TRIES = "carme.run", "carme.rank", "carme.restart", "carme.tries"

Objective = Callable[["Trial"], float]


def open_study(
    name: str,
    *,
    direction: str = "minimize",
    sampler: BaseSampler | None = None,
    pruner: BasePruner | None = None,
    storage: str | Path | BaseStorage | None = None,
) -> Study:
    """Return the study of this name, with the trials that it has; a new one where there is none.

    Args:
        direction: "minimize" or "maximize" what the objective returns.
        sampler: default: Optuna's TPE. pruner: default: ASHA (``SuccessiveHalvingPruner``).
        storage: the path of a journal, or a storage of Optuna; default: the user's journal, which the app shows.

    Raises:
        ValueError: the study exists, and has another direction.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    if storage is None or isinstance(storage, (str, Path)):
        journal = Path.home() / JOURNAL if storage is None else Path(storage).expanduser()
        if storage is None:
            journal.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        storage = JournalStorage(JournalFileBackend(str(journal)))
    study = optuna.create_study(
        study_name=name,
        storage=storage,
        direction=direction,
        sampler=sampler,
        pruner=pruner or optuna.pruners.SuccessiveHalvingPruner(),
        load_if_exists=True,
    )
    if study.direction.name.lower() != direction:
        raise ValueError(
            f"The study {name!r} exists, and its direction is {study.direction.name.lower()!r}. Open it so, or take "
            "another name."
        )
    return study


def optimize(
    study: Study,
    objective: Objective,
    trials: int,
    *,
    catch: type[Exception] | tuple[type[Exception], ...] = (),
    callbacks: Iterable[Callable[[Study, FrozenTrial], None]] = (),
) -> None:
    """Run trials in this rank until the study has enough, over all ranks, runs and jobs that work on it.

    Trials whose run ended in their middle are begun again first, with the same parameters. No trial is begun that
    needs longer than the time that is left, by the longest of this rank so far.

    Args:
        trials: how many of the study are to be complete or pruned in the end. Where many ranks end trials at the same
            moment it may get a few more. catch: errors of a trial that do not end the sweep. callbacks: as of Optuna's
            ``Study.optimize``.

    Raises:
        ValueError: ``trials`` is less than 1.
    """
    if trials < 1:
        raise ValueError(f"trials is {trials}, and must be 1 or more.")
    _retry_interrupted(study)
    longest = 0.0
    began = time.monotonic()

    def end_trial(study: Study, _: FrozenTrial) -> None:
        nonlocal longest, began
        longest, began = max(longest, time.monotonic() - began), time.monotonic()
        finished = _report(study, trials)
        if not _is_room(study, trials):
            study.stop()
        elif here.time_left() < longest:
            _print(f"{finished} of {trials} trials are finished; the time left is too short for another one.")
            study.stop()

    _report(study, trials)
    if _is_room(study, trials):
        study.optimize(lambda trial: _run_trial(trial, objective), catch=catch, callbacks=[end_trial, *callbacks])


def _run_trial(trial: Trial, objective: Objective) -> float:
    """Run one trial, which knows its run from the first moment."""
    if folder := os.environ.get("CARME_RUN_FOLDER"):
        trial.set_user_attr(RUN, folder)
        trial.set_user_attr(RANK, here.rank)
        if restart := _restart():
            trial.set_user_attr(RESTART, restart)
    try:
        return objective(trial)
    except KeyboardInterrupt:  # Optuna takes that for a failure of the trial
        _begin_again(trial.study, trial.params, trial.user_attrs)
        raise


def _restart() -> int:
    """Return how often this run has restarted."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)


def _report(study: Study, trials: int) -> int:
    """Report the progress of the whole study, and return the number of trials that are finished."""
    finished = _finished(study)
    best = _best(study)
    here.step(finished, total=trials, **({} if best is None else {"best": best}))
    return finished


def _best(study: Study) -> float | None:
    try:
        return study.best_value
    except ValueError:  # no trial is complete
        return None


def _finished(study: Study) -> int:
    from optuna.trial import TrialState

    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))


def _is_room(study: Study, trials: int) -> bool:
    """Return whether the study needs a further trial, beside those that somebody works on."""
    return _finished(study) + sum(RUN in trial.user_attrs for trial in _running(study)) < trials


def _running(study: Study) -> list[FrozenTrial]:
    """Return the trials that nobody has ended, apart from those whose run has."""
    from optuna.trial import TrialState

    found = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return [trial for trial in found if not _is_interrupted(trial)]


def _is_interrupted(trial: FrozenTrial) -> bool:
    """Return whether the run of a trial that has not ended has ended. A trial of somebody else's run counts as live."""
    folder = Path(str(trial.user_attrs.get(RUN, "")))
    if folder.parent != root():
        return False
    if str(folder) == os.environ.get("CARME_RUN_FOLDER"):
        return int(trial.user_attrs.get(RESTART, 0)) < _restart()
    try:
        return Run.by_id(folder.name).state()["state"] in ENDED
    except NoRun:  # deleted, as only a run can be that has ended
        return True
    except (OSError, ValueError):
        return False


def _retry_interrupted(study: Study) -> None:
    """Give up the trials whose run has ended, and have their parameters tried again."""
    from optuna.trial import TrialState

    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if not _is_interrupted(trial):
            continue
        try:
            study.tell(trial.number, state=TrialState.FAIL)
        except (RuntimeError, ValueError):  # another rank was first
            continue
        _begin_again(study, trial.params, trial.user_attrs)


def _begin_again(study: Study, params: dict[str, Any], attributes: dict[str, Any]) -> None:
    """Have parameters tried again, unless that did not help before."""
    tries = int(attributes.get(TRIES, 1))
    if params and tries < MAX_TRIES:
        study.enqueue_trial(params, user_attrs={TRIES: tries + 1})


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201  the rank's own output
