"""Where a waiting job stands: how many others Slurm would sooner give the same GPUs to. An honest count, no promise.

Slurm has no queue positions; it sorts by priority and fills gaps. What can be said for certain is who waits for the
same kind of GPU in one of the same partitions with a higher priority (or the same, and came earlier).
"""

from __future__ import annotations

from .jobs import Job, Phase, Snapshot
from .tres import ANY_TYPE

#: Reasons for which a job does not stand in anybody's way, whatever its priority is.
_ASIDE = (
    "Assoc",
    "BeginTime",
    "DependencyNeverSatisfied",
    "Dependency",
    "Invalid",
    "JobArrayTaskLimit",
    "JobHeld",
    "JobHold",
    "MaxJobs",
    "PartitionTimeLimit",
    "QOS",
    "Reservation",
    "job requeued in held state",
    "launch failed requeued held",
)


def ahead_of(job: Job, snapshot: Snapshot) -> int | None:
    """Return how many waiting jobs come before this one for the same GPUs; None when the job does not wait."""
    if job.phase is not Phase.WAITING or job.state == "CONFIGURING":
        return None
    partitions = set(job.partition.split(","))
    mine = (-job.priority, job.submitted, job.id)
    return sum(
        1
        for other in snapshot.jobs.values()
        if other.id != job.id
        and other.phase is Phase.WAITING
        and (-other.priority, other.submitted, other.id) < mine
        and not other.reason.startswith(_ASIDE)
        and partitions.intersection(other.partition.split(","))
        and _compete(job, other)
    )


def _compete(job: Job, other: Job) -> bool:
    """Return whether two jobs want the same kind of GPU, or both want none."""
    if not job.gpus or not other.gpus:
        return not job.gpus and not other.gpus
    return ANY_TYPE in (job.gpus.type, other.gpus.type) or job.gpus.type == other.gpus.type
