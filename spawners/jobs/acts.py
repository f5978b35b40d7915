"""Acts on jobs of a user: checked in the queue right before, done as the user, and judged by the queue right after.

A job of the hub's own (a session, more nodes for one, a batch job of a run) is the hub's to end: to cancel it is what
*Stop*, *Give back* and *Cancel* do elsewhere, and nothing else is done to it here, because the hub would start to fight
Slurm about it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job, Snapshot
from carme_hub.domain.cluster.own_jobs.acts import Act, Outcome, outcome, refusal
from carme_hub.domain.cluster.own_jobs.targets import Target, live, target_of
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import Refused, SlurmError, SlurmRejected, StoreError
from carme_hub.spawners.companions.companions import GIVEN_BACK, cancel_batch_job
from carme_hub.spawners.home.jobs import sessions_by_job
from carme_hub.spawners.hub.shared import HubContext

#: Jobs that one request acts on, and on which it acts at the same time.
MOST_JOBS, AT_ONCE = 200, 4
#: Seconds between two looks at what became of an act, and looks at most: Slurm may take a moment.
LOOK_AGAIN, LOOKS = 1.0, 3
NOT_KNOWN = "may or may not be changed: Slurm does not answer. Look at it again in a minute."
SILENT = "Slurm does not answer at the moment, so nothing was changed. Try it again in a minute."
_STRAY = "belongs to a session that the hub does not know any more. The hub ends it by itself."
_SESSION = {
    Act.HOLD: "is a session of yours, which cannot be held. Stop it, and start it when you need it.",
    Act.RELEASE: "is a session of yours, which is never held by you. Stop it, and start it again.",
    Act.REQUEUE: "is a session of yours, which would lose its server. Stop it, and start it again.",
    Act.LIMIT: "is a session of yours. Stop it when you do not need it any more: the rest of its time is given back.",
}
_COMPANION = "is of a session of yours. It can be cancelled here, and nothing else."


class NoSuchAct(Refused):
    """The request names no act, no job, or too many."""

    reason = "wrong-request"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What one target is in the queue: its live jobs, and the session that they belong to."""

    target: Target
    jobs: Sequence[Job]
    session: Session | None = None

    @property
    def name(self) -> str:
        """The job's name for people."""
        if self.session is None:
            return self.jobs[0].name if self.jobs else ""
        if not self.session.parent:
            return f"session {self.session.server_name}".strip()
        batch = self.session.request.batch
        return f"batch job {batch}" if batch else "more nodes for a session"

    def refusal(self, act: Act, minutes: int, now: float) -> str:
        """Return why the act is not possible, "" if it is: the rest of a sentence."""
        if self.jobs and self.session is None and self.jobs[0].name.startswith(JOB_NAME_PREFIX):
            return _STRAY
        if self.session is not None and act is not Act.CANCEL:
            return _COMPANION if self.session.parent else _SESSION[act]
        return refusal(act, self.jobs, minutes=minutes, now=now)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one target: a sentence is ``{target} {name} {text}``."""

    target: str
    name: str
    level: str
    text: str
    done: bool

    @property
    def sentence(self) -> str:
        """The result for people."""
        return " ".join(word for word in (f"{self.target} {self.name}".strip(), self.text) if word)


def targets_of(words: Iterable[str]) -> list[Target]:
    """Parse the jobs of a request, each once.

    Raises:
        NoSuchAct: one is none, or they are too many.
    """
    found: dict[Target, None] = {}
    for word in words:
        target = target_of(word)
        if target is None:
            raise NoSuchAct(f"“{word[:40]}” is no job. Jobs are numbers, such as 9, 9_3 or 9_[3-5] of an array.")
        found[target] = None
    if len(found) > MOST_JOBS:
        raise NoSuchAct(f"Choose at most {MOST_JOBS} jobs at a time.")
    return list(found)


def chosen(hub: HubContext, snapshot: Snapshot, user: str, targets: Sequence[Target]) -> list[Chosen]:
    """Return what the targets are among the user's own jobs; one of somebody else looks as if there were none."""
    sessions = sessions_by_job(each for each in hub.registry.open_sessions() if each.user == user)
    own = snapshot.of_user(user)
    wanted = {target.number for target in targets}
    by_number: dict[int, list[Job]] = {}
    for job in own:
        number = job.array or job.id
        if number in wanted:
            by_number.setdefault(number, []).append(job)
    found = []
    for target in targets:
        jobs = live(target, by_number.get(target.number, ()))
        found.append(Chosen(target, jobs, sessions.get(jobs[0].name) if jobs else None))
    return found


