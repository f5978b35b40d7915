"""What the database has of a session. Synchronous: the reader calls each method in a thread; nothing is written.

Each method is one source: it reads rows, and returns values of the domain or dated lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from carme_hub.domain.calendar.reservations import Reservation, stem_of_id
from carme_hub.domain.calendar.slurm_reservations import PREFIX
from carme_hub.domain.ledger.entries import Entry
from carme_hub.domain.sessions.session import Session
from carme_hub.domain.timeline.lines import Line
from carme_hub.domain.timeline.money_lines import anomaly_lines
from carme_hub.domain.timeline.session_lines import act_line, finished_line, idle_line, message_line, use_line
from carme_hub.errors import Refused
from carme_hub.store.activity import ActivityStore
from carme_hub.store.administration.history import acts_on, shown_between
from carme_hub.store.check import open_read_only
from carme_hub.store.finished_jobs import FinishedJobStore
from carme_hub.store.idle import IdleStore
from carme_hub.store.ledger.idempotency import notices_of
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationStore
from carme_hub.store.sessions import SessionStore

from .subject import Subject

#: Companions of a session that are shown.
MOST_COMPANIONS = 50
#: Seconds after an end in which what belongs to it is still written.
_AFTER = 3600.0


@dataclass(frozen=True, slots=True)
class During:
    """The time of a session, UTC epoch seconds, and whose it is."""

    user: str
    since: float
    until: float

    @classmethod
    def of(cls, session: Session, now: float) -> During:
        """Return the time from the click to an hour after the end, or to now."""
        return cls(session.user, session.created, min(now, session.ended + _AFTER) if session.ended else now)


class SessionRows:
    """The rows of one database and cluster, read only.

    Raises:
        StoreError: there is no such database; each method raises it where the database does not answer.
    """

    def __init__(self, url: str, cluster: str) -> None:
        self._engine: Any = open_read_only(url)
        self._cluster = cluster
        self._sessions = SessionStore(self._engine)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def find(self, subject: Subject) -> list[Session]:
        """Return the sessions that are meant, the newest first; usually one or none."""
        if subject.id:
            found = self._sessions.get(subject.id)
        elif subject.job and ((of_job := self._sessions.of_job(self._cluster, subject.job)) or not subject.beginning):
            return of_job
        elif subject.beginning:
            several = self._sessions.beginning_with(subject.beginning, 6)
            if len(several) > 1:
                names = ", ".join(each.id for each in several)
                raise Refused(f"Several sessions begin with {subject.beginning}: {names}. Write more of it.")
            return several
        else:
            found = self._sessions.last_of(subject.user, subject.server)
        return [found] if found is not None else []

    def companions(self, session: Session) -> tuple[Session, ...]:
        """Return its newest companions and batch jobs."""
        return tuple(self._sessions.companions_of(session.id, MOST_COMPANIONS))

    def entries(self, session: Session | None, job: int) -> tuple[Entry, ...]:
        """Return the ledger's entries of a session, or of a job that is none of ours."""
        with LedgerStore(self._engine).reading(self._cluster) as reads:
            return tuple(reads.of_session(session.id) if session is not None else reads.charges([job]))

    def anomalies(self, jobs: Sequence[int]) -> list[Line]:
        """Return records of jobs that looked wrong to the ledger."""
        with LedgerStore(self._engine).reading(self._cluster) as reads:
            return [
                line
                for each in reads.anomalies_of_jobs(jobs)
                for line in anomaly_lines(
                    each.kind, each.job_id, each.found, each.settled, each.settled_by, each.decision
                )
            ]

    def notices(self, during: During) -> list[Line]:
        """Return the notices on GPU time that its user got meanwhile."""
        with LedgerStore(self._engine).reading(self._cluster) as reads:
            found = notices_of(reads, during.user, during.since)
        return [message_line(each.at, "notice", "Carme Hub", each.text) for each in found if each.at <= during.until]

    def bookings(self, session: Session) -> tuple[Reservation, ...]:
        """Return the bookings in whose Slurm reservations it was to run."""
        stems = {name.rsplit("-", 1)[0] for name in session.request.reservation.split(",") if name.startswith(PREFIX)}
        if not stems:
            return ()
        during = During.of(session, session.ended or session.created)
        with ReservationStore(LedgerStore(self._engine)).reading(self._cluster) as reads:
            found = reads.changed_since(during.since - _AFTER)
        return tuple(each for each in found if stem_of_id(each.id) in stems)

    def idle_events(self, session: Session) -> list[Line]:
        """Return what the rules on idle sessions did."""
        found = IdleStore(self._engine, self._cluster).of([session.id]).get(session.id, [])
        return [idle_line(each.at, each.kind, each.seconds, each.about) for each in found]

    def messages(self, during: During) -> list[Line]:
        """Return messages to its user and announcements to everybody meanwhile."""
        found = shown_between(self._engine, self._cluster, during.user, during.since, during.until)
        return [message_line(each.at, each.kind, each.actor, each.text, each.seen) for each in found]

    def acts(self, targets: Sequence[str], during: During) -> list[Line]:
        """Return what administrators did to it, or to its node, meanwhile."""
        found = acts_on(self._engine, self._cluster, targets, during.since, during.until)
        return [
            act_line(each.at, each.actor.name, each.action, each.target, each.reason, each.outcome) for each in found
        ]

    def use(self, session: Session) -> list[Line]:
        """Return what it used on each of its nodes."""
        found = ActivityStore(self._engine, self._cluster).jobs([session.id])
        # The end of a minute that was measured in part is that of the part, counted from the minute's beginning.
        return [use_line(each.node, max(float(each.at), session.started), each.total) for each in found]

    def finished(self, jobs: Sequence[int], since: float) -> list[Line]:
        """Return what is known of jobs that have ended."""
        found = FinishedJobStore(self._engine, self._cluster).known(jobs, since)
        return [finished_line(each) for each in found.values()]
