"""What a job used that nothing has measured beside it, as Slurm's accounting has it. Pure.

Accounting knows less than a reporter: nothing of GPUs, and of memory only the largest task of a step, so that with
several tasks on a node the memory of the job is not known.
"""

from __future__ import annotations

from carme_hub.domain.cluster.own_jobs.ended import EndedJob

from .efficiency import Asked, Efficiency, efficiency
from .minutes import Total


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
