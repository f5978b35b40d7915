"""Usage from Slurm's accounting: one incarnation of one job with GPUs, from ``sacct -D``. Settlement charges it."""

from __future__ import annotations

from dataclasses import dataclass

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus


@dataclass(frozen=True, slots=True)
class Usage:
    """One incarnation of a job, an array task or a component of a heterogeneous job. UTC epoch seconds, 0 = not yet.

    Attributes:
        job_id: the raw id (``JobIDRaw``): each array task and each heterogeneous component has its own.
        shown_id: the id as people know it (``17_3``, ``17+1``).
        gpus: one value for each GPU type that the job held.
        reservation: Slurm's name of the reservation that it ran in, "" for none.
        time_limit: seconds, 0 = none. suspended: seconds in which the job was suspended; Slurm does not count them
            towards the time limit, but the job keeps its GPUs.
    """

    job_id: int
    shown_id: str
    name: str
    user: str
    account: str
    partition: str
    qos: str
    state: str
    phase: Phase
    submitted: float
    start: float
    end: float
    gpus: tuple[Gpus, ...]
    nodes: str = ""
    time_limit: int = 0
    exit_code: tuple[int, int] | None = None
    suspended: int = 0
    reservation: str = ""

    def seconds(self, now: float) -> int:
        """Return how long the GPUs were allocated, until ``now`` for a running job; negative if clocks stepped."""
        if not self.start:
            return 0
        return int((self.end or now) - self.start)
