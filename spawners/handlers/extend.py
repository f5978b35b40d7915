"""Extends a running session: first the hold in the ledger, then the job's time limit in Slurm.

``POST /hub/api/carme/sessions/<uuid>/time-limit`` with ``{"minutes": 30}`` adds so many minutes. The profile's maximum
and every quota apply to the whole session, so that an extension gives nobody more than a start.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from weakref import WeakValueDictionary

from tornado import web

from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.errors import Refused, SlurmRejected
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.handlers.bodies import small_json
from carme_hub.spawners.handlers.companions import SessionHandler
from carme_hub.spawners.hub.shared import HubContext

EXTEND = r"/api/carme/sessions/([0-9a-f-]{36})/time-limit"
_LARGEST_BODY = 256
_MAX_MINUTES = 525_600


#: One lock per session: two clicks are two extensions, one after the other.
_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()


class TimeFixed(Refused):
    """The session cannot have more time."""

    reason = "time-fixed"


async def extend(
    hub: HubContext, spawner: Any, session: Session, minutes: int
) -> tuple[Session, float, tuple[str, ...]]:
    """Add minutes to a running session; return it with its new end (epoch seconds) and warnings of the policy.

    Raises:
        Refused: it does not run, its profile or the policy does not allow it, or Slurm refused.
        SlurmUnreachable: it is unknown whether Slurm did it; its hold is released when the session ends.
    """
    async with _locks.setdefault(session.id, asyncio.Lock()):
        return await _extend(hub, spawner, session, minutes)


async def _extend(
    hub: HubContext, spawner: Any, session: Session, minutes: int
) -> tuple[Session, float, tuple[str, ...]]:
    if session.state is not SessionState.RUNNING or session.is_ending:
        raise TimeFixed("Only a running session can have more time.")
    found = [job for job in await hub.client.find(session.job_name, session.user) if job.start]
    if not found:
        raise TimeFixed("Slurm does not show the session's job as running.")
    job = found[-1]
    if not job.time_limit:
        raise TimeFixed("This session has no time limit.")
    total = job.time_limit + minutes
    offer = await spawner.offer()
    profile = next((p for p in offer.profiles if p.slug == session.request.profile), None)
    if profile is None:
        raise TimeFixed("The profile of this session is no longer offered to you.")
    if total > profile.time_minutes.max:
        most = profile.time_minutes.max - job.time_limit
        more = f"it can have {most} minutes more" if most > 0 else "it has that time already"
        raise TimeFixed(f"“{profile.display_name}” runs at most {profile.time_minutes.max} minutes; {more}.")
    if offer.bookings is not None and (why := offer.bookings.extension_refusal(job, session.request, total)):
        raise TimeFixed(why)
    warnings: tuple[str, ...] = ()
    if hub.admission is not None:
        warnings = await hub.admission.extend(spawner.user, session, minutes)
    try:
        job = await hub.client.set_time_limit(session.job_name, session.user, total)
    except SlurmRejected as error:
        if hub.admission is not None:
            await hub.admission.undo_extension(session)
        raise TimeFixed(f"Slurm refused: {error.message} The session keeps its time.") from error
    session = await hub.registry.set_time_limit(session.id, total)
    hub.log.info("Session %s of %s may run %s minutes in all", session.id, session.user, total)
    return session, job.start + 60 * job.time_limit, warnings


class ExtendHandler(SessionHandler):
    """Accepts extensions from the session's own programs, and from users who may start servers for its user."""

    not_known = "Slurm does not answer; it is unknown whether there is more time."

    async def post(self, id: str) -> None:
        """Answer with the new end."""
        await self._authorize(id)

    async def _answer(self, hub: HubContext, spawner: Any, session: Session, *_more: str) -> None:
        minutes = _minutes(self.request.body)
        session, ends, warnings = await extend(hub, spawner, session, minutes)
        text = clock(ends, time.time())
        answer = {"minutes": session.request.time_limit, "ends": int(ends), "said": text, "warnings": warnings}
        self.finish(json.dumps(answer))


def _minutes(body: bytes) -> int:
    data = small_json(body, _LARGEST_BODY)
    minutes = data.get("minutes") if isinstance(data, dict) and set(data) == {"minutes"} else None
    if type(minutes) is not int or not 0 < minutes <= _MAX_MINUTES:
        raise web.HTTPError(400, 'Send {"minutes": N}, with N from 1 up.')
    return minutes
