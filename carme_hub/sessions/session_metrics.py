"""Counts and traces the phases of starts, and counts why sessions ended, from the changes of their rows.

``SessionMetrics.changed`` is a listener of the registry. The queue and the container's start are told apart by the
job's start in Slurm's last answer, which has whole seconds. Companions and batch jobs have no server, and are not
counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from carme_hub import metrics, traces
from carme_hub.domain.cluster.jobs import Snapshot
from carme_hub.domain.sessions.end_cause import end_cause
from carme_hub.domain.sessions.session import Session, SessionState


class SessionMetrics:
    """Counts what this process sees; a start that began before the hub's own is not timed.

    Args:
        latest: returns Slurm's last answer, None before the first.
    """

    def __init__(self, latest: Callable[[], Snapshot | None], clock: Callable[[], float] = time.time) -> None:
        self._latest, self._clock = latest, clock
        self._intended: dict[str, float] = {}  # since when a session is in its phase, until its server has called back
        self._accepted: dict[str, float] = {}
        self._started: set[str] = set()

    def changed(self, session: Session) -> None:
        """Count what a change of a row says."""
        if session.parent:
            return
        now = self._clock()
        if session.state is SessionState.INTENDED and not session.is_ending:
            self._intended.setdefault(session.id, now)
        elif session.state is SessionState.SUBMITTED and (began := self._intended.pop(session.id, 0.0)):
            _note("submission", session, began, now)
            self._accepted[session.id] = now
        elif session.state is SessionState.RUNNING and session.id not in self._started:
            self._started.add(session.id)
            self._note_callback(session)
        elif session.state is SessionState.ENDED:
            self._forget(session.id)
            if session.started:
                metrics.SESSIONS_ENDED.labels(end_cause(session).value).inc()

    def _note_callback(self, session: Session) -> None:
        accepted = self._accepted.pop(session.id, 0.0)
        began = self._job_start(session)
        if accepted and began:
            began = min(max(began, accepted), session.started)
            _note("queue", session, accepted, began)
            _note("container", session, began, session.started)

    def _job_start(self, session: Session) -> float:
        """Return when the session's job started, 0.0 if Slurm has not said it."""
        latest = self._latest()
        jobs = latest.named(session.job_name, session.user) if latest is not None else ()
        return jobs[-1].start if jobs else 0.0

    def _forget(self, id: str) -> None:
        self._intended.pop(id, None)
        self._accepted.pop(id, None)
        self._started.discard(id)


def _note(phase: str, session: Session, began: float, ended: float) -> None:
    metrics.START_PHASE.labels(phase).observe(ended - began)
    traces.phase(session.id, phase, began, ended)
