"""What torch's profiler says of a training whose scaling was measured. No input or output."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SHARES = ("loading", "communication", "small", "busy", "copying")


@dataclass(frozen=True, slots=True)
class Profiled:
    """What torch's profiler says of the training with the most ranks: means over ranks, shares of the time from 0 to 1.

    Attributes:
        run: the run that was profiled; its events are in its folder.
        loading: in which torch's DataLoader was waited for. communication: of collectives, also beside computing.
        small, busy, copying: as in ``rank.profile.analysis.Profile``; None = there was no GPU.
    """

    ranks: int
    batch: int
    run: str
    loading: float
    communication: float
    small: float | None = None
    busy: float | None = None
    copying: float | None = None

    @property
    def exposed(self) -> float:
        """Return the share of communication beside which no GPU can have computed, at most."""
        return self.communication if self.busy is None else min(self.communication, max(0.0, 1 - self.busy))


def mean_profile(documents: Sequence[Mapping[str, Any]], *, ranks: int, batch: int, run: str) -> Profiled | None:
    """Return the means of the profiles of ranks (``rank.profile.analysis.Profile`` as JSON); None where there are none.

    Raises:
        ValueError: one of them cannot be understood.
    """
    if not documents:
        return None
    try:
        found = {name: [float(each[name]) for each in documents if each[name] is not None] for name in _SHARES}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"The profile of the run {run} cannot be understood: {error}") from error
    means = {name: statistics.fmean(values) for name, values in found.items() if values}
    return Profiled(ranks, batch, run, **{"loading": 0.0, "communication": 0.0, **means})
