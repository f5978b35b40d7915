"""Liveness of a session's job, judged from observations: alive, gone or unknown. Gone needs proof. Pure.

``carme_hub.sessions.reconciler`` calls ``judge``. The rules, in the order in which they are applied:

* No answer, or one that cannot be parsed, proves nothing. It never counts as evidence of an end.
* The newest answer shows a live job of that name and user: **alive** (the newest job, if there are two).
* The job has a state that we do not know: **unknown**, whatever else is known.
* Otherwise the answer shows no live job: absent, or terminal. **Gone** requires two such answers in a row, the second
  query sent after the first answer, and one of

  1. accounting, queried after the first of them, has a terminal record for the newest incarnation,
  2. our own end mark: the job's supervisor reported the end,
  3. accounting has no record at all, the controller has shown nothing for ``forget_after`` seconds, and never showed
     the job for longer than it needs to save its state: it was never accepted, or lost in a crash (for
     ``settle_after`` seconds if the server proved itself and this process, a new one, never saw the job),
  4. likewise, but accounting has a record without an end (a runaway job: the controller lost the job in a crash),
  5. the controller itself shows "terminal" for a job that never had a node (accounting gets a job only when it can
     start), or for an incarnation that accounting knows as requeued and not as started again,
  6. the controller shows only "terminal" or "absent" for ``settle_after`` seconds, while accounting answers but has
     no end: the message was lost, or a requeued job ended before it started again.

* Anything else: **unknown**, and an unknown session stays open.

All times are readings of one monotonic clock: a step of the wall clock must not end a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from carme_hub.domain.cluster.jobs import Job, JobRecord, Phase, Snapshot

_LIVE = frozenset({Phase.WAITING, Phase.ACTIVE, Phase.ENDING})


class Liveness(Enum):
    """The three results."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Observation:
    """What one answer of the controller shows about the jobs of one name and user.

    Attributes:
        jobs: those jobs, oldest first; empty if the controller showed none.
        error: not empty if there was no answer, or one that cannot be parsed.
    """

    asked: float
    answered: float
    jobs: tuple[Job, ...] = ()
    error: str = ""

    @classmethod
    def of(cls, snapshot: Snapshot, name: str, user: str) -> Observation:
        """Return what a snapshot shows about one session."""
        return cls(snapshot.asked, snapshot.answered, snapshot.named(name, user))

    @classmethod
    def failed(cls, asked: float, answered: float, error: str) -> Observation:
        """Return the observation of a failed query."""
        return cls(asked, answered, error=error or "no answer")


@dataclass(frozen=True, slots=True)
class History:
    """A summary of the observations of one session. ``add`` folds one in; the size stays constant.

    Attributes:
        last: the newest observation without an error.
        ends: consecutive answers without a live job, each queried after the one before was complete.
        ended_since: when the first of these was queried.
        said_terminal: one of these showed the job in a terminal state.
        first_seen, last_seen: when a job was first and last in an answer.
        job: the job as last seen.
        error, error_since: the current failure, "" if the newest observation has no error.
    """

    last: Observation | None = None
    ends: int = 0
    ended_since: float = 0.0
    said_terminal: bool = False
    first_seen: float | None = None
    last_seen: float | None = None
    job: Job | None = None
    error: str = ""
    error_since: float = 0.0

    @classmethod
    def of(cls, observations: Iterable[Observation]) -> History:
        """Return the history of many observations, oldest first."""
        history = cls()
        for observation in observations:
            history = history.add(observation)
        return history

    def add(self, new: Observation) -> History:
        """Return the history with one more observation. One that was queried before the newest is ignored."""
        if self.last is not None and new.asked <= self.last.asked:
            return self
        if new.error:
            return replace(self, error=new.error, error_since=self.error_since if self.error else new.asked)
        first_seen, last_seen, job = self.first_seen, self.last_seen, self.job
        if new.jobs:
            first_seen = new.asked if first_seen is None else first_seen
            last_seen, job = new.asked, _newest(new.jobs)
        ends, since, said = 0, 0.0, False
        if job is None or not new.jobs or job.phase is Phase.TERMINAL:  # a live job is newer
            apart = self.last is not None and new.asked >= self.last.answered
            ends, since = (self.ends + apart, self.ended_since) if self.ends else (1, new.asked)
            said = self.said_terminal or bool(new.jobs)
        return History(new, ends, since, said, first_seen, last_seen, job)


