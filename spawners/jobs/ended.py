"""A user's jobs that have ended in the last days, with what they used: for the home page, and for programs.

What a job used is read from Slurm's accounting for its user. Where the activity service has stored the job, its advice
is said in place of that: it looks at the last few jobs of the kind. Batch jobs of the hub come from that service alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carme_hub.domain.activity.accounted import advice_of, efficiency_of
from carme_hub.domain.activity.advice import advice
from carme_hub.domain.activity.finished import FinishedJob
from carme_hub.domain.cluster.own_jobs.ended import EndedJob, last_of
from carme_hub.domain.cluster.reasons import end_sentence
from carme_hub.spawners.form.durations import clock, duration

#: Days that are looked at, and rows of the page.
DAYS, MOST_ROWS = 3, 10
_STATES = {
    "COMPLETED": "Completed",
    "FAILED": "Failed",
    "TIMEOUT": "Time limit reached",
    "OUT_OF_MEMORY": "Out of memory",
    "CANCELLED": "Cancelled",
    "NODE_FAIL": "Node failed",
    "PREEMPTED": "Preempted",
}


@dataclass(frozen=True, slots=True)
class EndedRow:
    """One job that has ended, or tasks of an array.

    Attributes:
        id: as Slurm's commands take it. label: how it ended; counts: of tasks, by how they ended. when: as a text.
        ran: for how long, "" = never. used, suggestion: what it used, and what to ask for next time, "" = not known.
        log: whether there is one file to look for. ours: a batch job of the hub, which has a list of its own.
    """

    id: str
    what: str
    label: str
    said: str
    when: str
    ran: str
    gpus: str
    used: str = ""
    suggestion: str = ""
    counts: str = ""
    log: bool = True
    ours: bool = False


def ended_rows(
    groups: Sequence[Sequence[EndedJob]], finished: Sequence[FinishedJob], now: float, *, virtual: bool = False
) -> tuple[list[EndedRow], int]:
    """Return the rows of jobs that have ended, the newest first, and how many are left out.

    Args:
        groups: jobs that were not the hub's, the tasks of an array together. finished: jobs of their user that the
            activity service has stored; none where there is no such service.
    """
    since = now - DAYS * 86_400
    # Sessions have cards, and companions belong to one.
    batch = [job for job in finished if job.session and not job.interactive and job.ended >= since]
    ends: list[tuple[float, Sequence[EndedJob] | FinishedJob]] = [(job.ended, job) for job in batch]
    ends += [(last_of(some).end, some) for some in groups]
    ends.sort(key=lambda each: each[0], reverse=True)
    rows = [
        _batch_row(each, finished, now, virtual=virtual)
        if isinstance(each, FinishedJob)
        else ended_row(each, now, finished, virtual=virtual)
        for _, each in ends[:MOST_ROWS]
    ]
    return rows, len(ends[MOST_ROWS:])


def ended_row(
    some: Sequence[EndedJob], now: float, finished: Sequence[FinishedJob] = (), *, virtual: bool = False
) -> EndedRow:
    """Return the row of one job, or of the tasks of one array."""
    last = last_of(some)
    advised = advice_of(last, finished, virtual=virtual)
    plain = efficiency_of(last, virtual=virtual) if advised is None else None
    used, suggestion = (advised.line, advised.suggestion) if advised else ("", "")
    if plain is not None:
        used, suggestion = plain.sentence, plain.suggestion
    in_array = bool(last.array)
    ends = Counter(_label(job.state) for job in some)
    said = "" if advised is not None and advised.saves == "more" else _said(last.state, last.exit_code)
    return EndedRow(
        id=str(last.array or last.id),
        what=last.name,
        label=next(iter(ends)) if len(ends) == 1 else "Ended",
        said=said,
        when=clock(last.end, now) if last.end else "",
        ran=_ran(last.seconds) if last.start else "",
        gpus=_gpus(last.gpus.count, last.gpus.type, virtual=virtual),
        used=(f"Task {last.task}: " if in_array and used else "") + used,
        suggestion=suggestion,
        counts=", ".join(f"{count} {label.lower()}" for label, count in ends.items()) if in_array else "",
        log=not in_array and bool(last.start),
    )


def _batch_row(job: FinishedJob, finished: Sequence[FinishedJob], now: float, *, virtual: bool) -> EndedRow:
    advised = advice(job, finished)
    return EndedRow(
        id=job.shown_id or str(job.job_id),
        what=f"Batch job {job.name}",
        label=_label(job.state),
        said="" if advised.saves == "more" else _said(job.state, (job.exit_code, 0) if job.exit_code else None),
        when=clock(job.ended, now),
        ran=_ran(job.seconds),
        gpus=_gpus(job.asked.gpus, job.gpu_type, virtual=virtual or job.asked.virtual),
        used=advised.line,
        suggestion=advised.suggestion,
        log=False,
        ours=True,
    )


def _gpus(count: int, kind: str, *, virtual: bool) -> str:
    return f"{count} × {'virtual ' if virtual else ''}{kind}" if count else ""


def _label(state: str) -> str:
    return _STATES.get(state.split(" ", 1)[0], state.replace("_", " ").capitalize())


def _said(state: str, exit_code: tuple[int, int] | None) -> str:
    """Return how a job ended, in words that do not call it a session; "" where its label says it."""
    word = state.split(" ", 1)[0]
    status, signal = exit_code or (0, 0)
    if word == "FAILED":
        return f"It was ended by signal {signal}." if signal else f"Its exit code is {status}."
    said = {
        "COMPLETED": "",
        "CANCELLED": "",
        "TIMEOUT": "It was ended at its time limit. Ask for a longer time, or save its state before.",
        "OUT_OF_MEMORY": "It used more memory than it had asked for. Ask for more memory.",
    }
    return said.get(word, end_sentence(state, exit_code).replace("The session", "The job"))


def _ran(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 120 else duration(round(seconds / 60))


def as_json(job: EndedJob, finished: Sequence[FinishedJob] = (), *, virtual: bool = False) -> Mapping[str, object]:
    """Return an ended job for programs; times are UTC epoch seconds, ``null`` = not known.

    Args:
        finished: jobs of its user that the activity service has stored; what it says takes the place of accounting's.
    """
    found, advised = efficiency_of(job, virtual=virtual), advice_of(job, finished, virtual=virtual)
    said = (advised.line, advised.suggestion) if advised else (found.sentence, found.suggestion) if found else ("", "")
    return {
        "job": job.key,
        "name": job.name,
        "state": job.state.split(" ", 1)[0],
        "submitted": int(job.submitted),
        "started": int(job.start),
        "ended": int(job.end),
        "exit_code": job.exit_code[0] if job.exit_code else None,
        "gpus": job.gpus.count,
        "cpus": job.cpus,
        "memory_mib": job.memory_mib,
        "cpus_used": found.cpus if found else None,
        "memory_used_mib": found.memory if found else None,
        "used": said[0],
        "suggestion": said[1],
    }
