"""What each look at the queue showed of each open session, folded into what is remembered of it, a few at each step.

A look is noted with the sessions that it is about: those that were open, and not just being submitted, when its answer
came. What is folded in later is the same as if it had been folded in at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field

from carme_hub.domain.cluster.end_mark import EndMark
from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.sessions.liveness import Accounting, History, Liveness, LivenessTimeouts, Observation, Verdict
from carme_hub.domain.sessions.session import Session

#: Sessions in one step.
STEP = 100


@dataclass(slots=True)
class SessionObservation:
    """What the keeper remembers of one session; lost with the process, and learned again."""

    since: int = 0  # looks before that say nothing of it
    folded: History = field(default_factory=History)
    again: Snapshot | None = None  # the newest look, where it shows the very job that the history ends with, alive
    accounting: Accounting | None = None
    mark: EndMark | None = None
    no_end: bool = False  # accounting has answered, and knows no end of the job
    asked_records: float = float("-inf")
    cancelled: float = float("-inf")
    submitted_here: bool = False  # by this process: it has watched since before there was a job
    saved: bool = False  # the controller showed the job late enough to have it in its saved state
    verdict: Verdict = field(default_factory=lambda: Verdict(Liveness.UNKNOWN, "Slurm has not been asked yet."))
    judged: tuple[Session, Accounting | None] | None = None  # what the verdict was made of, besides the history
    rests: Session | None = None  # the session as it was when nothing was owed to it while its job lives

    @property
    def history(self) -> History:
        """What all looks come to. Many sessions rest, so looks that show the same are folded in when somebody asks."""
        if self.again is not None and self.folded.job is not None:
            again, self.again = self.again, None
            self.folded = self.folded.add(Observation(again.asked, again.answered, (self.folded.job,)))
        return self.folded

    def add(self, session: Session, snapshot: Snapshot) -> None:
        """Fold in one look."""
        jobs, folded = snapshot.named(session.job_name, session.user) or jobs_of(session, snapshot), self.folded
        alive = len(jobs) == 1 and jobs[0] is folded.job and jobs[0].phase is not Phase.TERMINAL
        if alive and not folded.ends and not folded.error and (self.again is None or self.again.asked < snapshot.asked):
            self.again = snapshot
        else:
            self.folded = self.history.add(Observation(snapshot.asked, snapshot.answered, jobs))

    def at_rest(self, session: Session, now: float, timeouts: LivenessTimeouts) -> bool:
        """Return whether nothing is owed to a session, as when it was last looked at."""
        again = self.again
        return (
            self.rests is session
            and again is not None
            and now - again.answered <= timeouts.stale_after
            and self.judged is not None
            and self.judged[1] is self.accounting
        )

    def still_alive(self, session: Session, now: float, timeouts: LivenessTimeouts) -> bool:
        """Return whether the newest look shows just what the last verdict was made of: the job lives."""
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
class _Look:
    number: int
    snapshot: Snapshot | None
    error: str
    at: float
    about: list[str]


class Observations:
    """The looks that were not folded in yet."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[_Look] = []

    def note(self, snapshot: Snapshot | None, error: str, at: float, about: list[str]) -> None:
        """Note a look, or why it failed, and the sessions that it is about."""
        self.count += 1
        self._waiting.append(_Look(self.count, snapshot, error, at, about))

    def folding(
        self, current: Callable[[str], Session | None], watches: MutableMapping[str, SessionObservation]
    ) -> Iterator[None]:
        """Fold in what was noted, oldest first."""
        while self._waiting:
            look = self._waiting.pop(0)
            for number, id in enumerate(look.about, 1):
                session = current(id)
                if session is not None:
                    watch = watches.get(id) or watch_of(watches, id)
                    if watch.since < look.number and look.snapshot is not None:
                        watch.add(session, look.snapshot)
                    elif watch.since < look.number:
                        watch.folded = watch.history.add(Observation.failed(look.at, look.at, look.error))
                if not number % STEP:
                    yield


def watch_of(watches: MutableMapping[str, SessionObservation], id: str) -> SessionObservation:
    """Return what is remembered of a session."""
    watch = watches.get(id)
    if watch is None:
        watch = watches[id] = SessionObservation()
    return watch


def jobs_of(session: Session, snapshot: Snapshot) -> tuple[Job, ...]:
    """Return a session's jobs: those of its name, or the one that it was, should its user have renamed that."""
    named = snapshot.named(session.job_name, session.user)
    if named or not session.job_id or not session.submitted:
        return named
    job = snapshot.jobs.get(session.job_id)
    same = job is not None and job.user == session.user and abs(job.submitted - session.submitted) < 2
    return (job,) if job is not None and same else ()
