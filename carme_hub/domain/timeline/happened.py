"""What happened to a session, in one paragraph, from what is known of it. Pure.

What is not known is said to be not known: a source that gave no answer never counts as "nothing happened".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import tzinfo

from carme_hub.domain.calendar.reservations import Reservation
from carme_hub.domain.cluster.end_mark import EndMark
from carme_hub.domain.cluster.history import PastJob
from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.reasons import end_sentence, mark_sentence
from carme_hub.domain.ledger.entries import Entry
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.domain.wording import duration

from .job_lines import nodes_of, past_lines, queue_lines, queue_words, record_words
from .lines import OUTPUT, Line, Rank, Unread, clock, in_order
from .money_lines import booking_lines, ledger_lines, money_words
from .session_lines import asked, companion_lines, exit_words, session_lines


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a session; None = its source gave no answer, and ``unread`` says why.

    Attributes:
        id: the session's, "" for a job that is none of ours. now: when the sources were asked, UTC epoch seconds.
        rows_read: whether the database answered. queue: of squeue, now. past: of sacct, oldest first.
        mark: the end mark in the job's log. output: the end of that log, and output_at when it was last written, 0 =
            not known. lines: of further sources.
    """

    id: str
    now: float
    rows_read: bool = True
    session: Session | None = None
    companions: tuple[Session, ...] = ()
    queue: tuple[Job, ...] | None = None
    past: tuple[PastJob, ...] | None = None
    entries: tuple[Entry, ...] | None = None
    bookings: tuple[Reservation, ...] = ()
    mark: EndMark | None = None
    output: str = ""
    output_at: float = 0.0
    lines: tuple[Line, ...] = ()
    unread: tuple[Unread, ...] = ()


def all_lines(known: Known, zone: tzinfo) -> list[Line]:
    """Return every line of a session, in order."""
    found: list[Line] = [*known.lines]
    if known.session is not None:
        found += session_lines(known.session)
    found += companion_lines(known.companions)
    found += queue_lines(known.queue or (), known.now, zone)
    found += past_lines(known.past or ())
    found += ledger_lines(known.entries or ())
    found += booking_lines(known.bookings, zone)
    if known.output:
        text = f"The end of the job's output:\n{known.output}"
        found.append(Line(known.output_at, OUTPUT, text, Rank.ENDED, {"event": "output"}))
    return in_order(found)


def what_happened(known: Known, zone: tzinfo) -> str:
    """Return the paragraph."""
    parts = [*_begin(known, zone), *_job(known), *_end(known, zone)]
    if known.session is not None and not known.session.request.batch:
        parts.append(money_words(known.entries))
    if known.unread:
        names = ", ".join(dict.fromkeys(each.source for each in known.unread))
        parts.append(f"Not known is what could not be read: {names}.")
    return " ".join(filter(None, parts))


def _begin(known: Known, zone: tzinfo) -> Iterator[str]:
    session = known.session
    if session is not None:
        kind = f"a companion of session {session.parent}" if session.parent else "a session"
        kind = f"a batch job of run {session.request.batch}" if session.request.batch else kind
        server = f" “{session.server_name}”" if session.server_name else ""
        when = clock(session.created, zone)
        yield f"{session.user} asked for {kind}{server} at {when}: {asked(session.request)}."
    elif not known.rows_read:
        yield "The database was not read, so what was asked for is not known."
    elif known.id:
        yield "The database has no row of this session."
    else:
        yield "This job was not started by the hub: the database has no session for it."


def _job(known: Known) -> Iterator[str]:
    """Yield what became of its job until its server was there."""
    session, last = known.session, known.past[-1].record if known.past else None
    if session is not None and not session.job_id and last is None:
        if session.state is SessionState.ENDED:
            yield "It never had a job that the hub knew of."
        elif known.past is None or known.queue is None:
            yield "Whether it has a job is not known: the hub has learned of none, and Slurm gave no answer."
        else:
            yield "It has no job: the hub has learned of none, and neither queue nor accounting has one."
        return
    if last is not None:
        number = f"job {last.id}"
        if len(known.past or ()) > 1:
            yield f"Slurm has {len(known.past or ())} incarnations of its job; the last is {number}."
        if last.start:
            waited = int(max(0.0, last.start - last.submitted))
            yield f"Slurm started {number} on {nodes_of(last)} {f'after {duration(waited)}' if waited else 'at once'}."
        elif last.phase is Phase.TERMINAL:
            yield f"Slurm took {number}, which never started."
        else:
            yield f"Slurm took {number}."
    elif session is not None:
        yield f"Slurm took it as job {session.job_id}."
    if session is None or session.parent:
        return
    if session.started:
        yield f"Its server reported {duration(max(1, int(session.started - session.created)))} after the click."
    elif session.state is SessionState.ENDED or (last is not None and last.phase is Phase.TERMINAL):
        yield "Its server never reported to the hub, so nobody could open it."


def _end(known: Known, zone: tzinfo) -> Iterator[str]:
    session, last = known.session, known.past[-1].record if known.past else None
    if session is not None and session.cancel_wanted:
        said = f" ({session.cancel_reason})" if session.cancel_reason not in ("", session.end_reason) else ""
        yield f"Its end was asked for at {clock(session.cancel_wanted, zone)}{said}."
    if session is not None and session.server_ended:
        yield f"Its server ended at {clock(session.server_ended, zone)}, {exit_words(session.server_exit)}."
    if session is not None and session.state is SessionState.ENDED:
        ran = f" after {duration(max(1, int(session.ended - session.started)))}" if session.started else ""
        yield f"It ended at {clock(session.ended, zone)}{ran}: {session.end_reason or 'no reason is stored.'}"
        yield from _slurms_word(known, session)
        return
    if last is not None and last.phase is Phase.TERMINAL:
        yield f"Accounting has its end: {last.state} at {clock(last.end, zone)}; {record_words(last)}"
        if session is not None:
            yield "The hub has not closed the session yet: it needs a second proof, or its token could not be revoked."
        return
    live = known.queue[-1] if known.queue else None
    if live is not None:
        yield f"Now job {live.id} is {live.state}: {queue_words(live, known.now, zone)}"
        return
    if known.mark is not None:
        yield f"Its job wrote that it has ended, and neither queue nor accounting says so: {mark_sentence(known.mark)}"
        return
    if known.queue is None:
        yield "Whether it runs now is not known, because the queue was not read; it is open until its end is proved."
    elif session is not None and session.job_id:
        accounting = "accounting was not read" if known.past is None else "accounting has no end of it"
        yield f"The queue does not show its job, and {accounting}: no proof of an end, so it is open."


def _slurms_word(known: Known, session: Session) -> Iterator[str]:
    """Yield what Slurm, or the job's own end mark, says of an end, where the stored reason does not say it already."""
    last, folder = known.past[-1].record if known.past else None, session.request.working_folder
    if last is not None and last.phase is Phase.TERMINAL:
        words = end_sentence(last.state, last.exit_code, folder=folder)
        by_signal = bool(
            session.server_ended and session.server_exit > 128
        )  # the reason has the status from the job itself
        if words not in session.end_reason and (session.cancel_reason or not by_signal):
            yield f"Slurm's accounting says {last.state}: {words}"
    elif known.mark is not None and (words := mark_sentence(known.mark, folder)) not in session.end_reason:
        yield f"The job's own last line says: {words}"
    for past in known.past or ():
        for step in past.steps:
            if step.state.startswith("OUT_OF_ME") and "memory" not in session.end_reason:
                yield f"Step {past.record.id}.{step.id} ran out of memory."