@dataclass(frozen=True, slots=True)
class Accounting:
    """An answer of accounting (``sacct -D``) for one name and user."""

    asked: float
    records: tuple[JobRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class LivenessTimeouts:
    """Timeouts of the liveness rules, in seconds.

    Attributes:
        forget_after: longer than Slurm's state save delay (5 s) and the submit time limit together.
        save_delay: a job shown for longer than this is in the controller's saved state, and cannot be lost in a crash.
        settle_after: how long the controller's answer alone must last if accounting lost the end of a job.
        stale_after: an older answer no longer proves that a job is alive.
    """

    forget_after: float = 36.0
    save_delay: float = 15.0
    settle_after: float = 300.0
    stale_after: float = 30.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement on one session.

    Attributes:
        liveness: alive, gone or unknown.
        reason: why, in one sentence for logs and pages.
        job: the session's job as last seen.
        record: its newest incarnation in accounting, if accounting was queried.
        others: further live jobs of the same name and user; there should be none.
        requeued: the job was requeued, so the incarnation that we started has ended.
        needs_accounting: an answer of accounting would help now.
    """

    liveness: Liveness
    reason: str
    job: Job | None = None
    record: JobRecord | None = None
    others: tuple[Job, ...] = ()
    requeued: bool = False
    needs_accounting: bool = False


def judge(
    history: History,
    *,
    now: float,
    job_id: int = 0,
    submitted: float = 0.0,
    proved: bool = False,
    unseen: bool = False,
    accounting: Accounting | None = None,
    end_mark: bool = False,
    timeouts: LivenessTimeouts = LivenessTimeouts(),
) -> Verdict:
    """Return the verdict on one session.

    Args:
        history: the observations of its job's name and user, by this process.
        now: the same clock as the observations.
        job_id, submitted: Slurm's answer to the submission (epoch), 0 if unknown.
        proved: the job is known to be in the controller's saved state.
        unseen: its server proved itself, and this process neither submitted the job nor saw it in any answer.
        accounting: accounting's newest answer, None if not queried or not answered.
        end_mark: the job's own supervisor reported the end.
    """
    last = history.last
    if last is None:
        return Verdict(Liveness.UNKNOWN, history.error or "Slurm has not been asked yet.")
    record = _newest_record(accounting, submitted)
    live = tuple(j for j in last.jobs if j.phase is not Phase.TERMINAL)
    if live:
        return _with_live(history, live, now, job_id, submitted, record, timeouts)
    if history.ends < 2:
        word = "terminal" if last.jobs else "absent"
        return Verdict(Liveness.UNKNOWN, f"The job is {word} in one answer; another is awaited.", history.job, record)
    proof = _proof(history, proved, unseen, accounting, record, end_mark, timeouts)
    if proof:
        return Verdict(Liveness.GONE, proof, history.job, record)
    return Verdict(Liveness.UNKNOWN, _missing(history, accounting, record), history.job, record, needs_accounting=True)


def _with_live(
    history: History,
    live: tuple[Job, ...],
    now: float,
    job_id: int,
    submitted: float,
    record: JobRecord | None,
    timeouts: LivenessTimeouts,
) -> Verdict:
    """Return the verdict if the newest answer shows a job that has not ended."""
    ours = [j for j in live if job_id and j.id == job_id] or list(live)
    job = _newest(ours)
    others = tuple(j for j in live if j is not job)
    requeued = job.restarts > 0 or bool(submitted and job.id == job_id and job.submitted > submitted + 1)
    if job.phase not in _LIVE:
        return Verdict(Liveness.UNKNOWN, f"Slurm says {job.state!r}, which is not understood.", job, record, others)
    if history.last is not None and now - history.last.answered > timeouts.stale_after:
        why = f"Slurm has not answered for {now - history.last.answered:.0f} s"
        why = f"{why}: {history.error}" if history.error else f"{why}."
        return Verdict(Liveness.UNKNOWN, why, job, record, others, requeued)
    return Verdict(Liveness.ALIVE, f"Slurm says {job.state}.", job, record, others, requeued)


def _proof(
    history: History,
    proved: bool,
    unseen: bool,
    accounting: Accounting | None,
    record: JobRecord | None,
    end_mark: bool,
    timeouts: LivenessTimeouts,
) -> str:
    """Return the proof of the end after two answers without a live job, or ""."""
    if end_mark:
        return "The job's own supervisor said that it ended, and Slurm shows it no more."
    if accounting is None or accounting.asked < history.ended_since or history.last is None:
        return ""
    if record is not None and record.phase is Phase.TERMINAL:
        return f"Slurm's accounting says {record.state}, and the controller shows it no more."
    requeued = record is not None and record.state == "REQUEUED"
    ended = history.job if history.said_terminal else None
    if ended is not None and not ended.nodes and record is None and not proved:
        return f"The controller says {ended.state}; it never had a node."
    if ended is not None and requeued and ended.restarts > 0:
        return f"The controller says {ended.state}; it was requeued and did not start again."
    shorter = min(history.last.asked, accounting.asked) - history.ended_since
    if history.said_terminal or requeued:
        return (
            "The controller shows no such job; accounting missed its end." if shorter >= timeouts.settle_after else ""
        )
    if record is not None and record.phase not in (Phase.WAITING, Phase.ACTIVE):
        return ""
    on_disk = proved or (
        history.first_seen is not None
        and history.last_seen is not None
        and history.last_seen - history.first_seen > timeouts.save_delay
    )
    if on_disk or shorter < (timeouts.settle_after if unseen else timeouts.forget_after):
        return ""
    if record is None:
        return "Slurm knows no such job: it was never accepted, or the controller forgot it."
    return "The controller forgot the job in a crash; accounting's record of it will never end by itself."


def _missing(history: History, accounting: Accounting | None, record: JobRecord | None) -> str:
    """Return what is still missing to prove that the job is gone."""
    seen = "says that the job ended" if history.said_terminal else "shows no such job"
    if accounting is None or accounting.asked < history.ended_since:
        return f"The controller {seen}; accounting has not answered yet."
    if record is None:
        return f"The controller {seen}; accounting has no record of it yet."
    return f"The controller {seen}; accounting still says {record.state}."


def _newest(jobs: Sequence[Job]) -> Job:
    """Return the relevant one of several jobs: one that has not ended, then the newest."""
    if len(jobs) == 1:
        return jobs[0]
    return max(jobs, key=lambda j: (j.phase is not Phase.TERMINAL, j.submitted, j.id))


def _newest_record(accounting: Accounting | None, submitted: float) -> JobRecord | None:
    """Return the newest incarnation in accounting."""
    if accounting is None:
        return None
    records = [r for r in accounting.records if r.submitted >= submitted - 1]
    if not records:
        return None
    return max(records, key=lambda r: (r.submitted, r.start, r.id))
