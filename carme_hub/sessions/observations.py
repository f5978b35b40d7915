"""Observations of sessions: each snapshot of the queue is added to the history of each open session, in small steps.

A snapshot is noted with the sessions that it is about: those that were open, and not just being submitted, when it
arrived. Adding it later gives the same history as adding it at once. The reconciler calls this in each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field

from carme_hub.domain.cluster.end_mark import EndMark
from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.sessions.liveness import Accounting, History, Liveness, LivenessTimeouts, Observation, Verdict
from carme_hub.domain.sessions.session import Session

#: Sessions per step of the event loop.
BATCH_SIZE = 100


@dataclass(slots=True)
class SessionObservation:
    """What the reconciler has observed of one session; a new process observes it again."""

    since: int = 0  # number of the last snapshot that is ignored
    stored: History = field(default_factory=History)
    repeated: Snapshot | None = None  # the newest snapshot, if it shows the history's last job unchanged and alive
    accounting: Accounting | None = None
    mark: EndMark | None = None
    no_end: bool = False  # accounting has answered, and has no end of the job
    records_requested: float = float("-inf")
    cancelled: float = float("-inf")
    submitted_here: bool = False  # by this process, which has observed the session since before its job
    saved: bool = False  # the controller showed the job late enough that its saved state has it
    verdict: Verdict = field(default_factory=lambda: Verdict(Liveness.UNKNOWN, "Slurm has not been asked yet."))
    judged: tuple[Session, Accounting | None] | None = None  # input of the verdict, besides the history
    settled_session: Session | None = None  # the session when it last needed no action while its job was alive

    @property
    def history(self) -> History:
        """The history of all snapshots. Most sessions do not change, so equal snapshots are added on demand."""
        if self.repeated is not None and self.stored.job is not None:
            repeated, self.repeated = self.repeated, None
            self.stored = self.stored.add(Observation(repeated.asked, repeated.answered, (self.stored.job,)))
        return self.stored

    def add(self, session: Session, snapshot: Snapshot) -> None:
        """Add one snapshot."""
        jobs, stored = snapshot.named(session.job_name, session.user) or jobs_of(session, snapshot), self.stored
        alive = len(jobs) == 1 and jobs[0] is stored.job and jobs[0].phase is not Phase.TERMINAL
        if (
            alive
            and not stored.ends
            and not stored.error
            and (self.repeated is None or self.repeated.asked < snapshot.asked)
        ):
            self.repeated = snapshot
        else:
            self.stored = self.history.add(Observation(snapshot.asked, snapshot.answered, jobs))

    def is_settled(self, session: Session, now: float, timeouts: LivenessTimeouts) -> bool:
        """Return whether a session still needs no action, as in the last pass."""
        repeated = self.repeated
        return (
            self.settled_session is session
            and repeated is not None
            and now - repeated.answered <= timeouts.stale_after
            and self.judged is not None
            and self.judged[1] is self.accounting
        )

    def still_alive(self, session: Session, now: float, timeouts: LivenessTimeouts) -> bool:
        """Return whether the newest snapshot shows the same as at the last verdict: the job is alive."""
        last, verdict = self.history.last, self.verdict
        return (
            verdict.liveness is Liveness.ALIVE
            and not verdict.others
            and last is not None
            and len(last.jobs) == 1
            and last.jobs[0] is verdict.job
            and self.judged is not None
            and self.judged[0] is session
            and self.judged[1] is self.accounting
            and now - last.answered <= timeouts.stale_after
        )


@dataclass(frozen=True, slots=True)
class _Noted:
    number: int
    snapshot: Snapshot | None
    error: str
    at: float
    about: list[str]


class Observations:
    """The snapshots that are not added yet."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[_Noted] = []

    def note(self, snapshot: Snapshot | None, error: str, at: float, about: list[str]) -> None:
        """Note a snapshot, or the error of a failed one, and the sessions that it is about."""
        self.count += 1
        self._waiting.append(_Noted(self.count, snapshot, error, at, about))

    def apply(
        self, current: Callable[[str], Session | None], by_session: MutableMapping[str, SessionObservation]
    ) -> Iterator[None]:
        """Add the noted snapshots, oldest first."""
        while self._waiting:
            noted = self._waiting.pop(0)
            for number, id in enumerate(noted.about, 1):
                session = current(id)
                if session is not None:
                    observation = by_session.get(id) or observation_of(by_session, id)
                    if observation.since < noted.number and noted.snapshot is not None:
                        observation.add(session, noted.snapshot)
                    elif observation.since < noted.number:
                        observation.stored = observation.history.add(
                            Observation.failed(noted.at, noted.at, noted.error)
                        )
                if not number % BATCH_SIZE:
                    yield


def observation_of(by_session: MutableMapping[str, SessionObservation], id: str) -> SessionObservation:
    """Return the observation of a session, a new one if there is none."""
    observation = by_session.get(id)
    if observation is None:
        observation = by_session[id] = SessionObservation()
    return observation


def jobs_of(session: Session, snapshot: Snapshot) -> tuple[Job, ...]:
    """Return a session's jobs: those with its name, or its known job if the user has renamed it."""
    named = snapshot.named(session.job_name, session.user)
    if named or not session.job_id or not session.submitted:
        return named
    job = snapshot.jobs.get(session.job_id)
    same = job is not None and job.user == session.user and abs(job.submitted - session.submitted) < 2
    return (job,) if job is not None and same else ()
