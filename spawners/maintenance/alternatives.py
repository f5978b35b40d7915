"""Stops a session and starts it again, as it was or elsewhere before maintenance, or with a refund; each is done once.

``POST /hub/api/carme/sessions/<uuid>/restart``, ``…/move`` and ``…/make-way``, without a body, and the home page's
forms call these functions. The last two first check in the calendar and in Slurm that maintenance affects the session.
All refusals come before the session is stopped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tornado import web

from carme_hub.domain.calendar.reservations import PROMISED
from carme_hub.domain.ledger.entries import price
from carme_hub.domain.sessions.session import MAINTENANCE_STOP, Request, Session
from carme_hub.domain.wording import gpu_hours
from carme_hub.errors import Refused
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.hub.shared import HubContext
from carme_hub.spawners.maintenance.affected_sessions import (
    AffectedSession,
    Alternatives,
    affected_session,
    begin_sentence,
    notice_period,
    restart_duration,
    restart_options,
    restart_sentence,
)
from carme_hub.spawners.session_state import STOPPED, iso

#: The cancel reason of a session that is started again.
RESTARTED = "Stopped to start again with the same options."
#: Prefix of the cancel reason of a session that is moved; its use is not refunded.
MOVED = "Stopped to go on elsewhere, before maintenance of "
#: Seconds in which a failure of the new start is reported by this request; later failures are on the pending page.
FAILURE_WAIT = 1.0
#: Seconds that a request waits until the session is stopped.
STOP_WAIT = 20.0


class NotAffected(Refused):
    """No maintenance affects the session, or it has ended."""

    reason = "not-in-the-way"


class NotMoved(Refused):
    """The session could not start again, so it was not stopped."""

    reason = "not-moved"


async def alternatives_for(hub: HubContext, user: Any, found: AffectedSession, now: float) -> Alternatives:
    """Return the alternatives for a session that maintenance affects."""
    session, job = found.session, found.job
    offer = await user.spawner.offer()
    options = user.spawners[session.server_name].user_options if session.server_name in user.spawners else {}
    next_one = restart_options(offer, options or {}, found, now)
    max_wait = float(user.spawner.start_timeout)
    refunded, refund = refund_of(hub, found, now)
    return Alternatives(
        session=session.id,
        server=session.server_name,
        begins=begin_sentence(found, now),
        ends=clock(job.end, now) if job.end else "",
        ends_iso=iso(job.end) if job.end else "",
        duration=restart_duration(next_one),
        restart=restart_sentence(offer, next_one.request, now, max_wait) if next_one.request is not None else "",
        problem=next_one.problem,
        refund=refund,
        refunded=refunded,
    )


def refund_of(hub: HubContext, found: AffectedSession, now: float) -> tuple[bool, str]:
    """Return whether the use of a session that is stopped for maintenance is refunded, and a sentence on it."""
    job, request = found.job, found.session.request
    if hub.admission is None or not job.gpus:
        return False, ""
    unused = "GPU time that it holds and has not used is released."
    factor = hub.admission.ledger.context.factor(job.gpus.type, request.partition, request.qos)
    used = gpu_hours(price(job.gpus, max(0, int(now - job.start)), factor))
    if "maintenance" not in hub.admission.policy().refunded:
        return False, f"{unused} What it has used, {used} so far, is charged."
    return True, f"{unused} What it has used, {used} so far, is refunded within a few minutes."


# -- actions ----------------------------------------------------------------------------------------------------------


class PendingActions:
    """The running actions on affected sessions: one for each session, done once."""

    def __init__(self) -> None:
        self._tasks: dict[str, tuple[str, asyncio.Task[None]]] = {}

    async def once(self, session: str, what: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Start the action, or wait for the running one; return whether it is done by now. It continues by itself.

        Raises:
            NotAffected: another action on the session is running.
        """
        doing, task = self._tasks.get(session, ("", None))
        if task is None:
            task = asyncio.ensure_future(work())
            self._tasks[session] = (what, task)
            task.add_done_callback(lambda done: self._done(session, done))
        elif doing != what:
            raise NotAffected("This session is being stopped already.")
        done, _ = await asyncio.wait([task], timeout=STOP_WAIT)
        if done:
            task.result()
        return bool(done)

    def _done(self, session: str, task: asyncio.Task[None]) -> None:
        del self._tasks[session]
        if not task.cancelled():
            task.exception()  # marks it as retrieved, since asyncio logs exceptions that nobody has retrieved