async def perform(
    hub: HubContext,
    user: str,
    act: Act,
    targets: Sequence[Target],
    *,
    minutes: int = 0,
    stop: Callable[[Session], Awaitable[str]],
) -> list[Result]:
    """Act on jobs of a user; return what became of each.

    Args:
        minutes: the new time limit. stop: stops a session, and returns why it does not, "" = it does.

    Raises:
        SlurmError: Slurm does not answer, and nothing was done.
    """
    before = await _exact(hub, user, chosen(hub, await hub.watcher.fresh(), user, targets))
    now, slots = time.time(), asyncio.Semaphore(AT_ONCE)
    results: dict[Target, Result] = {}
    waits: dict[Target, str] = {}

    async def one(each: Chosen) -> None:
        why = each.refusal(act, minutes, now)
        if why:
            results[each.target] = _result(each, Outcome("warning", why, False))
            return
        async with slots:
            if each.session is not None:
                results[each.target] = _result(each, await _ended(hub, user, each.session, stop))
                return
            try:
                waits[each.target] = await hub.own_jobs.act(user, each.target, act, minutes)
            except SlurmRejected as error:
                results[each.target] = _result(each, Outcome("danger", f"is as it was: {error.message}", False))
            except SlurmError as error:
                hub.log.warning("%s of job %s of %s: %s", act.value, each.target, user, error)
                results[each.target] = _result(each, Outcome("warning", NOT_KNOWN, False))

    await asyncio.gather(*(one(each) for each in before))
    acted = [each for each in before if each.target in waits]
    results |= await _judged(hub, user, act, acted, waits, minutes)
    for target, result in results.items():
        hub.log.info("%s: %s of job %s: %s", user, act.value, target, result.text)
    return [results[target] for target in targets]


async def _exact(hub: HubContext, user: str, found: Sequence[Chosen]) -> list[Chosen]:
    """Return the same with each task of arrays by itself."""
    arrays = {each.target.number for each in found if each.jobs and each.jobs[0].array}
    tasks = await hub.own_jobs.tasks(user, arrays) if arrays else []
    by_array: dict[int, list[Job]] = {}
    for job in tasks:
        by_array.setdefault(job.array or job.id, []).append(job)

    def tasks_of() -> list[Chosen]:  # lists of thousands of tasks take seconds, which are not the hub's
        return [
            replace(each, jobs=live(each.target, by_array.get(each.target.number, ())))
            if each.target.number in arrays
            else each
            for each in found
        ]

    return await asyncio.to_thread(tasks_of)


async def _judged(
    hub: HubContext, user: str, act: Act, before: Sequence[Chosen], said: dict[Target, str], minutes: int
) -> dict[Target, Result]:
    """Return what became of jobs, as the queue shows them now."""
    found: dict[Target, Result] = {}
    for look in range(LOOKS if before else 0):
        if look:
            await asyncio.sleep(LOOK_AGAIN)
        try:
            now = chosen(hub, await hub.watcher.fresh(), user, [each.target for each in before])
            after = {each.target: each.jobs for each in await _exact(hub, user, now)}
        except SlurmError as error:
            hub.log.warning("What became of jobs of %s is not known: %s", user, error)
            return {each.target: _result(each, Outcome("warning", NOT_KNOWN, False)) for each in before}
        for each in before:
            judged = outcome(act, each.jobs, after[each.target], complaint=said[each.target], minutes=minutes)
            found[each.target] = _result(each, judged)
        if all(result.done or said[target] for target, result in found.items()):
            break
    return found


async def _ended(hub: HubContext, user: str, session: Session, stop: Callable[[Session], Awaitable[str]]) -> Outcome:
    """End it; return what came of it, whatever fails, so that the other jobs' results are not lost."""
    try:
        return await _end(hub, session, stop)
    except Refused as error:
        return Outcome("warning", f"is as it was: {error.message}", False)
    except StoreError as error:
        hub.log.warning("The end of session %s of %s is not stored: %s", session.id, user, error)
        return Outcome("warning", "is as it was: the database does not answer. Try it again in a moment.", False)


async def _end(hub: HubContext, session: Session, stop: Callable[[Session], Awaitable[str]]) -> Outcome:
    """End a session, more nodes, or a batch job in the hub's own way."""
    if session.is_ending:
        return Outcome("info", "is ending already.", False)
    if not session.parent:
        why = await stop(session)
        if why:
            return Outcome("warning", why, False)
        # JupyterHub tells nobody that a stop failed, nor that it takes longer.
        left = hub.registry.current(session.id)
        if left is None:
            return Outcome("success", "is stopped.", True)
        if left.is_ending:
            return Outcome("success", "is being stopped.", True)
        return Outcome("warning", "could not be stopped. Look at it on your page, and try it again.", False)
    if session.request.batch:
        await cancel_batch_job(hub, session.user, session.id)
        return Outcome("success", "is being cancelled.", True)
    await hub.reconciler.cancel(session.id, GIVEN_BACK)
    return Outcome("success", "is given back.", True)


def _result(each: Chosen, found: Outcome) -> Result:
    return Result(str(each.target), each.name, found.level, found.text, found.done)
