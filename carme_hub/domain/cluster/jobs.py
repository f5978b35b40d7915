"""Slurm jobs: one row of squeue, one record of sacct, and a snapshot of the whole queue. Pure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from .resources import NO_GPUS, Gpus

#: Every job of ours is named by this prefix and the session's UUID.
JOB_NAME_PREFIX = "carme-"
_T = TypeVar("_T")


class Phase(Enum):
    """What a job state means for a session. Slurm has many states; these are the ones we distinguish."""

    WAITING = "waiting"  # PENDING, CONFIGURING, REQUEUED, REQUEUE_HOLD, RESV_DEL_HOLD, SPECIAL_EXIT, …
    ACTIVE = "active"  # RUNNING, SUSPENDED, STOPPED, SIGNALING, STAGE_OUT, RESIZING, …
    ENDING = "ending"  # COMPLETING: the job ends, processes may still run
    TERMINAL = "terminal"  # COMPLETED, CANCELLED, FAILED, TIMEOUT, NODE_FAIL, PREEMPTED, …
    UNKNOWN = "unknown"  # a state we do not know; never treated as terminal


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Everything needed to submit one job.

    Attributes:
        name: the job's name; it contains the session's UUID.
        script: the batch script, the same text for every session.
        data: the session's data document, delivered as a file of mode 0600 (see ``slurm.submit.submitters``).
        session_folder: absolute path of the session's folder on the compute node, mode 0700.
        environment: what the batch script starts with. No secret: only names and paths.
        gpus: in total, the same number on each node. cpus, memory_mib: on each node.
        extra: further sbatch options by their long name, set by the administrator only.
        nice: sbatch's ``--nice``, by which Slurm lowers the job's priority.
        exclude: names of nodes that it must not get, separated by commas, as sbatch's ``--exclude``.
        node: name of the only node that it may get, as sbatch's ``--nodelist``; "" = any.
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
    exclude: str = ""
    node: str = ""

    @property
    def gpus_per_node(self) -> Gpus:
        """The GPUs on each of its nodes."""
        return self.gpus.per_node(self.nodes)


@dataclass(frozen=True, slots=True)
class Job:
    """One job in the queue as squeue shows it. Times are UTC epoch seconds, 0 = none.

    Attributes:
        state: Slurm's full state (``RUNNING``). reason: Slurm's Reason code ("" if there is none).
        start: when it started; for a waiting job Slurm's estimate, 0 if Slurm has none.
        nodes: names of allocated nodes.
        reservation: the names it requested, separated by commas, also while it runs in one of them.
        exit_code: exit status of the batch script and signal, if Slurm knows them.
        array: number of its job array, 0 = none. tasks: its number in the array; of those that wait, their list as
            Slurm writes it: ``0-9%2``.
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
    array: int = 0
    tasks: str = ""

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


class JobsOnDemand(Mapping[int, Job]):
    """Jobs by id, each parsed only on access: a queue may hold 50,000 jobs that do not concern the hub."""

    @abstractmethod
    def with_prefix(self, prefix: str) -> Iterable[Job]:
        """Return the jobs whose names begin with a prefix, without parsing others."""

    @abstractmethod
    def of_user(self, user: str) -> Iterable[Job]:
        """Return the jobs of one user, without parsing others."""

    @abstractmethod
    def in_phases(self, phases: Collection[Phase]) -> Iterable[Job]:
        """Return the jobs in these phases, without parsing others."""

    @abstractmethod
    def read_in_steps(self, phases: Collection[Phase] = ()) -> Iterator[None]:
        """Parse the jobs in these phases (or all) that are not parsed yet, a few jobs at each step."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One complete, parsed answer for all jobs of the cluster.

    Its times are readings of this process's monotonic clock, because wall clocks step.

    Attributes:
        asked: when the query was sent. Whatever happened before is in the answer.
        answered: when the answer was complete.
        jobs: by job id; may be ``JobsOnDemand``, so iterating over all of them is expensive.
        ours: the jobs whose names have our prefix.
    """

    asked: float
    answered: float
    jobs: Mapping[int, Job]
    ours: tuple[Job, ...] = field(init=False, repr=False, compare=False)
    _named: Mapping[tuple[str, str], tuple[Job, ...]] = field(init=False, repr=False, compare=False)
    _made: dict[object, object] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.jobs, JobsOnDemand):
            ours = self.jobs.with_prefix(JOB_NAME_PREFIX)
        else:
            ours = (job for job in self.jobs.values() if job.name.startswith(JOB_NAME_PREFIX))
        object.__setattr__(self, "ours", tuple(ours))
        # Many sessions are looked up in each answer, so it is indexed by name once.
        named: dict[tuple[str, str], tuple[Job, ...]] = {(job.name, job.user): (job,) for job in self.ours}
        if len(named) < len(self.ours):
            several: dict[tuple[str, str], list[Job]] = {}
            for job in sorted(self.ours, key=lambda j: (j.submitted, j.id)):
                several.setdefault((job.name, job.user), []).append(job)
            named = {key: tuple(jobs) for key, jobs in several.items()}
        object.__setattr__(self, "_named", named)
        object.__setattr__(self, "_made", {})

    def named(self, name: str, user: str) -> tuple[Job, ...]:
        """Return the jobs of a session's job name and user, oldest first. More than one is an error."""
        return self._named.get((name, user), ())

    def of_user(self, user: str) -> tuple[Job, ...]:
        """Return all jobs of one user, whatever way they came."""
        if isinstance(self.jobs, JobsOnDemand):
            return tuple(self.jobs.of_user(user))
        return tuple(job for job in self.jobs.values() if job.user == user)

    def in_phases(self, *phases: Phase) -> tuple[Job, ...]:
        """Return all jobs in these phases, also those of other people; jobs in other phases are not parsed."""
        if isinstance(self.jobs, JobsOnDemand):
            return tuple(self.jobs.in_phases(phases))
        return tuple(job for job in self.jobs.values() if job.phase in phases)

    def read_in_steps(self, *phases: Phase) -> Iterator[None]:
        """Parse the jobs in these phases (or all), a few at each step, so that other tasks can run in between."""
        if isinstance(self.jobs, JobsOnDemand):
            yield from self.jobs.read_in_steps(phases)

    def cached(self, make: Callable[[Snapshot], _T]) -> _T:
        """Return a value that a function derives from this snapshot; it is computed once."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]  # type: ignore[return-value]

    def put_cached(self, make: Callable[[Snapshot], _T], made: _T) -> None:
        """Store the value of that function, if it was computed in steps."""
        self._made[make] = made

    def has_cached(self, make: Callable[[Snapshot], object]) -> bool:
        """Return whether the value of that function is cached."""
        return make in self._made
