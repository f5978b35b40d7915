"""Whether a job would have had room sooner, had it asked for what it is advised to: by the jobs of that day.

``domain.activity.vacancy`` has the rule. Nothing is said where something else than priority and resources kept the job
waiting (a limit, a dependency, a begin time), where it asked for features of nodes, several nodes or none of its GPUs,
where nodes have GPUs of several types and Slurm does not account for types, and where Slurm does not say what was down.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from carme_hub.domain.activity.advice import Advice
from carme_hub.domain.activity.finished import FinishedJob
from carme_hub.domain.activity.vacancy import Room, Taken, first_start
from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.cluster.tres import ANY_TYPE
from carme_hub.slurm.finished_jobs import Accounted
from carme_hub.slurm.past_use import PastUseReader

#: Seconds that a job must have waited, and at most; the least that is worth a sentence.
LEAST_WAIT, MOST_WAIT, LEAST_SOONER = 600.0, 2 * 86_400.0, 300
#: Jobs that one look examines: each is compared with all jobs of its day.
MOST_JOBS = 20


class EarlierStarts:
    """Finds when smaller jobs could have started.

    Args:
        past: what jobs had. nodes: those of the cluster, as they are now.
    """

    def __init__(self, past: PastUseReader, nodes: Callable[[], Awaitable[Sequence[Node]]]) -> None:
        self._past, self._nodes = past, nodes

    def may_be_known(self, found: Accounted, now: float) -> bool:
        """Return whether it can be known of a job at all."""
        job, waited = found.job, found.job.started - found.eligible
        return (
            job.nodes == 1
            and not found.held_back
            and not found.constrained
            and bool(found.eligible)
            and LEAST_WAIT <= waited <= MOST_WAIT
            and now - found.eligible <= 2 * MOST_WAIT
        )

    async def find(self, asked: Mapping[int, tuple[Accounted, FinishedJob, Advice]], now: float) -> dict[int, int]:
        """Return the seconds by which jobs could have started sooner, by the keys of what was asked.

        Raises:
            SlurmUnreachable: Slurm gave no answer.
        """
        some = dict(list(asked.items())[:MOST_JOBS])
        if not some:
            return {}
        since = min(found.eligible for found, _, _ in some.values())
        jobs, out, nodes = (
            await self._past.jobs(since, now),
            await self._past.out_of_service(since, now),
            await self._nodes(),
        )
        answers = {}
        for key, (found, job, said) in some.items():
            wanted = smaller(job, said)
            kind = gpu_type_in(nodes, job)
            if wanted is None or kind is None:
                continue
            rooms = {
                node.name: Room(node.gpus.get(kind, 0), node.cpus, node.memory_mib)
                for node in nodes
                if job.partition in node.partitions
            }
            taken: list[Taken] = [*out]
            for each in jobs:
                if (each.job_id, each.submitted) != (job.job_id, job.submitted):
                    taken += each.taken(kind)
            lasts = max(job.seconds, 60.0 * job.asked.minutes)
            first = first_start(wanted, rooms, taken, found.eligible, job.started, lasts)
            if first is not None and job.started - first >= LEAST_SOONER:
                answers[key] = int(job.started - first)
        return answers


def smaller(job: FinishedJob, said: Advice) -> Room | None:
    """Return what the job needs on its node if its user does as advised; None = that is no smaller job there."""
    asked, needs = job.asked, said.needs
    cpus = needs.cpus if needs.cpus is not None else needs.cpus_on_average
    if said.saves == "gpus" and needs.gpus:
        return Room(needs.gpus, asked.cpus, asked.memory_mib)
    if said.saves == "memory" and needs.memory_mib:
        return Room(asked.gpus, asked.cpus, needs.memory_mib)
    if said.saves == "cpus" and cpus:
        return Room(asked.gpus, cpus, asked.memory_mib)
    return None


def gpu_type_in(nodes: Sequence[Node], job: FinishedJob) -> str | None:
    """Return the type by which nodes count the GPUs of a job, "" = it has none; None = not known."""
    if not job.asked.gpus:
        return ""
    types = {type for node in nodes if job.partition in node.partitions for type in node.gpus}
    if job.gpu_type in types:
        return job.gpu_type
    return next(iter(types)) if job.gpu_type == ANY_TYPE and len(types) == 1 else None
