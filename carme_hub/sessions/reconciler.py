"""The reconciler of sessions: after every snapshot of the queue it judges every open session and takes the steps due.

It is the only part that ends a session because of Slurm's state, and only on proof (``domain.sessions.liveness``). A
requested cancel is sent again until the job is seen terminal, across restarts and outages. The spawners of one hub
share one reconciler.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from carme_hub.domain.cluster.end_mark import end_mark
from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job, Phase, Snapshot
from carme_hub.domain.sessions.end_cause import REQUEUED
from carme_hub.domain.sessions.liveness import Accounting, Liveness, LivenessTimeouts, Verdict, judge
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.errors import SlurmError
from carme_hub.logs import about
from carme_hub.slurm.client import SlurmClient
from carme_hub.slurm.cooperative import all_steps
from carme_hub.slurm.watcher import SlurmWatcher

from .continuations import Continuations, continues
from .end_reason import end_reason
from .observations import BATCH_SIZE, Observations, SessionObservation, observation_of
from .registry import SessionRegistry

#: Seconds between two cancels of one job, and between two queries to accounting about one session.
RETRY_INTERVAL = 5.0
#: Slurm commands that the reconciler runs at the same time.
MAX_COMMANDS = 4
#: Seconds after the end of its server in which a job must end by itself.
JOB_END_TIMEOUT = 30.0
JOB_OUTLIVED_SERVER = "The server ended. Its job was still running, and was cancelled."
WITH_ITS_SESSION = "Given back: its session has ended."


async def _not_continued(_session: Session) -> str:
    return "Its time was over, and this hub continues no batch jobs."


class SessionReconciler:
    """Judges sessions and takes the steps due.

    Args:
        revoke: is called when a session is to end and again when it has ended, to revoke its server's token. Returns
            whether that is done; a session is not closed before.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        client: SlurmClient,
        watcher: SlurmWatcher,
        *,
        revoke: Callable[[Session], Awaitable[bool]],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger] | None = None,
        clock: Callable[[], float] = time.monotonic,
        timeouts: LivenessTimeouts | None = None,
        continue_batch_job: Callable[[Session], Awaitable[str]] = _not_continued,
    ) -> None:
        self._registry = registry
        self._client = client
        self._watcher = watcher
        self._revoke = revoke
        self._log = log or logging.getLogger(__name__)
        self.continuations = Continuations(continue_batch_job, self.trigger, self._log)
        self._clock = clock
        self._timeouts = timeouts or LivenessTimeouts()
        self._by_session: dict[str, SessionObservation] = {}
        self._observations = Observations()
        self._submitting: set[str] = set()
        self._foreign: set[tuple[str, str]] = set()
        #: Jobs of ours whose session has ended, and since when they are seen (monotonic).
        self.orphans: dict[int, float] = {}
        #: When all sessions were last judged (monotonic), None = not yet.
        self.passed: float | None = None
        self._commands: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._command_slots = asyncio.Semaphore(MAX_COMMANDS)
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # -- start and stop ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the loop; do nothing if it runs already."""
        if self._task is None or self._task.done():
            self._watcher.subscribe(self._on_snapshot)
            for session in self._registry.open_sessions():
                self._watcher.want_fast(session.id)
            self._task = asyncio.get_running_loop().create_task(self._run(), name="carme-session-reconciler")

    async def stop(self) -> None:
        """Stop the loop and wait for its end. Sessions are not changed."""
        tasks = [*self._commands.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self.continuations.stop(), return_exceptions=True)
        self._task = None

    def trigger(self, id: str) -> None:
        """Make a pass, and poll for this session more often until it needs no action."""
        self._watcher.want_fast(id)
        self._due.set()

    @contextmanager
    def submitting(self, id: str) -> Iterator[None]:
        """Exclude a session from judgement during its submission: a missing job proves nothing then."""
        self._submitting.add(id)
        try:
            yield
        finally:
            self._submitting.discard(id)
            self._by_session[id] = SessionObservation(since=self._observations.count, submitted_here=True)
            if self._registry.current(id) is not None:
                self._watcher.want_fast(id)
            self._due.set()  # if it was closed meanwhile, the pass ends the frequent polling for it

    def verdict(self, id: str) -> Verdict:
        """Return the last verdict on a session."""
        observation = self._by_session.get(id)
        return observation.verdict if observation else Verdict(Liveness.UNKNOWN, "Slurm has not been asked yet.")

    def seen_terminal(self, id: str) -> bool:
        """Return whether Slurm's newest answer shows the session's job as ended, with or without accounting."""
        observation = self._by_session.get(id)
        job = observation.verdict.job if observation else None
        return (
            observation is not None and observation.history.ends > 0 and job is not None and job.phase is Phase.TERMINAL
        )

    # -- the loop ---------------------------------------------------------------------------------------------------

    def _on_snapshot(self, snapshot: Snapshot | None, error: str) -> None:
        opened = (session.id for session in self._registry.open_sessions())
        self._observations.note(snapshot, error, self._clock(), [id for id in opened if id not in self._submitting])
        self._due.set()

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._pass()
            except Exception:  # noqa: BLE001
                # No error may end the loop: the steps are still due in the next pass.
                self._log.exception("Judging sessions failed; it is tried again")
                await asyncio.sleep(1.0)

    async def _pass(self) -> None:
        await all_steps(self._observations.apply(self._registry.current, self._by_session))
        for number, id in enumerate([session.id for session in self._registry.open_sessions()], 1):
            if not number % BATCH_SIZE:
                await asyncio.sleep(0)  # thousands of sessions must not block the event loop
            session = self._registry.current(id)
            if session is not None and id not in self._submitting:
                observation = observation_of(self._by_session, id)
                if observation.is_settled(session, self._clock(), self._timeouts):
                    self._watcher.done_fast(id)
                    continue
                try:
                    with about(session=session.id, user=session.user, job=session.job_id):
                        await self._reconcile(session, observation)
                except Exception:  # noqa: BLE001
                    # A session that cannot be written must not prevent the judgement of the others.
                    self._log.exception("Session %s of %s cannot be judged now", session.id, session.user)
        opened = {s.id for s in self._registry.open_sessions()}
        for gone in set(self._by_session) - opened:
            del self._by_session[gone]
        for settled in self._watcher.wanted - opened:
            self._watcher.done_fast(settled)
        await self._cancel_orphans()
        self.passed = self._clock()

    def _run_command(self, what: str, id: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run a Slurm command in a task of its own, one of each kind per session: Slurm may be slow."""
        key = (what, id)
        if key in self._commands:
            return

        async def run() -> None:
            try:
                async with self._command_slots:
                    await work()
            except SlurmError as error:
                self._log.warning("%s of %s failed, it is tried again: %s", what, id, error)
            finally:
                self._commands.pop(key, None)
                self._due.set()

        self._commands[key] = asyncio.get_running_loop().create_task(run(), name=f"carme-{what}-{id}")

    def _judge(self, session: Session, observation: SessionObservation) -> Verdict:
        proved = self._survives_controller_crash(session, observation)
        if observation.still_alive(session, self._clock(), self._timeouts):
            return observation.verdict
        observation.judged = session, observation.accounting
        observation.verdict = judge(
            observation.history,
            now=self._clock(),
            job_id=session.job_id,
            submitted=session.submitted,
            proved=proved,
            unseen=self._ran_unseen(session, observation),
            accounting=observation.accounting,
            end_mark=observation.mark is not None,
            timeouts=self._timeouts,
        )
        return observation.verdict

    def _ran_unseen(self, session: Session, observation: SessionObservation) -> bool:
        """Return whether the job may have been in the controller's saved state before this process's first snapshot.

        That excludes a controller that crashes while it answers our own sbatch, although no snapshot shows that job.
        """
        never = observation.history.first_seen is None
        return session.state is SessionState.RUNNING and never and not observation.submitted_here

    def _survives_controller_crash(self, session: Session, observation: SessionObservation) -> bool:
        """Return whether the job survives a crash of the controller.

        A running server does not prove that if this process submitted the job: a server is up a second after the
        submission, and the controller saves its state up to five seconds later (seen: it loses such jobs in a crash).
        """
        if session.state is not SessionState.RUNNING:
            return False
        last = observation.history.last
        if last is not None and not observation.history.ends:
            seen = time.time() - (self._clock() - last.asked)
            observation.saved = observation.saved or seen - session.started > self._timeouts.save_delay
        return observation.saved or session.saved > 0

    async def _reconcile(self, session: Session, observation: SessionObservation) -> None:
        """Take the steps that one session needs."""
        observation.settled_session = None
        verdict = self._judge(session, observation)
        if verdict.needs_accounting:
            self._request_records(session, observation)
        if verdict.liveness is Liveness.GONE:
            await self._close(session, verdict, observation)
            return
        if observation.saved and not session.saved:
            session = await self._registry.mark_saved(session.id)
        job = verdict.job
        if job is not None and job.phase is not Phase.TERMINAL and not _known(session, job):
            session = await self._registry.mark_submitted(session.id, job.id, job.submitted)
            self._log.info("Session %s of %s has job %s", session.id, session.user, job.id)
        for other in verdict.others:
            self._log.error("Session %s of %s has a second job %s", session.id, session.user, other.id)
            self._cancel_job(other)
        if session.parent:
            session = await self._reconcile_companion(session, job)
        again = verdict.requeued or (session.state is SessionState.RUNNING and job is not None and _is_pending(job))
        if again and not session.cancel_wanted:
            await self.cancel(session.id, REQUEUED)
            session = self._registry.current(session.id) or session
        elif (
            session.server_ended and not session.cancel_wanted and time.time() - session.server_ended > JOB_END_TIMEOUT
        ):
            await self.cancel(session.id, JOB_OUTLIVED_SERVER)
        if session.cancel_wanted:
            self._cancel_again(observation)
        if session.is_ending or observation.history.ends or verdict.liveness is not Liveness.ALIVE:
            self._watcher.want_fast(session.id)
        elif session.state is SessionState.RUNNING:
            self._watcher.done_fast(session.id)
            observation.settled_session = (
                session if session.saved and not session.parent and not again and not verdict.others else None
            )
        elif job is not None and _is_pending(job):
            self._watcher.want_queue(session.id)
        else:
            self._watcher.want_fast(session.id)

    async def _reconcile_companion(self, session: Session, job: Job | None) -> Session:
        """Take the further steps of a companion: it ends with its session, and runs once Slurm shows it running.

        A batch job does not end with its session.
        """
        parent = self._registry.current(session.parent)
        if session.cancel_wanted:
            return session
        if not session.request.batch and (parent is None or parent.is_ending):
            await self.cancel(session.id, WITH_ITS_SESSION)
            return self._registry.current(session.id) or session
        if job is not None and job.phase is Phase.ACTIVE and job.nodes:
            return await self._registry.mark_running(session.id, job.nodes[0])
        return session

    def _request_records(self, session: Session, observation: SessionObservation) -> None:
        now = self._clock()
        if now - observation.records_requested < RETRY_INTERVAL:
            return
        observation.records_requested = now
        # A user may rename a job; accounting knows it by the new name.
        name = observation.history.job.name if observation.history.job else session.job_name

        async def ask() -> None:
            failure: SlurmError | None = None
            try:
                observation.accounting = Accounting(
                    now, await self._client.records(name, session.user, session.created)
                )
                if any(record.phase is Phase.TERMINAL for record in observation.accounting.records):
                    return
            except SlurmError as error:
                failure = error
            observation.no_end = failure is None
            # Accounting may be missing, down, or without the end; the job's own end mark proves the end as well.
            observation.mark = end_mark(await self._client.log_tail(session.user, session.id), session.job_id)
            if observation.mark is None and failure is not None:
                raise failure

        self._run_command("Asking accounting for session", session.id, ask)

    async def _close(self, session: Session, verdict: Verdict, observation: SessionObservation) -> None:
        reason = session.cancel_reason or end_reason(session, verdict, observation.mark, no_end=observation.no_end)
        if not await self._revoke(session):
            return  # a session stays open while its token is valid
        if continues(session, verdict, observation.mark) and not (reason := self.continuations.of(session)):
            return  # it is closed when its next job is known, so that a crash loses neither
        ended = verdict.record.end if verdict.record else 0.0
        await self._registry.close(session.id, reason, ended)
        self._by_session.pop(session.id, None)
        self.continuations.forget(session.id)
        self._watcher.done_fast(session.id)
        self._log.info("Session %s of %s (job %s) ended: %s", session.id, session.user, session.job_id, reason)

    # -- cancelling -------------------------------------------------------------------------------------------------

    async def cancel(self, id: str, reason: str) -> None:
        """Store the request to end a session, revoke its token, and cancel until its job is seen terminal."""
        session = await self._registry.request_cancel(id, reason)
        if session is None:
            return
        await self._revoke(session)
        self.trigger(id)

    def _cancel_again(self, observation: SessionObservation) -> None:
        """Cancel the jobs of a session in Slurm's newest answer; ids in older answers may belong to others by now."""
        now, last = self._clock(), observation.history.last
        live = [job for job in last.jobs if job.phase is not Phase.TERMINAL] if last is not None else []
        if live and now - observation.cancelled >= RETRY_INTERVAL:
            observation.cancelled = now
            for job in live:
                self._cancel_job(job)

    def _cancel_job(self, job: Job) -> None:
        self._run_command("Cancelling job", str(job.id), lambda: self._client.cancel(job))

    async def _cancel_orphans(self) -> None:
        """Cancel the hub's jobs whose session has ended. A job of another hub has no row here, and is not touched."""
        snapshot = self._watcher.latest
        if snapshot is None:
            return
        self._foreign &= {(job.name, job.user) for job in snapshot.ours}
        seen: dict[int, float] = {}
        for job in snapshot.ours:
            if job.phase in (Phase.TERMINAL, Phase.ENDING):
                continue
            id = job.name.removeprefix(JOB_NAME_PREFIX)
            if self._registry.current(id) is not None or (job.name, job.user) in self._foreign:
                continue
            session = await self._registry.get(id)
            if session is None or session.cluster != self._registry.cluster or session.user != job.user:
                self._foreign.add((job.name, job.user))
            elif session.state is SessionState.ENDED and session.ended < snapshot_time(snapshot):
                seen[job.id] = self.orphans.get(job.id, self._clock())
                self._log.error("Job %s of %s runs although its session %s has ended", job.id, job.user, id)
                self._cancel_job(job)
        self.orphans = seen


def snapshot_time(snapshot: Snapshot) -> float:
    """Return the wall-clock time of a snapshot's query; its own times are monotonic."""
    return time.time() - (time.monotonic() - snapshot.asked)


def _known(session: Session, job: Job) -> bool:
    return session.job_id == job.id and session.submitted > 0


def _is_pending(job: Job) -> bool:
    return job.phase is Phase.WAITING
