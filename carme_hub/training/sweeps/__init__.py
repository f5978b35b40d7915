"""Sweeps of hyper-parameters: a study of Optuna that ranks, runs and batch jobs share.

Public: ``open_study`` and ``optimize``; they need optuna, which is imported when they are called. ``dashboard`` is the
program of the app *Optuna*.
"""

from __future__ import annotations

from .study import open_study, optimize

__all__ = ["open_study", "optimize"]
