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
need no other connection. A journal has no heartbeat: a trial has its run as an attribute, and the state of that run
says whether anybody still works on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
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
#: After how many failed trials in a row a rank gives up: an objective that returns nothing fails in each of them.
MAX_FAILURES = 10
#: Seconds without a change after which a run that has no conductor counts as ended. Where a file system has no locks
#: between nodes, a run on another node looks as if it had none.
LOST_SECONDS = 120.0
#: Seconds for a rank to say whose a trial is that it has begun.
BEGIN_SECONDS = 10.0
#: Attributes of a trial: its ``run`` (folder), ``uid``, ``rank`` and ``restart``; and the number of tries.
RUN, TRIES = "carme.run", "carme.tries"

Objective = Callable[["Trial"], float | Sequence[float]]


class SweepFailed(RuntimeError):
    """Too many trials in a row have failed."""


class EnoughTrials(Exception):
    """Ranks have begun trials at the same moment, and this one is more than the study needs."""


def open_study(
    name: str,
    *,
    direction: str | Sequence[str] = "minimize",
    sampler: BaseSampler | None = None,
    pruner: BasePruner | None = None,
    storage: str | Path | BaseStorage | None = None,
) -> Study:
    """Return the study of this name, with the trials that it has; a new one where there is none.

    Args:
        direction: "minimize" or "maximize" what the objective returns; of several values one for each.
        sampler: default: Optuna's TPE. pruner: default: ASHA (``SuccessiveHalvingPruner``).
        storage: the path of a journal, a URL or a storage of Optuna; default: the user's journal, which the app shows.

    Raises:
        ValueError: the study exists, and has another direction; or there is no such direction.
    """
    import optuna

    names = [direction] if isinstance(direction, str) else list(direction)
    if unknown := [each for each in names if each not in ("minimize", "maximize")]:
        raise ValueError(f"The direction {unknown[0]!r} is neither 'minimize' nor 'maximize'.")
    directions = [optuna.study.StudyDirection[each.upper()] for each in names]
    study = optuna.create_study(
        study_name=name,
        storage=_storage(storage),
        directions=directions,
        sampler=sampler,
        pruner=pruner or optuna.pruners.SuccessiveHalvingPruner(),
        load_if_exists=True,
    )
    if (found := [each.name.lower() for each in study.directions]) != names:
        raise ValueError(
            f"The study {name!r} exists, and its direction is {found[0] if len(found) == 1 else found!r}. Open it so, "
            "or take another name."
        )
    return study


def _storage(storage: str | Path | BaseStorage | None) -> str | BaseStorage:
    """Return what ``open_study`` is given as Optuna takes it."""
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    if storage is None:
        storage = Path.home() / JOURNAL
        storage.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if isinstance(storage, str) and "://" not in storage:
        storage = Path(storage)
    if isinstance(storage, Path):
        # Its lock is a link to this path, which Optuna follows to see how old the lock is.
        storage = JournalStorage(JournalFileBackend(str(storage.expanduser().absolute())))
    return storage


def optimize(
    study: Study,
    objective: Objective,
    trials: int,
    *,
    catch: type[Exception] | Iterable[type[Exception]] = (),
    callbacks: Iterable[Callable[[Study, FrozenTrial], None]] = (),
) -> None:
    """Run trials in this rank until the study has enough that are finished, or in work in other ranks, runs and jobs.

    Trials whose run ended in their middle are begun again, with the same parameters. No trial is begun that needs
    longer than the time that is left, by the longest of this rank so far.

    Args:
        trials: how many of the study are to be complete or pruned in the end. catch: errors of a trial that do not end
            the sweep. callbacks: as of Optuna's ``Study.optimize``.

    Raises:
        ValueError: ``trials`` is less than 1. SweepFailed: ``MAX_FAILURES`` trials of this rank in a row have failed.
    """
    if trials < 1:
        raise ValueError(f"trials is {trials}, and must be 1 or more.")
    caught = (catch,) if isinstance(catch, type) else tuple(catch)
    end = _EndOfTrial(trials)
    end.report(study)
    while end.is_room(study):
        study.optimize(
            lambda trial: _run_trial(trial, objective, trials),
            catch=(*caught, EnoughTrials),
            callbacks=[end, *callbacks],
        )
        if not (_is_exhaustive(study) and _waiting(study)) or end.stopped:
            break
    if (finished := _finished(study)) < trials:
        work = len(_in_work(study))
        why = end.why or (f"; {work} {'is' if work == 1 else 'are'} in work elsewhere" if work else "")
        _print(f"{finished} of {trials} trials are finished{why}.")


class _EndOfTrial:
    """What happens after each trial of this rank: a callback of Optuna.

    Attributes:
        why: this rank stopped before the study had enough trials, "" = others work on them. stopped: whether this
            has stopped the study.
    """

    def __init__(self, trials: int) -> None:
        self.why, self.stopped = "", False
        self._trials, self._failed = trials, 0
        self._longest, self._began = 0.0, time.monotonic()

    def __call__(self, study: Study, trial: FrozenTrial) -> None:
        """Report it, and stop this rank's trials where there is no room or no time for another one."""
        took, self._began = time.monotonic() - self._began, time.monotonic()
        self._longest = max(self._longest, took)
        self._failed = self._failed + 1 if trial.state.name == "FAIL" else 0
        self.report(study)
        if not self.is_room(study):
            self.stopped = True
            study.stop()
        elif self._failed >= MAX_FAILURES:
            raise SweepFailed(
                f"{self._failed} trials in a row have failed, so this rank tries no more. The objective has to return "
                "a number; the output above has the errors."
            )
        elif here.time_left() < self._longest:
            self.why = "; the time left is too short for another one"
            self.stopped = True
            study.stop()

    def is_room(self, study: Study) -> bool:
        """Return whether the study needs a further trial, beside those in work; give up those that nobody works on."""
        _retry_interrupted(study)
        return _finished(study) + len(_in_work(study)) < self._trials

    def report(self, study: Study) -> None:
        """Report the progress of the whole study."""
        finished = _finished(study)
        best = _best(study)
        scalars: dict[str, Any] = {} if best is None else {"best": best}
        here.step(finished, max(self._trials, finished), **scalars)