async def check_affected(hub: HubContext, session: Session) -> AffectedSession:
    """Return the maintenance that affects a session, by fresh queries to the calendar and Slurm.

    Raises:
        NotAffected: no maintenance affects it. StoreError, SlurmUnreachable: it is unknown.
    """
    if hub.slots is None:
        raise NotAffected("This site has no calendar, so no maintenance is planned in it.")
    now = time.time()
    known = await hub.slots.read(lambda reads: reads.overlapping(notice_period(now), PROMISED))
    jobs = await hub.client.find(session.job_name, session.user)
    newest = hub.registry.current(session.id)
    found = affected_session(newest, jobs, known, now) if newest is not None else None
    if found is None:
        raise NotAffected(
            "No maintenance affects this session, or it is being stopped already. You can stop it as usual."
        )
    return found


async def stop_for_maintenance(handler: Any, hub: HubContext, user: Any, session: Session) -> None:
    """Stop a session for maintenance; its use is refunded at the settlement if the policy says so."""
    found = await check_affected(hub, session)
    await _stop(handler, user, session, f"{MAINTENANCE_STOP}{found.nodes}.")
    hub.log.info("Session %s of %s was stopped for maintenance %s", session.id, user.name, found.maintenance.id)


async def move(handler: Any, hub: HubContext, user: Any, session: Session) -> None:
    """Stop a session and start it again on other nodes, for the rest of its time.

    Raises:
        NotMoved: it could not start again; nothing was stopped. web.HTTPError: it was stopped, and the hub's own
            limits refused its start at once.
    """
    found = await check_affected(hub, session)
    spawner = user.spawners[session.server_name]
    next_one = restart_options(await spawner.offer(), spawner.user_options or {}, found, time.time())
    if next_one.request is None:
        raise NotMoved(_would_not_start(next_one.problem))
    await _start_again(handler, hub, user, session, next_one.request, next_one.options, f"{MOVED}{found.nodes}.")
    hub.log.info("Session %s of %s is moved before maintenance %s", session.id, user.name, found.maintenance.id)


async def restart(handler: Any, hub: HubContext, user: Any, session: Session) -> None:
    """Stop a session and start it again with the options of its start.

    Raises:
        NotMoved, web.HTTPError: as of ``move``.
    """
    spawner = user.spawners[session.server_name]
    options = {"profile": session.request.profile, **(spawner.user_options or {})}
    request, problems = (await spawner.offer()).examine(options)
    if request is None:
        raise NotMoved(_would_not_start(" ".join(each.message for each in problems)))
    await _start_again(handler, hub, user, session, request, options, RESTARTED)
    hub.log.info("Session %s of %s is started again", session.id, user.name)


async def _start_again(
    handler: Any,
    hub: HubContext,
    user: Any,
    session: Session,
    request: Request,
    options: Mapping[str, object],
    why: str,
) -> None:
    """Stop a session and start it with these options; raise ``NotMoved``, with nothing stopped, if it would not."""
    cost, _ = await hub.cost(user, request, session.id)
    if cost is not None and cost.state == "refused":
        raise NotMoved(_would_not_start(cost.sentence))
    name = session.server_name
    display = user.spawners[name].orm_spawner.display_name if name else ""
    await _stop(handler, user, session, why)
    over = hub.registry.current(session.id) is None or hub.reconciler.seen_terminal(session.id)
    spawner = user.get_or_create_spawner(name, display, replace_failed=True)
    spawner.replaces = session.id if over else ""
    starting = asyncio.ensure_future(handler.spawn_single_user(user, name, display, options=dict(options)))
    starting.add_done_callback(lambda done: _started(spawner, done))
    done, _ = await asyncio.wait([starting], timeout=FAILURE_WAIT)
    if done and starting.exception() is not None and not spawner._failed:
        starting.result()  # raises here, since no page of the hub would show it


def _would_not_start(problem: str) -> str:
    return f"It would not start again, so it was not stopped: {problem}"


def _started(spawner: Any, task: asyncio.Task[Any]) -> None:
    spawner.replaces = ""
    if not task.cancelled():
        task.exception()  # the hub's page shows it


async def _stop(handler: Any, user: Any, session: Session, why: str) -> None:
    spawner = user.spawners[session.server_name]
    if spawner.pending or not spawner.ready:
        raise NotAffected("The server is being started or stopped. Wait for it.")
    spawner.stop_reason = why
    try:
        await (await handler.stop_single_user(user, session.server_name))
    finally:
        spawner.stop_reason = STOPPED
    if spawner.active:
        raise web.HTTPError(503, "The server could not be stopped. Look at your home page, and try it again.")
