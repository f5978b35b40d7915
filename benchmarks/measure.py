"""The output of every benchmark: figures as one JSON object a line on stdout, progress on stderr."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

_began = time.monotonic()


def figure(
    name: str,
    value: float | None,
    unit: str,
    *,
    goal: float | None = None,
    peer: float | None = None,
    at_least: bool = False,
    **more: Any,
) -> bool:
    """Print one figure and return whether it holds; without a goal it holds.

    Args:
        peer: the same figure of the system that we compare with, measured in the same run.
        at_least: the goal is a lowest value, not a highest one.
    """
    holds = None
    if goal is not None:
        holds = value is not None and (value >= goal if at_least else value <= goal)
    line = {"figure": name, "value": rounded(value), "unit": unit, "peer": rounded(peer), "goal": rounded(goal)}
    print(json.dumps({**line, "holds": holds, **more}), flush=True)
    return holds is not False


def rounded(value: float | None) -> float | None:
    """Round to three decimals, the precision of the measurements."""
    return None if value is None else round(value, 3)


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least that share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def p95(values: Sequence[float]) -> float | None:
    return percentile(values, 0.95)


def log_progress(text: str) -> None:
    """Print progress on stderr."""
    print(f"[{time.monotonic() - _began:6.1f} s] {text}", file=sys.stderr, flush=True)


def load() -> float:
    """Return how many processes of this machine ran or waited to run in the last minute."""
    return round(os.getloadavg()[0], 2)
