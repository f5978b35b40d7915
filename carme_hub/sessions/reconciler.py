"""Every open session is judged after every look at the queue; what is owed (a cancel, an end, an adoption) is done.

The keeper is the only part that ends a session because of what Slurm says, and it does so on proof alone
(``domain.sessions.liveness``). A wanted cancel is sent again until the job is seen terminal, through restarts and
outages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from carme_hub.domain.cluster.end_mark import EndMark, end_mark
from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job, Phase, Snapshot
from carme_hub.domain.cluster.reasons import end_sentence, mark_sentence
from carme_hub.domain.sessions.liveness import Accounting, Liveness, LivenessTimeouts, Verdict, judge
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.errors import SlurmError
from carme_hub.slurm.client import SlurmClient
from carme_hub.slurm.cooperative import all_steps
from carme_hub.slurm.watcher import SlurmWatcher

from .observations import STEP, Observations, SessionObservation, watch_of
from .registry import SessionRegistry

#: Seconds between two cancels of one job, and between two questions to accounting about one session.
AGAIN = 5.0
#: Commands of Slurm that the keeper runs at the same time.
AT_ONCE = 4
#: Seconds that a job has to end by itself once its server has ended.
LINGER = 30.0
LINGERED = "The server ended. Its job went on without it, and was cancelled."
REQUEUED = "Slurm ran the job anew (it was requeued); what ran in it has ended."
WITH_ITS_SESSION = "Given back: the session that it belonged to has ended."


class SessionReconciler:
    """Judges sessions and does what is owed.

    Args:
        forget: called when a session is to end and again when it has ended, to revoke its server's token. Returns
            whether that is done; a session is not closed before.
    """

    def __init__(
        self,
        book: SessionRegistry,
        client: SlurmClient,
        watcher: SlurmWatcher,
        *,
        forget: Callable[[Session], Awaitable[bool]],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger] | None = None,
        clock: Callable[[], float] = time.monotonic,
        timeouts: LivenessTimeouts | None = None,
    ) -> None:
        self._book = book
        self._client = client
        self._watcher = watcher
        self._forget = forget
        self._log = log or logging.getLogger(__name__)
        self._clock = clock
        self._timeouts = timeouts or LivenessTimeouts()
        self._watches: dict[str, SessionObservation] = {}
        self._looks = Observations()
        self._held: set[str] = set()
        self._foreign: set[tuple[str, str]] = set()
        self._doing: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to judge; does nothing when it already does."""
        if self._task is None or self._task.done():
            self._watcher.subscribe(self._looked)
            for session in self._book.open_sessions():
                self._watcher.want_fast(session.id)
            self._task = asyncio.get_running_loop().create_task(self._run(), name="carme-session-keeper")

    async def stop(self) -> None:
        """End the task and wait for it. Sessions are not touched."""
        tasks = [*self._doing.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = None

    def look_now(self, id: str) -> None:
        """Look at this session more often until it is settled."""
        self._watcher.want_fast(id)
        self._due.set()

    @contextmanager
    def held(self, id: str) -> Iterator[None]:
        """Leave a session alone while it is being submitted: absent means nothing then."""
        self._held.add(id)
        try:
            yield
        finally:
            self._held.discard(id)
            self._watches[id] = SessionObservation(since=self._looks.count, submitted_here=True)
            if self._book.current(id) is not None:
                self._watcher.want_fast(id)
            self._due.set()  # closed meanwhile, it may still be looked at more often: the pass takes that back

    def verdict(self, id: str) -> Verdict:
        """Return what is believed of a session now."""
        watch = self._watches.get(id)
        return watch.verdict if watch else Verdict(Liveness.UNKNOWN, "Slurm has not been asked yet.")

    def seen_terminal(self, id: str) -> bool:
        """Return whether Slurm's newest answer shows the session's job as ended, accounting heard or not."""
        watch = self._watches.get(id)
        job = watch.verdict.job if watch else None
        return watch is not None and watch.history.ends > 0 and job is not None and job.phase is Phase.TERMINAL

    # -- the loop ---------------------------------------------------------------------------------------------------

    def _looked(self, snapshot: Snapshot | None, error: str) -> None:
        opened = (session.id for session in self._book.open_sessions())
        self._looks.note(snapshot, error, self._clock(), [id for id in opened if id not in self._held])
        self._due.set()

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._pass()
            except Exception:  # noqa: BLE001
                # Whatever it was must not end the loop: what is owed is still owed at the next look.
                self._log.exception("Judging sessions failed; it is tried again")
                await asyncio.sleep(1.0)

    async def _pass(self) -> None:
        await all_steps(self._looks.folding(self._book.current, self._watches))
        for number, id in enumerate([session.id for session in self._book.open_sessions()], 1):
            if not number % STEP:
                await asyncio.sleep(0)  # thousands of sessions take their time
            session = self._book.current(id)
            if session is not None and id not in self._held:
                watch = watch_of(self._watches, id)
                if watch.at_rest(session, self._clock(), self._timeouts):
                    self._watcher.done_fast(id)
                    continue
                try:
                    await self._settle(session, watch)
                except Exception:  # noqa: BLE001
                    # One session that cannot be written must not keep the others from being judged.
                    self._log.exception("Session %s of %s cannot be judged now", session.id, session.user)
        opened = {s.id for s in self._book.open_sessions()}
        for gone in set(self._watches) - opened:
            del self._watches[gone]
        for settled in self._watcher.wanted - opened:
            self._watcher.done_fast(settled)
        await self._sweep()

    def _do(self, what: str, id: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do something with Slurm beside the loop, once at a time for each session: Slurm may take its time."""
        key = (what, id)
        if key in self._doing:
            return

        async def run() -> None:
            try:
                async with self._at_once:
                    await work()
            except SlurmError as error:
                self._log.warning("%s of %s failed, it is tried again: %s", what, id, error)
            finally:
                self._doing.pop(key, None)
                self._due.set()

        self._doing[key] = asyncio.get_running_loop().create_task(run(), name=f"carme-{what}-{id}")

    def _judge(self, session: Session, watch: SessionObservation) -> Verdict:
        proved = self._cannot_be_forgotten(session, watch)
        if watch.still_alive(session, self._clock(), self._timeouts):
            return watch.verdict
        watch.judged = session, watch.accounting
        watch.verdict = judge(
            watch.history,
            now=self._clock(),
            job_id=session.job_id,
            submitted=session.submitted,
            proved=proved,
            unseen=self._ran_unseen(session, watch),
            accounting=watch.accounting,
            end_mark=watch.mark is not None,
            timeouts=self._timeouts,
        )
        return watch.verdict

    def _ran_unseen(self, session: Session, watch: SessionObservation) -> bool:
        """Return whether the job may have been in the controller's saved state before this process first looked.

        A controller that dies with its answer to our own sbatch is no such case, though no look ever showed the job.
        """
        never = watch.history.first_seen is None
        return session.state is SessionState.RUNNING and never and not watch.submitted_here

    def _cannot_be_forgotten(self, session: Session, watch: SessionObservation) -> bool:
        """Return whether the job outlives a crash of the controller.

        That its server has proved itself is not enough where we watched: a server is up a second after the submit, and
        the controller saves its state up to five seconds later (seen: such jobs are forgotten).
        """
        if session.state is not SessionState.RUNNING:
            return False
        last = watch.history.last
        if last is not None and not watch.history.ends:
            seen = time.time() - (self._clock() - last.asked)
            watch.saved = watch.saved or seen - session.started > self._timeouts.save_delay
        return watch.saved or session.saved > 0

    async def _settle(self, session: Session, watch: SessionObservation) -> None:
        """Do what one session is owed."""
        watch.rests = None
        verdict = self._judge(session, watch)
        if verdict.needs_accounting:
            self._ask_records(session, watch)
        if verdict.liveness is Liveness.GONE:
            await self._close(session, verdict, watch)
            return
        if watch.saved and not session.saved:
            session = await self._book.saved(session.id)
        job = verdict.job
        if job is not None and job.phase is not Phase.TERMINAL and not _known(session, job):
            session = await self._book.submitted(session.id, job.id, job.submitted)
            self._log.info("Session %s of %s has job %s", session.id, session.user, job.id)
        for other in verdict.others:
            self._log.error("Session %s of %s has a second job %s", session.id, session.user, other.id)
            self._cancel_job(other)
        if session.parent:
            session = await self._of_companion(session, job)
        again = verdict.requeued or (session.state is SessionState.RUNNING and job is not None and _waits(job))
        if again and not session.cancel_wanted:
            await self.cancel(session.id, REQUEUED)
            session = self._book.current(session.id) or session
        elif session.server_ended and not session.cancel_wanted and time.time() - session.server_ended > LINGER:
            await self.cancel(session.id, LINGERED)
        if session.cancel_wanted:
            self._cancel_again(watch)
        if session.is_ending or watch.history.ends or verdict.liveness is not Liveness.ALIVE:
            self._watcher.want_fast(session.id)
        elif session.state is SessionState.RUNNING:
            self._watcher.done_fast(session.id)
            watch.rests = session if session.saved and not session.parent and not again and not verdict.others else None
        elif job is not None and _waits(job):
            self._watcher.want_queue(session.id)
        else:
            self._watcher.want_fast(session.id)

    async def _of_companion(self, session: Session, job: Job | None) -> Session:
        """Do what a companion is owed beside: it ends with its session, and runs as soon as Slurm says so."""
        parent = self._book.current(session.parent)
        if session.cancel_wanted:
            return session
        if parent is None or parent.is_ending:
            await self.cancel(session.id, WITH_ITS_SESSION)
            return self._book.current(session.id) or session
        if job is not None and job.phase is Phase.ACTIVE and job.nodes:
            return await self._book.began(session.id, job.nodes[0])
        return session

    def _ask_records(self, session: Session, watch: SessionObservation) -> None:
        now = self._clock()
        if now - watch.asked_records < AGAIN:
            return
        watch.asked_records = now
        # A user may rename a job; accounting knows it by the new name.
        name = watch.history.job.name if watch.history.job else session.job_name

        async def ask() -> None:
            failure: SlurmError | None = None
            try:
                watch.accounting = Accounting(now, await self._client.records(name, session.user, session.created))
                if any(record.phase is Phase.TERMINAL for record in watch.accounting.records):
                    return
            except SlurmError as error:
                failure = error
            watch.no_end = failure is None
            # A site may have no accounting, or none now, or it lost the end; the job's own last word counts as much.
            watch.mark = end_mark(await self._client.log_tail(session.user, session.id), session.job_id)
            if watch.mark is None and failure is not None:
                raise failure

        self._do("Asking accounting for session", session.id, ask)

    async def _close(self, session: Session, verdict: Verdict, watch: SessionObservation) -> None:
        reason = session.cancel_reason or ending(session, verdict, watch.mark, no_end=watch.no_end)
        if not await self._forget(session):
            return  # a token that is still good belongs to a session that is still open
        ended = verdict.record.end if verdict.record else 0.0
        await self._book.close(session.id, reason, ended)
        self._watches.pop(session.id, None)
        self._watcher.done_fast(session.id)
        self._log.info("Session %s of %s (job %s) ended: %s", session.id, session.user, session.job_id, reason)

    # -- cancelling -------------------------------------------------------------------------------------------------

    async def cancel(self, id: str, reason: str) -> None:
        """Store that a session is to end, revoke its token, and cancel until its job is seen terminal."""
        session = await self._book.want_cancel(id, reason)
        if session is None:
            return
        await self._forget(session)
        self.look_now(id)

    def _cancel_again(self, watch: SessionObservation) -> None:
        """Cancel what Slurm's newest answer shows of a session; an older answer may show somebody else's id."""
        now, last = self._clock(), watch.history.last
        live = [job for job in last.jobs if job.phase is not Phase.TERMINAL] if last is not None else []
        if live and now - watch.cancelled >= AGAIN:
            watch.cancelled = now
            for job in live:
                self._cancel_job(job)

    def _cancel_job(self, job: Job) -> None:
        self._do("Cancelling job", str(job.id), lambda: self._client.cancel(job))

    async def _sweep(self) -> None:
        """Cancel jobs of ours whose session has ended. A job of another hub has no row here, and is left alone."""
        snapshot = self._watcher.latest
        if snapshot is None:
            return
        self._foreign &= {(job.name, job.user) for job in snapshot.ours}
        for job in snapshot.ours:
            if job.phase in (Phase.TERMINAL, Phase.ENDING):
                continue
            id = job.name.removeprefix(JOB_NAME_PREFIX)
            if self._book.current(id) is not None or (job.name, job.user) in self._foreign:
                continue
            session = await self._book.get(id)
            if session is None or session.cluster != self._book.cluster or session.user != job.user:
                self._foreign.add((job.name, job.user))
            elif session.state is SessionState.ENDED and session.ended < snapshot_time(snapshot):
                self._log.error("Job %s of %s runs though its session %s has ended", job.id, job.user, id)
                self._cancel_job(job)


def snapshot_time(snapshot: Snapshot) -> float:
    """Return the wall-clock time at which a snapshot was asked for; its own times are monotonic."""
    return time.time() - (time.monotonic() - snapshot.asked)


def ending(session: Session, verdict: Verdict, mark: EndMark | None = None, *, no_end: bool = False) -> str:
    """Return one sentence for the user: how the session ended. ``no_end``: accounting knows no end of the job."""
    record, job, folder = verdict.record, verdict.job, session.request.working_folder
    if record is not None and record.phase is Phase.TERMINAL:
        return end_sentence(record.state, _exit_code(session, record.exit_code), folder=folder)
    if job is not None and job.phase is Phase.TERMINAL:
        return end_sentence(job.state, _exit_code(session, job.exit_code), folder=folder)
    # A job that Slurm does not know is ended by its node, or refused by the hub: the server did nothing wrong.
    if mark is not None and not (mark.ended_by_others and no_end):
        return mark_sentence(mark, folder)
    if session.state is SessionState.INTENDED:
        return "The session was never started: the hub was interrupted before Slurm accepted its job. Start it again."
    return "Slurm lost the session's job when its controller crashed. Start the session again."


def _exit_code(session: Session, said: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return exit status and signal: sacct takes 128 off a status above it, so a signal reads as a status there."""
    told = EndMark(session.server_exit, session.job_id)
    return (told.status, told.signal) if session.server_ended and told.signal else said


def _known(session: Session, job: Job) -> bool:
    return session.job_id == job.id and session.submitted > 0


def _waits(job: Job) -> bool:
    return job.phase is Phase.WAITING
