"""Reports of a library's training loop to the progress of this process.

A library knows the step and what it logs. Code that calls ``here.step`` itself knows better, and then these reports are
left out.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

from carme_hub.training.rank.progress import PROGRESS


def report(step: int, total: Any = None, samples: Any = 0, scalars: Mapping[str, Any] | None = None) -> None:
    """Report a step of a library's loop.

    Args:
        total: of all steps; what is no positive number is unknown. samples: of this step in this rank; what is no
            number is none. scalars: what is not one finite number is left out.
    """
    known = isinstance(total, numbers.Real) and 0 < float(total) < math.inf
    count = int(float(samples)) if isinstance(samples, numbers.Real) else 0
    PROGRESS.step(int(step), int(float(total)) if known else None, count, numbers_of(scalars or {}), by_code=False)


def numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are one finite number each."""
    found = {}
    for name, value in values.items():
        if name in ("step", "at"):  # Lightning's habit; the step is known better
            continue
        try:
            number = float(value.detach() if hasattr(value, "detach") else value)
        except (TypeError, ValueError, RuntimeError):  # a text, or a tensor of several numbers
            continue
        if math.isfinite(number) and not isinstance(value, (str, bytes)):
            found[str(name)] = number
    return found
