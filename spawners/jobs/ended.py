"""A user's jobs that have ended in the last days, with what they used: for the home page, and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carme_hub.domain.activity.accounted import efficiency_of
from carme_hub.domain.cluster.own_jobs.ended import EndedJob
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
        log: whether there is one file to look for.
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


def ended_row(some: Sequence[EndedJob], now: float, *, virtual: bool = False) -> EndedRow:
    """Return the row of one job, or of the tasks of one array."""
    last = max(some, key=lambda job: (job.end, job.id))
    found = efficiency_of(last, virtual=virtual)
    in_array = bool(last.array)
    ends = Counter(_label(job) for job in some)
    kind = "virtual " if virtual else ""
    return EndedRow(
        id=str(last.array or last.id),
        what=last.name,
        label=next(iter(ends)) if len(ends) == 1 else "Ended",
        said="" if last.state == "COMPLETED" else _said(last),
        when=clock(last.end, now) if last.end else "",
        ran=_ran(last.seconds) if last.start else "",
        gpus=f"{last.gpus.count} × {kind}{last.gpus.type}" if last.gpus else "",
        used=(f"Task {last.task}: " if in_array and found else "") + (found.sentence if found else ""),
        suggestion=found.suggestion if found else "",
        counts=", ".join(f"{count} {label.lower()}" for label, count in ends.items()) if in_array else "",
        log=not in_array and bool(last.start),
    )


def _label(job: EndedJob) -> str:
    return _STATES.get(job.state.split(" ", 1)[0], job.state.replace("_", " ").capitalize())


def _said(job: EndedJob) -> str:
    """Return how a job ended, in words that do not call it a session."""
    word = job.state.split(" ", 1)[0]
    status, signal = job.exit_code or (0, 0)
    if word == "FAILED":
        return f"It was ended by signal {signal}." if signal else f"Its exit code is {status}."
    said = {
        "CANCELLED": "",
        "TIMEOUT": "It was ended at its time limit. Ask for a longer time, or save its state before.",
        "OUT_OF_MEMORY": "It used more memory than it had asked for. Ask for more memory.",
    }
    return said.get(word, end_sentence(job.state, job.exit_code).replace("The session", "The job"))


def _ran(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 120 else duration(round(seconds / 60))


def as_json(job: EndedJob, *, virtual: bool = False) -> Mapping[str, object]:
    """Return an ended job for programs; times are UTC epoch seconds, ``null`` = not known."""
    found = efficiency_of(job, virtual=virtual)
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
        "used": found.sentence if found else "",
        "suggestion": found.suggestion if found else "",
    }
