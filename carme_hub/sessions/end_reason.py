"""How a session ended, as one sentence for its user: by accounting, the controller, or the end mark of its job."""

from __future__ import annotations

from carme_hub.domain.cluster.end_mark import EndMark
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.reasons import end_sentence, mark_sentence
from carme_hub.domain.sessions.end_cause import CONTROLLER_LOST, INTERRUPTED
from carme_hub.domain.sessions.liveness import Verdict
from carme_hub.domain.sessions.session import Session, SessionState


def end_reason(session: Session, verdict: Verdict, mark: EndMark | None = None, *, no_end: bool = False) -> str:
    """Return one sentence for the user: how the session ended. ``no_end``: accounting has no end of the job."""
    record, job, folder = verdict.record, verdict.job, session.request.working_folder
    if record is not None and record.phase is Phase.TERMINAL:
        return end_sentence(record.state, _exit_code(session, record.exit_code), folder=folder)
    if job is not None and job.phase is Phase.TERMINAL:
        return end_sentence(job.state, _exit_code(session, job.exit_code), folder=folder)
    # Without an end in accounting, the node or the hub ended the job, and not the server.
    if mark is not None and not (mark.ended_by_others and no_end):
        return mark_sentence(mark, folder)
    if session.state is SessionState.INTENDED:
        return INTERRUPTED
    return CONTROLLER_LOST


def _exit_code(session: Session, said: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return exit status and signal: sacct subtracts 128 from larger statuses, so it shows a signal as a status."""
    told = EndMark(session.server_exit, session.job_id)
    return (told.status, told.signal) if session.server_ended and told.signal else said
