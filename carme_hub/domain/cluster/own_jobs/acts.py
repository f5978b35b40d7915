"""What users do to jobs of their own: whether its state allows it, and what became of it, in sentences. Pure.

Slurm's commands do not say reliably what they did (scontrol exits with 1 for every complaint, also where most tasks of
an array were changed), so an act is judged by the job as it is read again afterwards.

    refusal(Act.HOLD, jobs, now=…)                     # "" or why not
    outcome(Act.HOLD, before, after, complaint="…")    # Outcome("success", "is held", True)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from carme_hub.domain.cluster.jobs import Job, Phase


class Act(Enum):
    """An act on a job."""

    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    REQUEUE = "requeue"
    LIMIT = "limit"


#: Acts that lose what a job has not written to a file.
DESTROYS = frozenset({Act.CANCEL, Act.REQUEUE})
UNDONE_BY = {Act.HOLD: Act.RELEASE, Act.RELEASE: Act.HOLD}
_LIVE = frozenset({Phase.ACTIVE, Phase.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an act: Bootstrap's name of a colour, the rest of a sentence that begins with the job."""

    level: str
    text: str
    done: bool


def is_held(job: Job) -> bool:
    """Return whether a job waits because somebody, or Slurm, holds it; of tasks in one record, whether all do."""
    return job.phase is Phase.WAITING and all(map(_holds, _reasons(job)))


def is_held_in_part(job: Job) -> bool:
    """Return whether some of the tasks in one record are held; squeue joins the reasons of tasks that wait."""
    return job.phase is Phase.WAITING and any(map(_holds, _reasons(job))) and not is_held(job)


def is_held_by_owner(job: Job) -> bool:
    """Return whether its owner holds it, and so may release it."""
    return is_held(job) and "JobHeldUser" in job.reason


def _reasons(job: Job) -> list[str]:
    return job.reason.split(",")


def _holds(reason: str) -> bool:
    return "held" in reason.lower() or reason == "JobHoldMaxRequeue"


def possible(jobs: Sequence[Job]) -> list[Act]:
    """Return the acts that the state of a job, or of some task of an array, allows, apart from the time limit."""
    return [act for act in (Act.CANCEL, Act.HOLD, Act.RELEASE, Act.REQUEUE) if not refusal(act, jobs)]


def refusal(act: Act, jobs: Sequence[Job], *, minutes: int = 0, now: float = 0.0) -> str:
    """Return why the state of a job does not allow an act, "" if it does: the rest of a sentence after the job.

    Args:
        jobs: the live job; of an array its running tasks and its records of waiting ones.
        minutes: the new time limit. now: UTC epoch seconds.
    """
    waiting = [job for job in jobs if job.phase is Phase.WAITING]
    running = [job for job in jobs if job.phase in _LIVE]
    if not jobs:
        return "has ended already, or is not yours."
    if not waiting and not running:
        return "is ending already."
    if act is Act.HOLD:
        if not waiting:
            return "runs already. Only a job that waits can be held."
        return "is held already." if all(is_held(job) for job in waiting) else ""
    if act is Act.RELEASE:
        return _release_refusal(waiting)
    if act is Act.REQUEUE:
        return "" if running else "waits in the queue already."
    if act is Act.LIMIT:
        return _limit_refusal([*waiting, *running], minutes, now)
    return ""


def _release_refusal(waiting: Sequence[Job]) -> str:
    held = [job for job in waiting if is_held(job) or is_held_in_part(job)]
    if not held:
        return "is not held." if waiting else "runs already."
    if all("JobHeldAdmin" in job.reason and "JobHeldUser" not in job.reason for job in held):
        return "is held by an administrator. Only an administrator can release it: ask one."
    return ""


def _limit_refusal(jobs: Sequence[Job], minutes: int, now: float) -> str:
    limits = [job.time_limit for job in jobs]
    if minutes < 1:
        return "needs a time limit of one minute at least."
    if all(limit and minutes >= limit for limit in limits):
        return f"has a limit of {min(limits)} minutes. It can only be lowered; an administrator may raise it."
    if any(limit and minutes > limit for limit in limits):
        return "has tasks with a lower limit already, which would be raised. Choose the others."
    ran = max((now - job.start for job in jobs if job.phase is Phase.ACTIVE and job.start), default=0.0)
    if 60 * minutes <= ran:
        return f"has run for {math.floor(ran / 60)} minutes already and would end at once. Choose more, or cancel it."
    return ""


def outcome(act: Act, before: Sequence[Job], after: Sequence[Job], *, complaint: str = "", minutes: int = 0) -> Outcome:
    """Return what became of an act.

    Args:
        before, after: the live jobs of the target; none after it: it has ended.
        complaint: what Slurm's command has said, "" = nothing.
    """
    left = _undone(act, before, after, minutes)
    if act is not Act.CANCEL and not after:
        return Outcome("info", "has ended meanwhile.", False)
    if not left:
        return Outcome("success", _DONE[act].format(minutes=minutes), True)
    why = said(complaint)
    if len(left) < len(after):
        return Outcome("warning", f"{_DONE[act].format(minutes=minutes)[:-1]}, but not all of it: {why}", True)
    if act is Act.HOLD and all(job.phase in _LIVE for job in left):
        return Outcome("warning", "has started meanwhile. Only a job that waits can be held.", False)
    return Outcome("danger", f"is as it was: {why}", False)


_DONE = {
    Act.CANCEL: "is cancelled.",
    Act.HOLD: "is held: it waits until you release it.",
    Act.RELEASE: "is released: it waits for its turn.",
    Act.REQUEUE: "goes back into the queue. Slurm starts it again in two minutes at the earliest.",
    Act.LIMIT: "has a limit of {minutes} minutes.",
}


def _undone(act: Act, before: Sequence[Job], after: Sequence[Job], minutes: int) -> list[Job]:
    """Return the jobs that are not as they should be after an act."""
    if act is Act.CANCEL:
        return [job for job in after if job.phase is not Phase.ENDING]
    if act is Act.HOLD:
        waiting = [job for job in after if job.phase is Phase.WAITING]
        return [job for job in waiting if not is_held(job)] if waiting else list(after)
    if act is Act.RELEASE:
        return [job for job in after if is_held(job)]
    if act is Act.REQUEUE:
        restarts = {_key(job): job.restarts for job in before}
        return [job for job in after if job.phase in _LIVE and job.restarts <= restarts.get(_key(job), -1)]
    return [job for job in after if (job.phase is not Phase.ENDING and job.time_limit > minutes) or not job.time_limit]


def _key(job: Job) -> object:
    """Return what a task of an array keeps: its record may get another number."""
    return (job.array, job.tasks) if job.array else job.id


def said(complaint: str) -> str:
    """Return a complaint of Slurm's as a sentence."""
    for words, sentence in _COMPLAINTS:
        if words in complaint.lower():
            return sentence
    if not complaint:
        return "Slurm has said nothing about it. Look again in a moment."
    return f"Slurm says: {complaint}"


_COMPLAINTS = (
    ("access/permission denied", "Slurm does not allow it to the owner of a job."),
    ("operation is presently disabled", "it was submitted with --no-requeue, or nothing is requeued on this cluster."),
    ("only batch jobs are accepted", "it was started by srun or salloc. Only jobs of sbatch can be requeued."),
    ("invalid user id", "Slurm says that it is not yours."),
)
