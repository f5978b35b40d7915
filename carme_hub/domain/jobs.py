"""Slurm jobs as we see them: one row of squeue, one record of sacct, one answer for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from .resources import NO_GPUS, Gpus


class Phase(Enum):
    """What a job state means for a session. Slurm has many states; these are the ones that differ to us."""

    WAITING = "waiting"  # PENDING, CONFIGURING, REQUEUED, REQUEUE_HOLD, RESV_DEL_HOLD, SPECIAL_EXIT, …
    ACTIVE = "active"  # RUNNING, SUSPENDED, STOPPED, SIGNALING, STAGE_OUT, RESIZING, …
    ENDING = "ending"  # COMPLETING: the end is decided, processes may still be there
    TERMINAL = "terminal"  # COMPLETED, CANCELLED, FAILED, TIMEOUT, NODE_FAIL, PREEMPTED, …
    UNKNOWN = "unknown"  # a word we do not know; never taken for terminal


@dataclass(frozen=True, slots=True)
class JobSpec:
    """All that is needed to submit one job.

    Attributes:
        name: the job's name; carries the session's UUID.
        script: the batch script, the same text for every session.
        data: the session's data document, delivered as a file of mode 0600 (see ``slurm.submit``).
        session_folder: absolute path of the session's folder on the compute node, mode 0700.
        environment: what the batch script starts with. No secret: only names and paths.
        gpus: in all, the same number on each node. cpus, memory_mib: on each node.
        extra: further sbatch options by their long name, from the administrator only.
        nice: by how much Slurm lowers the job's priority.
    """

    name: str
    user: str
    script: str
    data: bytes
    session_folder: str
    gpus: Gpus = NO_GPUS
    cpus: int = 1
    memory_mib: int = 1024
    time_limit: int = 60
    account: str = ""
    partition: str = ""
    qos: str = ""
    reservation: str = ""
    working_folder: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)
    nice: int = 0
    nodes: int = 1

    @property
    def gpus_per_node(self) -> Gpus:
        """The GPUs on each of its nodes."""
        return self.gpus.on_each(self.nodes)


@dataclass(frozen=True, slots=True)
class Job:
    """One job in the queue as squeue shows it. Times are UTC epoch seconds, 0 = none.

    Attributes:
        state: Slurm's word in full (``RUNNING``). reason: Slurm's Reason code ("" when there is none).
        start: when it started; for a waiting job Slurm's estimate, 0 where Slurm has none.
        nodes: names of allocated nodes.
        reservation: what it asked for or runs in; several with commas, also while it runs in one of them.
        exit_code: exit status of the batch script and signal, where Slurm knows them.
    """

    id: int
    name: str
    user: str
    state: str
    phase: Phase
    reason: str = ""
    nodes: tuple[str, ...] = ()
    partition: str = ""
    account: str = ""
    priority: int = 0
    submitted: float = 0.0
    start: float = 0.0
    end: float = 0.0
    time_limit: int = 0
    gpus: Gpus = NO_GPUS
    exit_code: tuple[int, int] | None = None
    restarts: int = 0
    reservation: str = ""

    @property
    def reservations(self) -> tuple[str, ...]:
        """Return the names of the reservations that it may run in."""
        return tuple(name for name in self.reservation.split(",") if name)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One incarnation of a job as ``sacct -D`` shows it. Times are UTC epoch seconds, 0 = unknown."""

    id: int
    name: str
    user: str
    state: str
    phase: Phase
    submitted: float
    start: float = 0.0
    end: float = 0.0
    nodes: tuple[str, ...] = ()
    account: str = ""
    gpus: Gpus = NO_GPUS
    exit_code: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One complete, understood answer for all jobs of the cluster.

    Its times are readings of the monotonic clock of this process: wall clocks step.

    Attributes:
        asked: when the question was put. Whatever happened before is in the answer.
        answered: when the answer was complete.
        jobs: by job id.
    """

    asked: float
    answered: float
    jobs: Mapping[int, Job]
    _named: Mapping[tuple[str, str], tuple[Job, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Many sessions are looked up in each answer, so it is sorted by name once.
        named: dict[tuple[str, str], list[Job]] = {}
        for job in sorted(self.jobs.values(), key=lambda j: (j.submitted, j.id)):
            named.setdefault((job.name, job.user), []).append(job)
        object.__setattr__(self, "_named", {key: tuple(jobs) for key, jobs in named.items()})

    def named(self, name: str, user: str) -> tuple[Job, ...]:
        """Return the jobs of that name and user, oldest first. More than one is a fault."""
        return self._named.get((name, user), ())
