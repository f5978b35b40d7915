"""The jobs of a user, whatever way they came: sbatch, srun, job arrays, sessions and their companions. Pure.

Made from the one snapshot of the queue that the hub has. The tasks of an array are one row with counts; what it says is
what the tasks say that wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job, Phase, Snapshot
from carme_hub.domain.cluster.own_jobs.acts import Act, is_held, is_held_by_owner, is_held_in_part, possible
from carme_hub.domain.cluster.own_jobs.targets import count_tasks
from carme_hub.domain.cluster.queue_position import ahead_of
from carme_hub.domain.cluster.reasons import waiting_sentence
from carme_hub.domain.sessions.session import Session
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.progress import local_timezone

#: Rows of a page; the others are counted.
MOST_ROWS = 200
LABELS = {Phase.WAITING: "Waiting", Phase.ACTIVE: "Running", Phase.ENDING: "Ending", Phase.UNKNOWN: "Not known"}
HELD = "Held"


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job, or the tasks of one array.

    Attributes:
        id: as Slurm's commands take it. what: its name; of a job of ours what it is. state: slug; label: it for people.
        said: why it waits, or where and since when it runs. gpus: as a text. counts: of an array's tasks, as a text.
        acts: what may be done to it now, as slugs; of more nodes and batch jobs of the hub only ``cancel``.
    """

    id: str
    what: str
    state: str
    label: str
    said: str
    gpus: str
    counts: str = ""
    acts: tuple[str, ...] = ()


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


def rows_of(
    named: Iterable[tuple[str, Sequence[Job], Session | None]], snapshot: Snapshot, now: float, *, virtual: bool = False
) -> list[JobRow]:
    """Return rows of chosen jobs: each with the id that was asked for, its live jobs, and its session of the hub's."""
    return [
        _array_row(id, jobs, snapshot, now, virtual=virtual)
        if (jobs[0].array and not jobs[0].tasks.isdigit()) or len(jobs) > 1
        else replace(_row(jobs[0], own, snapshot, now, virtual=virtual), id=id)
        for id, jobs, own in named
        if jobs
    ]


def _row(job: Job, own: Session | None, snapshot: Snapshot, now: float, *, virtual: bool) -> JobRow:
    return JobRow(
        str(job.id),
        _what(own) if own is not None else job.name,
        *_state(job),
        _said(job, snapshot, now),
        _gpus(job, virtual=virtual),
        acts=_acts([job], own),
    )


def _acts(jobs: Sequence[Job], own: Session | None = None) -> tuple[str, ...]:
    """Return what may be done to a job, or to some task of an array."""
    if own is not None:
        return () if own.is_ending else (Act.CANCEL.value,)
    # A job of the hub's that it does not know is a stray, which the reconciler ends.
    return () if jobs[0].name.startswith(JOB_NAME_PREFIX) else tuple(act.value for act in possible(jobs))


def _what(session: Session) -> str:
    if not session.parent:
        return f"Session {session.server_name}".strip()
    if session.request.batch:
        return f"Batch job {session.request.batch}"
    return f"More nodes{f' for {session.request.purpose}' if session.request.purpose else ''}"


def _state(job: Job) -> tuple[str, str]:
    return job.phase.value, HELD if is_held(job) else LABELS[job.phase]


def _said(job: Job, snapshot: Snapshot, now: float) -> str:
    if is_held_by_owner(job):
        return "You hold it: it starts only after you release it."
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


def _array_row(id: str, tasks: Sequence[Job], snapshot: Snapshot, now: float, *, virtual: bool) -> JobRow:
    waiting = sorted((job for job in tasks if job.phase is Phase.WAITING), key=is_held)
    others = [job for job in tasks if job.phase is not Phase.WAITING]
    first = (waiting or others)[0]
    counts = [
        *([f"{free} waiting"] if (free := sum(count_tasks(job.tasks) for job in waiting if not is_held(job))) else []),
        *([f"{held} held"] if (held := sum(count_tasks(job.tasks) for job in waiting if is_held(job))) else []),
        *(["some held"] if any(map(is_held_in_part, waiting)) else []),
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
        acts=_acts(tasks),
    )


def sessions_by_job(sessions: Iterable[Session]) -> dict[str, Session]:
    """Return sessions by the names of their jobs."""
    return {session.job_name: session for session in sessions}
