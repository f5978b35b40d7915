"""The time limit for the start of MPI: MPI_Init waits for all ranks without a limit of its own.

A rank that imports MPI later than the others holds them up legitimately, so the time counts from the moment when the
last rank has begun to start MPI.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from carme_hub.training.run import messages
from carme_hub.training.run.rendezvous import Rendezvous


class MPIStart:
    """The start of MPI in the ranks of a run.

    Args:
        ranks: their number. limit: seconds for MPI to start.
    """

    def __init__(self, ranks: int, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ranks, self._limit, self._clock = ranks, limit, clock
        self._began, self._checked = 0.0, False

    def overdue(self, rendezvous: Rendezvous) -> list[int]:
        """Return the ranks in which MPI has not started within the limit, once; [] while it may still start."""
        if self._checked or (not self._began and rendezvous.missing(self._ranks, messages.MPI)):
            return []
        self._began = self._began or self._clock()
        if self._clock() < self._began + self._limit:
            return []
        self._checked = True
        reports = {rank: messages.read_message(rendezvous, messages.MPI, rank) for rank in range(self._ranks)}
        return [rank for rank, report in reports.items() if not (report or {}).get("started")]
