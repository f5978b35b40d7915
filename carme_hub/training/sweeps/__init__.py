"""Sweeps of hyper-parameters: a study of Optuna that ranks, runs and batch jobs share.

Public: ``open_study``, ``optimize`` and its ``SweepFailed``; they need optuna, which is imported when they are called.
``dashboard`` is the program of the app *Optuna*.
"""

from __future__ import annotations

from .study import SweepFailed, open_study, optimize

__all__ = ["SweepFailed", "open_study", "optimize"]
