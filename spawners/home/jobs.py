"""The jobs of a user, whatever way they came: sbatch, srun, job arrays, sessions and their companions. Pure.

Made from the one snapshot of the queue that the hub has. The tasks of an array are one row with counts; what it says is
what the tasks say that wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job, Phase, Snapshot
from carme_hub.domain.cluster.queue_position import ahead_of
from carme_hub.domain.cluster.reasons import waiting_sentence
from carme_hub.domain.sessions.session import Session
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.progress import local_timezone

#: Rows of a page; the others are counted.
MOST_ROWS = 200
LABELS = {Phase.WAITING: "Waiting", Phase.ACTIVE: "Running", Phase.ENDING: "Ending", Phase.UNKNOWN: "Not known"}
_TASKS = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job, or the tasks of one array.

    Attributes:
        id: as Slurm's commands take it. what: its name; of a job of ours what it is. state: slug; label: it for people.
        said: why it waits, or where and since when it runs. gpus: as a text. counts: of an array's tasks, as a text.
        cancels: whether it may be cancelled here; sessions and their companions have their own ways.
    """

    id: str
    what: str
    state: str
    label: str
    said: str
    gpus: str
    counts: str = ""
    cancels: bool = True


def job_rows(
    snapshot: Snapshot, user: str, sessions: Mapping[str, Session], now: float, *, virtual: bool = False
) -> tuple[list[JobRow], int]:
    """Return the rows of a user's jobs that have not ended, the newest first, and how many are left out.

    Args:
        sessions: the user's open sessions by the names of their jobs; their servers have cards of their own, and are
            left out. virtual: the GPUs are a sandbox's virtual GPUs.
    """
    entries: dict[str, list[Job]] = {}
    for job in snapshot.of_user(user):
        if job.phase is Phase.TERMINAL:
            continue
        own = sessions.get(job.name)
        if own is None or own.parent:
            entries.setdefault(str(job.array or job.id), []).append(job)
    # Somebody may have thousands: sort first, and say only what is shown.
    ordered = sorted(
        entries.items(), key=lambda each: (min(job.submitted for job in each[1]), int(each[0])), reverse=True
    )
    shown = [
        _array_row(id, jobs, snapshot, now, virtual=virtual)
        if jobs[0].array
        else _row(jobs[0], sessions.get(jobs[0].name), snapshot, now, virtual=virtual)
        for id, jobs in ordered[:MOST_ROWS]
    ]
    return shown, max(0, len(ordered) - MOST_ROWS)


def _row(job: Job, own: Session | None, snapshot: Snapshot, now: float, *, virtual: bool) -> JobRow:
    # A job of the hub's that it does not know is a stray, which the reconciler ends.
    return JobRow(
        str(job.id),
        _what(own) if own is not None else job.name,
        *_state(job),
        _said(job, snapshot, now),
        _gpus(job, virtual=virtual),
        cancels=not job.name.startswith(JOB_NAME_PREFIX),
    )


def _what(session: Session) -> str:
    if session.request.batch:
        return f"Batch job {session.request.batch}"
    return f"More nodes{f' for {session.request.purpose}' if session.request.purpose else ''}"


def _state(job: Job) -> tuple[str, str]:
    return job.phase.value, LABELS[job.phase]


def _said(job: Job, snapshot: Snapshot, now: float) -> str:
    if job.phase is Phase.WAITING:
        sentence = waiting_sentence(job, ahead_of(job, snapshot), now, local_timezone())
        return f"{sentence[:1].upper()}{sentence[1:]}."
    if job.phase is Phase.ENDING:
        return "Slurm ends it."
    if job.phase is Phase.UNKNOWN:
        return f"Slurm says {job.state}."
    where = f"On {', '.join(job.nodes[:4])}{' and more' if len(job.nodes) > 4 else ''}" if job.nodes else "Running"
    since = f" since {clock(job.start, now)}" if job.start else ""
    until = (
        f", until {clock(job.start + 60 * job.time_limit, now)} at the latest" if job.start and job.time_limit else ""
    )
    return f"{where}{since}{until}."


def _gpus(job: Job, *, virtual: bool) -> str:
    return f"{job.gpus.count} × {'virtual ' if virtual else ''}{job.gpus.type}" if job.gpus else ""


def _array_row(id: str, tasks: list[Job], snapshot: Snapshot, now: float, *, virtual: bool) -> JobRow:
    waiting = [job for job in tasks if job.phase is Phase.WAITING]
    others = [job for job in tasks if job.phase is not Phase.WAITING]
    first = (waiting or others)[0]
    counts = [
        *([f"{sum(count_tasks(job.tasks) for job in waiting)} waiting"] if waiting else []),
        *([f"{len(others)} running"] if others else []),
    ]
    state, label = ("active", "Running") if others else _state(first)
    said = _said(first, snapshot, now)
    if waiting and others:
        said = f"Its next task: {said[:1].lower()}{said[1:]}"
    return JobRow(
        id,
        first.name,
        state,
        label,
        said,
        _gpus(first, virtual=virtual),
        ", ".join(counts),
        cancels=not first.name.startswith(JOB_NAME_PREFIX),
    )


def count_tasks(tasks: str) -> int:
    """Return how many tasks a list of Slurm's has: ``1,4-7%2`` has five, ``0-9:3`` four; 1 where it cannot be read."""
    count = 0
    for part in tasks.partition("%")[0].strip("[]").split(","):
        found = _TASKS.fullmatch(part.strip())
        if found is None:
            return max(1, count)
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        count += max(0, last - first) // max(1, step) + 1
    return count


def sessions_by_job(sessions: Iterable[Session]) -> dict[str, Session]:
    """Return sessions by the names of their jobs."""
    return {session.job_name: session for session in sessions}
