"""What a job used that nothing has measured beside it, as Slurm's accounting has it. Pure.

Accounting knows less than a reporter: nothing of GPUs, and of memory only the largest task of a step, so that with
several tasks on a node the memory of the job is not known. Where the activity service has stored the job, its advice is
said in place of that: it looks at the last few jobs of the kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from carme_hub.domain.cluster.own_jobs.ended import EndedJob

from .advice import Advice, advice
from .efficiency import Asked, Efficiency, efficiency
from .finished import FinishedJob
from .minutes import Total


def advice_of(job: EndedJob, finished: Sequence[FinishedJob], *, virtual: bool = False) -> Advice | None:
    """Return the advice after a job; None where it is not among the jobs of its user that are stored."""
    key = (job.id, int(job.submitted))
    stored = next((each for each in finished if (each.job_id, int(each.submitted)) == key), None)
    if stored is None:
        return None
    return advice(replace(stored, asked=replace(stored.asked, virtual=virtual or stored.asked.virtual)), finished)


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
