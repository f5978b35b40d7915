"""Jobs that have ended, as accounting has them: what they asked for and what they used. Pure.

Accounting knows less than a reporter beside a job: nothing of GPUs, and of memory only the largest task of a step, so
that with several tasks on a node the memory of the job is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carme_hub.domain.activity.efficiency import Asked, Efficiency, efficiency
from carme_hub.domain.activity.minutes import Total
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import NO_GPUS, Gpus
from carme_hub.domain.cluster.tres import ANY_TYPE

from .details import JobDetails


@dataclass(frozen=True, slots=True)
class EndedJob:
    """One job, or one task of an array, as accounting has it. Times are UTC epoch seconds, 0 = never.

    Attributes:
        id: its own number. array, task: of a job array, 0 and "" = none.
        minutes: its time limit, 0 = none. cpus, memory_mib: in all, as they were given, or asked for.
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
    def key(self) -> str:
        """Its name for Slurm's commands: ``9``, or ``9_3``."""
        return f"{self.array}_{self.task}" if self.array and self.task else str(self.id)


def efficiency_of(job: EndedJob, *, virtual: bool = False) -> Efficiency | None:
    """Return what a job used of what it had; None where nothing was measured."""
    seconds = job.seconds
    if seconds < 1 or (job.cpu_seconds is None and job.peak_mib is None):
        return None
    each = max(1, job.node_count)
    asked = Asked(job.gpus.count, max(1, job.cpus // each), job.memory_mib // each, job.minutes, virtual=virtual)
    known = round(seconds) if job.cpu_seconds is not None else 0
    total = Total(
        seconds=round(seconds),
        cpu=round(100 * (job.cpu_seconds or 0.0) / each),
        cpu_known=known,
        memory=job.peak_mib,
    )
    return efficiency(asked, [total], seconds)


def folded(jobs: Sequence[EndedJob], most: int) -> tuple[list[list[EndedJob]], int]:
    """Return the newest ended jobs, the tasks of an array together, and how many are left out."""
    groups: dict[int, list[EndedJob]] = {}
    for job in jobs:
        if job.phase is Phase.TERMINAL:
            groups.setdefault(job.array or job.id, []).append(job)
    ordered = sorted(groups.values(), key=lambda some: max(job.end or job.submitted for job in some), reverse=True)
    return ordered[:most], max(0, len(ordered) - most)


def details_of(record: EndedJob) -> JobDetails:
    """Return what accounting keeps of a job in place of what the controller has forgotten."""
    each = max(1, record.node_count)
    gres: tuple[tuple[str, str], ...] = ()
    if record.gpus:
        kind = "" if record.gpus.type == ANY_TYPE else f"{record.gpus.type}:"
        gres = (("gres", f"gpu:{kind}{record.gpus.count // each}"),)
    return JobDetails(
        id=record.id,
        user=record.user,
        name=record.name,
        state=record.state,
        array=record.array,
        task=record.task,
        batch=not record.submit_line or record.submit_line.startswith("sbatch"),
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
        cpus_per_task=max(1, record.cpus // each),
        cpus=record.cpus,
        memory=f"{record.memory_mib // each}M" if record.memory_mib else "",
        first_node=record.nodes[0] if record.nodes else "",
        tres=gres,
    )
