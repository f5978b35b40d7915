"""Out of the way of maintenance: a session goes on elsewhere, or ends with a refund; each is done once.

``POST /hub/api/carme/sessions/<uuid>/move`` and ``…/make-way``, without a body. That the session is in the way is
looked up when it is asked, in the calendar and in Slurm. What can be refused is refused before anything is stopped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tornado import web

from carme_hub.domain.calendar.reservations import PROMISED
from carme_hub.domain.ledger.entries import price
from carme_hub.domain.sessions.session import MAINTENANCE_STOP, Session
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

#: How the reason of a cancel begins by which a session is moved; nothing is refunded for that.
MOVED = "Stopped to go on elsewhere, before maintenance of "
#: Seconds that a start has to fail before it is left to the page that shows it.
FAILURE_WAIT = 1.0
#: Seconds that who asks waits for a session to be stopped.
STOP_WAIT = 20.0


class NotAffected(Refused):
    """The session is in the way of no maintenance, or is not there to be moved any more."""

    reason = "not-in-the-way"


class NotMoved(Refused):
    """The session could not start again, so it was left as it is."""

    reason = "not-moved"


async def alternatives_for(hub: HubContext, user: Any, found: AffectedSession, now: float) -> Alternatives:
    """Return what is offered for a session that is in the way."""
    session, job = found.session, found.job
    offer = await user.spawner.offer()
    options = user.spawners[session.server_name].user_options if session.server_name in user.spawners else {}
    next_one = restart_options(offer, options or {}, found, now)
    patience = float(user.spawner.start_timeout)
    refunded, refund = refund_of(hub, found, now)
    return Alternatives(
        session=session.id,
        server=session.server_name,
        begins=begin_sentence(found, now),
        ends=clock(job.end, now) if job.end else "",
        ends_iso=iso(job.end) if job.end else "",
        duration=restart_duration(next_one),
        restart=restart_sentence(offer, next_one.request, now, patience) if next_one.request is not None else "",
        problem=next_one.problem,
        refund=refund,
        refunded=refunded,
    )


def refund_of(hub: HubContext, found: AffectedSession, now: float) -> tuple[bool, str]:
    """Return whether GPU time comes back for a session that makes way, and what is said of it."""
    job, request = found.job, found.session.request
    if hub.admission is None or not job.gpus:
        return False, ""
    unused = "What it holds of GPU time and has not used comes back."
    factor = hub.admission.ledger.context.factor(job.gpus.type, request.partition, request.qos)
    used = gpu_hours(price(job.gpus, max(0, int(now - job.start)), factor))
    if "maintenance" not in hub.admission.policy().refunded:
        return False, f"{unused} What it has used, {used} so far, is charged."
    return True, f"{unused} What it has used, {used} so far, is refunded within a few minutes."


# -- doing it ---------------------------------------------------------------------------------------------------------


class PendingActions:
    """What is being done with sessions that are in the way: for each session one thing, once."""

    def __init__(self) -> None:
        self._tasks: dict[str, tuple[str, asyncio.Task[None]]] = {}

    async def once(self, session: str, what: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Do it, or wait for what is being done; return whether it is done by now. It goes on when nobody waits.

        Raises:
            NotInTheWay: another thing is being done with the session.
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
            task.exception()  # whoever waited has it; asyncio complains where nobody did


async def trigger(hub: HubContext, session: Session) -> AffectedSession:
    """Return what a session is in the way of, by the calendar and Slurm as they are now.

    Raises:
        NotInTheWay: of nothing. StoreError, SlurmUnreachable: it is not known.
    """
    if hub.slots is None:
        raise NotAffected("There is no calendar here, and so no maintenance to make way for.")
    now = time.time()
    known = await hub.slots.read(lambda reads: reads.overlapping(notice_period(now), PROMISED))
    jobs = await hub.client.find(session.job_name, session.user)
    newest = hub.registry.current(session.id)
    found = affected_session(newest, jobs, known, now) if newest is not None else None
    if found is None:
        raise NotAffected(
            "This session is not in the way of maintenance, or is being stopped already. It can be stopped as always."
        )
    return found


async def stop_for_maintenance(handler: Any, hub: HubContext, user: Any, session: Session) -> None:
    """Stop a session for maintenance; what it has used is refunded where the policy says so, when it is settled."""
    found = await trigger(hub, session)
    await _stop(handler, user, session, f"{MAINTENANCE_STOP}{found.nodes}.")
    hub.log.info("Session %s of %s made way for maintenance %s", session.id, user.name, found.maintenance.id)


async def move(handler: Any, hub: HubContext, user: Any, session: Session) -> None:
    """Stop a session and start it again elsewhere, for what is left of its time.

    Raises:
        NotMoved: it could not start again; nothing was stopped. web.HTTPError: it was stopped, and its start was
            refused at once by the hub's own limits.
    """
    found, name = await trigger(hub, session), session.server_name
    spawner = user.spawners[name]
    next_one = restart_options(await spawner.offer(), spawner.user_options or {}, found, time.time())
    if next_one.request is None:
        raise NotMoved(f"It would not start again, so it was left as it is: {next_one.problem}")
    cost, _ = await hub.cost(user, next_one.request, session.id)
    if cost is not None and cost.state == "refused":
        raise NotMoved(f"It would not start again, so it was left as it is: {cost.sentence}")
    display = spawner.orm_spawner.display_name if name else ""
    await _stop(handler, user, session, f"{MOVED}{found.nodes}.")
    over = hub.registry.current(session.id) is None or hub.reconciler.seen_terminal(session.id)
    spawner = user.get_or_create_spawner(name, display, replace_failed=True)
    spawner.replaces = session.id if over else ""
    hub.log.info("Session %s of %s goes on elsewhere: %s", session.id, user.name, found.maintenance.id)
    starting = asyncio.ensure_future(handler.spawn_single_user(user, name, display, options=dict(next_one.options)))
    starting.add_done_callback(lambda done: _started(spawner, done))
    done, _ = await asyncio.wait([starting], timeout=FAILURE_WAIT)
    if done and starting.exception() is not None and not spawner._failed:
        starting.result()  # no page of the hub's would show it


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
