"""Jobs that have ended, as accounting has them: what they asked for and what they used. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Phase
from carme_hub.domain.cluster.resources import NO_GPUS, Gpus
from carme_hub.domain.cluster.tres import ANY_TYPE

from .details import JobDetails


@dataclass(frozen=True, slots=True)
class Asked:
    """Resources in all."""

    cpus: int = 0
    memory_mib: int = 0
    gpus: Gpus = NO_GPUS


@dataclass(frozen=True, slots=True)
class EndedJob:
    """One job, or one task of an array, as accounting has it. Times are UTC epoch seconds, 0 = never.

    Attributes:
        id: its own number. array, task: of a job array, 0 and "" = none.
        minutes: its time limit, 0 = none. cpus, memory_mib, gpus: in all, as it was given them; asked: as it asked for
            them, which is less where a node is its own.
        cpu_seconds: that its processes computed, None = not known. peak_mib: the most of one node, None = not known.
        output, error: patterns or paths, "" = accounting does not keep them.
    """

    id: int
    name: str
    user: str
    state: str
    phase: Phase
    submitted: float = 0.0
    start: float = 0.0
    end: float = 0.0
    array: int = 0
    task: str = ""
    exit_code: tuple[int, int] | None = None
    nodes: tuple[str, ...] = ()
    node_count: int = 1
    gpus: Gpus = NO_GPUS
    cpus: int = 0
    memory_mib: int = 0
    asked: Asked | None = None
    minutes: int = 0
    account: str = ""
    partition: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    folder: str = ""
    output: str = ""
    error: str = ""
    submit_line: str = ""
    cpu_seconds: float | None = None
    peak_mib: int | None = None

    @property
    def seconds(self) -> float:
        """Seconds for which it ran."""
        return max(0.0, self.end - self.start) if self.start and self.end else 0.0

    @property
    def is_ours(self) -> bool:
        """Whether it was a session's."""
        return self.name.startswith(JOB_NAME_PREFIX)

    @property
    def key(self) -> str:
        """Its name for Slurm's commands: ``9``, or ``9_3``."""
        return f"{self.array}_{self.task}" if self.array and self.task else str(self.id)


def folded(jobs: Sequence[EndedJob], most: int) -> tuple[list[list[EndedJob]], int]:
    """Return the newest ended jobs, the tasks of an array together, and how many are left out."""
    groups: dict[int, list[EndedJob]] = {}
    for job in jobs:
        if job.phase is Phase.TERMINAL:
            groups.setdefault(job.array or job.id, []).append(job)
    ordered = sorted(groups.values(), key=lambda some: max(job.end or job.submitted for job in some), reverse=True)
    return ordered[:most], max(0, len(ordered) - most)


def last_of(some: Sequence[EndedJob]) -> EndedJob:
    """Return the job of a group that ended last."""
    return max(some, key=lambda job: (job.end, job.id))


def details_of(record: EndedJob) -> JobDetails:
    """Return what accounting keeps of a job in place of what the controller has forgotten."""
    command = record.submit_line.split()
    each = max(1, record.node_count)
    asked = record.asked or Asked(record.cpus, record.memory_mib, record.gpus)
    gres: tuple[tuple[str, str], ...] = ()
    if asked.gpus:
        kind = "" if asked.gpus.type == ANY_TYPE else f"{asked.gpus.type}:"
        gres = (("gres", f"gpu:{kind}{asked.gpus.count // each}"),)
    return JobDetails(
        id=record.id,
        user=record.user,
        name=record.name,
        state=record.state,
        array=record.array,
        task=record.task,
        batch=not command or posixpath.basename(command[0]) == "sbatch",
        submit_line=record.submit_line,
        folder=record.folder,
        output=record.output,
        error=record.error,
        account=record.account,
        partition=record.partition,
        qos=record.qos,
        reservation=record.reservation,
        constraint=record.constraint,
        minutes=record.minutes,
        nodes=str(each),
        tasks=each,
        cpus_per_task=max(1, asked.cpus // each),
        cpus=asked.cpus,
        memory=f"{asked.memory_mib // each}M" if asked.memory_mib else "",
        first_node=record.nodes[0] if record.nodes else "",
        tres=gres,
    )
