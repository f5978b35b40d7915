"""The shape of Optuna's tutorial on distributed optimization: several processes, one journal."""

import sys

import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage


def objective(trial: optuna.Trial) -> float:
    """Return the value of a parabola, step by step."""
    x = trial.suggest_float("x", -10, 10)
    for step in range(5):
        trial.report((x - 2) ** 2 + 1 / (step + 1), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return (x - 2) ** 2


study = optuna.create_study(
    study_name=sys.argv[2],
    storage=JournalStorage(JournalFileBackend(file_path=sys.argv[1])),
    load_if_exists=True,
)
study.optimize(objective, n_trials=5)
print(f"trials of this process: 5, best so far: {study.best_value:.3f}")
