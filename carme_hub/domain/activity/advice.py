"""Advice after a job: in one line what it asked for and used, and one suggestion for the next time. Pure.

**A suggestion never goes below what was used and a margin**: of memory, CPUs and time a quarter (``MARGIN``); of GPUs
and nodes those that were used. It looks at the last few jobs of the same kind, and at the most that one of them used:
a single small job says nothing of the next one. Where one of them is not known, nothing is suggested.

    found = advice(job, earlier)
    found.line          # "1 of 4 GPUs was used, at 80 % on average. …"
    found.suggestion    # "Ask for 1 GPU."
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from carme_hub.domain.wording import duration

from .efficiency import (
    LONG_ENOUGH,
    MARGIN,
    MEASURED,
    WORTH_IT,
    count,
    cpus_needed,
    fewer_cpus,
    fewer_gpus,
    gib,
    less_memory,
    memory_needed,
    sentence,
)
from .finished import SACCT, FinishedJob

N = TypeVar("N", int, float)

#: Jobs of the same kind that count, and the days for which they do.
LAST_FEW, LAST_DAYS = 5, 60
#: What a job that ran out of memory is told to ask for, as a multiple of what it had.
MORE_MEMORY = 1.5
OUT_OF_MEMORY, TIMEOUT, COMPLETED, FAILED, CANCELLED = "OUT_OF_MEMORY", "TIMEOUT", "COMPLETED", "FAILED", "CANCELLED"
_ENDED_BY_CLUSTER = {
    "NODE_FAIL": "a node failed",
    "BOOT_FAIL": "a node did not boot",
    "PREEMPTED": "another job took its place",
    "DEADLINE": "its deadline was over",
    "REQUEUED": "it was put back into the queue",
}


@dataclass(frozen=True, slots=True)
class Needs:
    """What the next job of a kind needs, by the last few: what was used and a margin. None = not known.

    Attributes:
        gpus, nodes: in all. cpus: on each node, of the busiest minute. cpus_on_average: on each node, where only the
            average is known. memory_mib: on each node. minutes: of its time. jobs: that were looked at.
    """

    gpus: int | None = None
    nodes: int | None = None
    cpus: int | None = None
    cpus_on_average: int | None = None
    memory_mib: int | None = None
    minutes: int | None = None
    jobs: int = 0


@dataclass(frozen=True, slots=True)
class Advice:
    """What is said of a job.

    Attributes:
        line: what it asked for and used. suggestion: what to ask for next time; "" = nothing better is known.
        note: why there is no suggestion, where that is worth saying. needs: what the suggestion was made of.
        saves: what the suggestion is about: "gpus", "nodes", "memory", "cpus", "time", "more"; "" = none.
    """

    line: str
    suggestion: str = ""
    note: str = ""
    needs: Needs = Needs()
    saves: str = ""


def advice(job: FinishedJob, earlier: Iterable[FinishedJob] = ()) -> Advice:
    """Return what is said of a job.

    Args:
        earlier: other jobs of its user, in any order; those of another kind, of later or of long ago do not count.
    """
    line = _line(job)
    if job.state == OUT_OF_MEMORY:
        return Advice(line, _more_memory(job), saves="more")
    if job.state == TIMEOUT and not job.interactive:
        return Advice(line, _more_time(job), saves="more")
    note = _nothing_to_suggest(job)
    if note:
        return Advice(line, note=note)
    needed = needs([job, *last_few(job, earlier)])
    saves, suggestion = _suggestion(job, needed)
    if suggestion and needed.jobs > 1:
        suggestion += f" That is by the last {needed.jobs} jobs like it."
    if suggestion and job.sooner:
        suggestion += " " + sooner_sentence(job.sooner)
    return Advice(line, suggestion, needs=needed, saves=saves)


def last_few(job: FinishedJob, others: Iterable[FinishedJob]) -> list[FinishedJob]:
    """Return the last few jobs of the same kind that ended before a job."""
    key = (job.job_id, job.submitted)
    since = job.ended - LAST_DAYS * 86_400
    found = [each for each in others if each.kind == job.kind and since <= each.ended <= job.ended]
    found = [each for each in found if each.user == job.user and (each.job_id, each.submitted) != key]
    return sorted(found, key=lambda each: each.ended, reverse=True)[: LAST_FEW - 1]


def needs(jobs: Sequence[FinishedJob]) -> Needs:
    """Return what the next job needs by some jobs of one kind; each value is not known if it is not of one of them.

    A job that was short or failed says nothing of what is enough. What it used was used all the same.
    """
    long = [job for job in jobs if says_something(job)]
    if not long:
        return Needs()
    memory = memory_needed(_most(jobs, lambda job: job.used.memory))
    for job in jobs:
        if job.state == OUT_OF_MEMORY and memory is not None:
            memory = max(memory, _gib_up(job.asked.memory_mib * MORE_MEMORY))
    ends = not any(job.interactive or job.state == TIMEOUT for job in jobs)
    return Needs(
        gpus=_most(jobs, lambda job: job.used.gpus_used),
        nodes=_most(jobs, lambda job: job.nodes_used),
        cpus=cpus_needed(_most(jobs, lambda job: job.used.cpus_most)),
        cpus_on_average=cpus_needed(_most(jobs, lambda job: job.used.cpus)),
        memory_mib=memory,
        minutes=math.ceil(max(job.seconds for job in jobs) * MARGIN / 60) if ends else None,
        jobs=len(long),
    )


def says_something(job: FinishedJob) -> bool:
    """Return whether what a job used says what the next one needs."""
    # A session ends when its user has done with it, in whatever state Slurm then says that its job is.
    done = job.state == COMPLETED or (job.interactive and job.state in (CANCELLED, TIMEOUT, FAILED))
    return done and job.seconds >= LONG_ENOUGH and job.used.measured >= MEASURED


def sooner_sentence(seconds: int) -> str:
    """Return by how much a smaller job could have started sooner."""
    return (
        f"It could have started {duration(seconds // 60 * 60)} sooner, and nobody would have waited longer: "
        "by the queue of that day, there was room for it."
    )


def _most(jobs: Sequence[FinishedJob], of: Callable[[FinishedJob], N | None]) -> N | None:
    """Return the most of all jobs; None if it is not known of one that says something."""
    known = []
    for job in jobs:
        value = of(job)
        if value is not None:
            known.append(value)
        elif says_something(job):
            return None
    return max(known, default=None)


def _line(job: FinishedJob) -> str:
    said = [sentence(job.used, job.asked)]
    if job.source == SACCT and job.asked.gpus and job.used.gpus_used is None:
        said = [said[0].replace(" is not known.", " is not known: Slurm's accounting does not say.", 1)]
    if job.nodes > 1:
        said = [said[0].replace(" at most.", " at most, on one node.").replace(" on average.", " on each node.")]
        if job.nodes_used is not None and job.nodes_used < job.nodes:
            said.append(f"Slurm saw programs on {job.nodes_used} of {job.nodes} nodes.")
    if job.seconds:
        limit = f" of {duration(60 * job.asked.minutes)}" if job.asked.minutes else ""
        said.append(f"Time: {duration(_rounded(job.seconds))}{limit}.")
    return " ".join(filter(None, said))


def _nothing_to_suggest(job: FinishedJob) -> str:
    """Return why what a job used says nothing; "" = it does."""
    if why := _ENDED_BY_CLUSTER.get(job.state):
        return f"The cluster ended it ({why}), so it may need more than it used."
    if job.state == FAILED and not job.interactive:
        status = f" with exit status {job.exit_code}" if job.exit_code else ""
        return f"It failed{status}, so it may need more than it used."
    if job.state == CANCELLED and not job.interactive:
        return "It was cancelled, so it may need more than it used."
    if job.seconds < LONG_ENOUGH:
        return f"It ran for less than {LONG_ENOUGH // 60} min, which is too short for advice."
    if not says_something(job):
        return "Too little of its time was measured for advice."
    return ""


def _suggestion(job: FinishedJob, needed: Needs) -> tuple[str, str]:
    """Return the suggestion that frees most, and what it is about."""
    asked = job.asked
    each = "" if job.nodes == 1 else " on each node"
    if asked.gpus and needed.gpus is not None and needed.gpus < asked.gpus:
        return "gpus", fewer_gpus(needed.gpus, asked)
    if needed.nodes is not None and 0 < needed.nodes < job.nodes:
        return "nodes", f"Ask for {count(needed.nodes, 'node')}: Slurm saw no program on the others."
    memory = needed.memory_mib
    if memory is not None and memory <= asked.memory_mib * (1 - WORTH_IT):
        return "memory", less_memory(memory).replace(" of memory", f" of memory{each}")
    if needed.cpus is not None:
        if needed.cpus <= asked.cpus * (1 - WORTH_IT):
            return "cpus", fewer_cpus(needed.cpus)
    elif needed.cpus_on_average is not None and needed.cpus_on_average <= asked.cpus * (1 - WORTH_IT):
        # Only the average is known: a part of the job may have used all of them.
        return "cpus", (
            f"Ask for {count(needed.cpus_on_average, 'CPU')}{each}, unless a part of it needs more: "
            "what it used on average, and a quarter more."
        )
    if needed.minutes is not None and asked.minutes and needed.minutes <= asked.minutes * (1 - WORTH_IT):
        rounded = _nice_minutes(needed.minutes)
        if rounded <= asked.minutes * (1 - WORTH_IT):
            return "time", f"Ask for {duration(60 * rounded)}: what it took at most, and a quarter more."
    return "", ""


def _more_memory(job: FinishedJob) -> str:
    asked = job.asked.memory_mib
    each = "" if job.nodes == 1 else " on each node"
    if not asked:
        return "It ran out of memory: ask for more."
    more = gib(_gib_up(asked * MORE_MEMORY))
    return f"It ran out of memory: ask for more than {gib(asked)}{each}, such as {more}."


def _more_time(job: FinishedJob) -> str:
    limit = f" of {duration(60 * job.asked.minutes)}" if job.asked.minutes else ""
    return f"Slurm ended it at its time limit{limit}: ask for more time, or have it save its state and continue."


def _gib_up(mib: float) -> int:
    return math.ceil(mib / 1024) * 1024


def _nice_minutes(minutes: int) -> int:
    """Return minutes that somebody would write: never fewer."""
    step = 5 if minutes <= 60 else 30 if minutes <= 1440 else 360
    return math.ceil(minutes / step) * step


def _rounded(seconds: float) -> int:
    return int(seconds) if seconds < 600 else round(seconds / 60) * 60
