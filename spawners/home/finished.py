"""Jobs of the visitor's that have ended, and what to ask for next time, as the home page says it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from carme_hub.domain.activity.advice import Advice, advice
from carme_hub.domain.activity.finished import FinishedJob
from carme_hub.domain.sessions.session import Session
from carme_hub.domain.wording import duration
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.hub.finished_jobs import DAY, of_ended
from carme_hub.store.activity import JobUse

#: Days for which an ended job is listed, and how many at most; the activity service's page has all.
DAYS, MOST = 3, 5


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that was no session: what and when it was, and what is said of it."""

    what: str
    number: str
    when: str
    ran: str
    state: str
    line: str
    suggestion: str


def ended_jobs(finished: Sequence[FinishedJob], now: float) -> list[EndedJob]:
    """Return the jobs of the command line and the batch jobs that have ended in the last days, the newest first."""
    found = [job for job in finished if not job.interactive and job.ended >= now - DAYS * DAY]
    return [_row(job, advice(job, finished), now) for job in found[:MOST]]


def _row(job: FinishedJob, said: Advice, now: float) -> EndedJob:
    return EndedJob(
        what=f"Batch job {job.name}" if job.session else job.name,
        number=job.shown_id or str(job.job_id),
        when=clock(job.ended, now),
        ran=duration(rounded(job.seconds)),
        state=job.state.replace("_", " ").lower(),
        line=said.line,
        suggestion=said.suggestion,
    )


def advice_of_session(
    session: Session, uses: Iterable[JobUse], finished: Sequence[FinishedJob], *, virtual: bool
) -> Advice:
    """Return what is said of a session that has ended; nothing where nothing was measured."""
    some = list(uses)
    stored = next((job for job in finished if job.session == session.id), None)
    if not some and stored is None:
        return Advice("")
    return advice(stored or of_ended(session, some, virtual=virtual), finished)


def rounded(seconds: float) -> int:
    """Return seconds, whole minutes where there are many."""
    return int(seconds) if seconds < 600 else round(seconds / 60) * 60