def _is_exhaustive(study: Study) -> bool:
    """Return whether the sampler stops a study once each point was begun, also where some are to be tried again."""
    from optuna.samplers import BruteForceSampler, GridSampler

    return isinstance(study.sampler, (BruteForceSampler, GridSampler))


def _run_trial(trial: Trial, objective: Objective, trials: int) -> float | Sequence[float]:
    """Run one trial, which has its run as an attribute before anything else happens."""
    if folder := os.environ.get("CARME_RUN_FOLDER"):
        # In one write: whoever sees the run has to see its restart too.
        trial.set_user_attr(RUN, {"run": folder, "uid": os.getuid(), "rank": here.rank, "restart": _restart()})
        work = [*_in_work(trial.study), *_begun_just_now(trial.study)]
        if _finished(trial.study) + sum(each.number < trial.number for each in work) >= trials:
            frozen = _frozen(trial)
            if frozen.params or frozen.system_attrs.get("fixed_params"):
                _begin_again(trial.study, frozen, tried=False)
            raise EnoughTrials(f"The study has {trials} trials that are finished or in work.")
    try:
        return objective(trial)
    except KeyboardInterrupt:  # Optuna takes that for a failure of the trial
        _begin_again(trial.study, _frozen(trial))
        raise
    except SystemExit:  # and this for none
        _give_up(trial.study, _frozen(trial))
        raise


def _restart() -> int:
    """Return how often the ranks of this run have been started again, or the generation of an elastic run."""
    return int(os.environ.get("CARME_GENERATION") or os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)


def _best(study: Study) -> float | None:
    if len(study.directions) > 1:
        return None
    try:
        return study.best_value
    except ValueError:  # no trial is complete
        return None


def _frozen(trial: Trial) -> FrozenTrial:
    return trial.study.get_trials(deepcopy=False)[trial.number]


def _finished(study: Study) -> int:
    from optuna.trial import TrialState

    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))


def _running(study: Study) -> list[FrozenTrial]:
    from optuna.trial import TrialState

    return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))


def _waiting(study: Study) -> list[FrozenTrial]:
    from optuna.trial import TrialState

    return study.get_trials(deepcopy=False, states=(TrialState.WAITING,))


def _in_work(study: Study) -> list[FrozenTrial]:
    """Return the trials of runs that have not ended. Nobody can say it of others, so those do not count."""
    return [trial for trial in _running(study) if RUN in trial.user_attrs and not _is_interrupted(trial)]


def _begun_just_now(study: Study) -> list[FrozenTrial]:
    """Return the trials that have no run yet, since another rank has begun them a moment ago."""
    now = datetime.now()  # noqa: DTZ005  as Optuna's
    return [
        trial
        for trial in _running(study)
        if RUN not in trial.user_attrs
        and trial.datetime_start is not None
        and (now - trial.datetime_start).total_seconds() < BEGIN_SECONDS
    ]


def _is_interrupted(trial: FrozenTrial) -> bool:
    """Return whether the run of a trial that has not ended has ended. A trial of somebody else's run counts as live."""
    of = trial.user_attrs.get(RUN)
    if not isinstance(of, dict) or of.get("uid") != os.getuid():
        return False
    folder = Path(str(of.get("run")))
    if folder.parent != root():
        return False
    if str(folder) == os.environ.get("CARME_RUN_FOLDER"):
        return int(of.get("restart", 0)) < _restart()
    try:
        state = Run.by_id(folder.name).state()["state"]
        return state in ENDED and (state != "lost" or _age(folder / "state.json") > LOST_SECONDS)
    except NoRun:  # deleted, as only a run can be that has ended
        return True
    except (OSError, ValueError):
        return False


def _age(file: Path) -> float:
    """Return the seconds since the last change of a file."""
    return time.time() - file.stat().st_mtime


def _retry_interrupted(study: Study) -> None:
    """Give up the trials whose run has ended, and have their parameters tried again."""
    for trial in _running(study):
        if _is_interrupted(trial):
            _give_up(study, trial)


def _give_up(study: Study, trial: FrozenTrial) -> None:
    """End a trial as failed, unless another rank was first, and have its parameters tried again."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    try:
        # As Optuna does with stale trials: Study.tell would ask the sampler, which may stop a study that does not run.
        study._storage.set_trial_state_values(trial._trial_id, state=TrialState.FAIL)
    except UpdateFinishedTrialError:
        return
    _begin_again(study, trial)


def _begin_again(study: Study, trial: FrozenTrial, *, tried: bool = True) -> None:
    """Have the parameters of a trial tried again, unless that did not help before.

    Args:
        tried: whether this counts as a try.
    """
    from optuna.trial import TrialState, create_trial

    tries = int(trial.user_attrs.get(TRIES, 1)) + tried
    if tries > MAX_TRIES:
        return
    kept: dict[str, Any] = {name: value for name, value in trial.user_attrs.items() if name != RUN}
    # What a sampler knows of it stays; how far it came is to be earned again.
    system = {name: value for name, value in trial.system_attrs.items() if not name.startswith("completed_rung_")}
    study.add_trial(
        create_trial(
            state=TrialState.WAITING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs={**kept, TRIES: tries} if tries > 1 else kept,
            system_attrs=system,
        )
    )


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201  the rank's own output
