"""Jobs that have ended: what each asked for, what it used, and what of that nobody used. Pure.

A job of ours has what its reporter measured; every other job has what Slurm's accounting says, which knows nothing of
GPUs. What is not known is None, and is never counted as unused: it has sums of its own.

    week = total([unused_of(job) for job in jobs])
    week.gpu, week.gpu_unused, week.gpu_unknown     # GPU-seconds
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from .efficiency import MEASURED, Asked, Used

WEEK = 604_800
#: 1970-01-05, a Monday: weeks begin on Mondays at 00:00 UTC.
_MONDAY = 345_600
#: Who measured a job.
REPORTER, SACCT = "reporter", "sacct"


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """One job that has ended. Times are UTC epoch seconds.

    Attributes:
        job_id, submitted: identify it. shown_id: with an array's task. name: of the job. session: id of the session,
            companion or batch job that it was, "" = it was none of ours.
        state: Slurm's, such as "COMPLETED". exit_code: of its batch script.
        asked: what it asked for; CPUs and memory on each of its nodes. gpu_type: of its GPUs, "" = none.
        used: what it used, on one node. source: ``REPORTER`` or ``SACCT``.
        cpu_seconds, memory: on all nodes, memory in MiB. gpu_busy: GPU-seconds, weighted with the utilisation.
        nodes_used: on which a step of it ran.
        image, folder: of the container, and where it began to work. interactive: somebody worked in it, so that its
            time says nothing.
        sooner: seconds by which a job of the size that is suggested could have started before it did.
    """

    job_id: int
    user: str
    account: str
    partition: str
    state: str
    submitted: float
    started: float
    ended: float
    asked: Asked
    used: Used = field(default_factory=Used)
    source: str = SACCT
    nodes: int = 1
    nodes_used: int | None = None
    cpu_seconds: float | None = None
    memory: int | None = None
    gpu_busy: float | None = None
    gpu_type: str = ""
    name: str = ""
    shown_id: str = ""
    session: str = ""
    image: str = ""
    folder: str = ""
    interactive: bool = False
    exit_code: int = 0
    sooner: int | None = None

    @property
    def seconds(self) -> float:
        """For how long it ran."""
        return max(0.0, self.ended - self.started) if self.started else 0.0

    @property
    def kind(self) -> tuple[str, str, str]:
        """What jobs of the same kind have in common: image and working folder; without an image, the name as well."""
        return self.image, self.folder, "" if self.image else self.name


def to_json(job: FinishedJob) -> dict[str, Any]:
    """Return a job as JSON."""
    return asdict(job)


def from_json(value: Mapping[str, Any]) -> FinishedJob:
    """Return a job from its JSON; fields of a later release are left out. Raise TypeError where it is none."""
    return FinishedJob(**{**_known(FinishedJob, value), **_parts(value)})


def _parts(value: Mapping[str, Any]) -> dict[str, Any]:
    return {"asked": Asked(**_known(Asked, value["asked"])), "used": Used(**_known(Used, value["used"]))}


def _known(of: Any, value: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(of)}
    return {name: each for name, each in value.items() if name in names}


@dataclass(frozen=True, slots=True)
class Unused:
    """What some jobs had, and what of that was not used: GPU-seconds, CPU-seconds, and GiB-seconds of memory.

    Attributes:
        gpu: in all; gpu_unused: of GPUs that were never used; gpu_unknown: of GPUs whose use is not known;
            gpu_busy: weighted with the utilisation, of ``gpu_measured``.
        cpu, cpu_unused, cpu_unknown, memory, memory_unused, memory_unknown: likewise; unused is what was asked for
            less what was used, of memory the most that was.
    """

    jobs: int = 0
    gpu: int = 0
    gpu_unused: int = 0
    gpu_unknown: int = 0
    gpu_busy: int = 0
    gpu_measured: int = 0
    cpu: int = 0
    cpu_unused: int = 0
    cpu_unknown: int = 0
    memory: int = 0
    memory_unused: int = 0
    memory_unknown: int = 0


def unused_of(job: FinishedJob) -> Unused:
    """Return what a job had and did not use."""
    seconds, asked = job.seconds, job.asked
    gpu, cpu = round(asked.gpus * seconds), round(asked.cpus * job.nodes * seconds)
    memory = round(asked.memory_mib * job.nodes * seconds / 1024)
    gpus = job.used.gpus_used if job.used.measured >= MEASURED else None
    busy = job.gpu_busy if gpus is not None else None
    return Unused(
        jobs=1,
        gpu=gpu,
        gpu_unused=0 if gpus is None else round(max(0, asked.gpus - gpus) * seconds),
        gpu_unknown=gpu if gpus is None else 0,
        gpu_busy=0 if busy is None else min(gpu, round(busy)),
        gpu_measured=0 if busy is None else gpu,
        cpu=cpu,
        cpu_unused=0 if job.cpu_seconds is None else max(0, round(cpu - job.cpu_seconds)),
        cpu_unknown=cpu if job.cpu_seconds is None else 0,
        memory=memory,
        memory_unused=0 if job.memory is None else max(0, round(memory - job.memory * seconds / 1024)),
        memory_unknown=memory if job.memory is None else 0,
    )


def total(parts: Iterable[Unused]) -> Unused:
    """Return the sum."""
    names = [each.name for each in fields(Unused)]
    every = list(parts)
    return Unused(**{name: sum(getattr(each, name) for each in every) for name in names})


def week_of(at: float) -> int:
    """Return the beginning of a moment's week, UTC epoch seconds."""
    return int((at - _MONDAY) // WEEK * WEEK + _MONDAY)
