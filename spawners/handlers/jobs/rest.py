"""REST of a user's jobs, for the user's own programs: ``/hub/api/carme/users/<name>/jobs``.

Only tokens of the user, with a scope: ``custom:carme:jobs:read`` to see jobs and their output, ``custom:carme:jobs`` to
act on them too. Nobody acts for somebody else here, administrators included, and neither does a session's own token,
which has none of the two.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from jupyterhub.apihandlers.base import APIHandler
from jupyterhub.user import User
from tornado import web

from carme_hub.domain.cluster.own_jobs.acts import Act
from carme_hub.domain.cluster.own_jobs.targets import Target, target_of
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import Refused, SlurmError, SlurmRejected, StoreError
from carme_hub.slurm.owner.turns import TooManyRequests
from carme_hub.spawners.handlers.bodies import small_json
from carme_hub.spawners.handlers.companions import idempotency_key
from carme_hub.spawners.handlers.jobs.again import NOT_KNOWN, submissions
from carme_hub.spawners.home.jobs import job_rows, sessions_by_job
from carme_hub.spawners.hub.finished_jobs import finished_of
from carme_hub.spawners.hub.shared import HubContext, started_hub
from carme_hub.spawners.jobs.acts import SILENT, perform, targets_of
from carme_hub.spawners.jobs.ended import DAYS, as_json
from carme_hub.spawners.jobs.output import MOST_LINES, NEW, STREAMS, TAIL, Outputs

READ, MANAGE = "custom:carme:jobs:read", "custom:carme:jobs"
JOBS = r"/api/carme/users/([^/]+)/jobs"
ACTS, ENDED = rf"{JOBS}/acts", rf"{JOBS}/ended"
OUTPUT, AGAIN = rf"{JOBS}/([^/]+)/output", rf"{JOBS}/([^/]+)/again"
_LARGEST_BODY = 16 << 10
_STATUS = {"unknown": 404, "no-output": 404, "missing": 404, "denied": 403, "key-used": 422, "wrong-request": 400}


class JobsBase(APIHandler):
    """The base: checks who calls, and answers errors."""

    async def _for(self, name: str, scope: str, *more: Any) -> None:
        user = self.current_user
        if user is None:
            raise web.HTTPError(403)
        # A name that one may not see looks like one that does not exist.
        if not isinstance(user, User) or user.name != name or not self.has_scope(f"{scope}!user={name}"):
            raise web.HTTPError(403, f"This is for {name}'s own tokens with the scope {scope}.")
        hub = started_hub()
        if hub is None:
            raise web.HTTPError(503, "The hub is starting. Try it again in a moment.")
        self.set_header("Cache-Control", "no-store")
        try:
            answer = await self._answer(hub, user, *more)
        except Refused as error:
            self.set_status(_STATUS.get(error.reason, 409))
            answer = {"error": error.reason, "message": error.message}
        except TooManyRequests as error:
            self.set_status(429)
            answer = {"error": "too-many-requests", "message": error.message}
        except SlurmRejected as error:
            self.set_status(409)
            answer = {"error": "slurm-rejected", "message": error.message}
        except (SlurmError, StoreError) as error:
            hub.log.warning("Jobs of %s: %s", name, error)
            raise web.HTTPError(503, self._not_known) from error
        self.finish(json.dumps(answer))

    _not_known = SILENT

    async def _answer(self, hub: HubContext, user: Any, *more: Any) -> Mapping[str, Any]:
        raise NotImplementedError


class JobsHandler(JobsBase):
    """Lists the jobs that have not ended, from the hub's last look at the queue."""

    async def get(self, name: str) -> None:
        """Send them, the newest first."""
        await self._for(name, READ)

    async def _answer(self, hub: HubContext, user: Any, *_more: Any) -> Mapping[str, Any]:
        snapshot = hub.watcher.latest or await hub.watcher.fresh()
        own = sessions_by_job(each for each in hub.registry.open_sessions() if each.user == user.name)
        virtual = bool(getattr(user.spawner, "virtual", False))
        rows, left_out = job_rows(snapshot, user.name, own, time.time(), virtual=virtual)
        age = max(0.0, time.monotonic() - snapshot.asked)
        jobs = [
            {("job" if key == "id" else "name" if key == "what" else key): value for key, value in asdict(row).items()}
            for row in rows
        ]
        return {"jobs": jobs, "left_out": left_out, "age": round(age, 1)}


class EndedHandler(JobsBase):
    """Lists the jobs that have ended in the last days, with what they used."""

    async def get(self, name: str) -> None:
        """Send them, the newest first."""
        await self._for(name, READ)

    async def _answer(self, hub: HubContext, user: Any, *_more: Any) -> Mapping[str, Any]:
        found = await hub.own_jobs.ended(user.name, time.time() - DAYS * 86400)
        ended = sorted((job for job in found if job.end), key=lambda job: job.end, reverse=True)[:1000]
        virtual = bool(getattr(user.spawner, "virtual", False))
        finished = await finished_of(user.name, time.time(), [job.id for job in ended])

        def shown() -> list[Mapping[str, object]]:  # a thousand jobs, each with the jobs before it
            return [as_json(job, finished, virtual=virtual) for job in ended]

        return {"ended": await asyncio.to_thread(shown)}


class ActsHandler(JobsBase):
    """Acts on jobs."""

    async def post(self, name: str) -> None:
        """Do it, and send what became of each job."""
        await self._for(name, MANAGE)

    async def _answer(self, hub: HubContext, user: Any, *_more: Any) -> Mapping[str, Any]:
        body = small_json(self.request.body, _LARGEST_BODY)
        if not isinstance(body, dict) or not set(body) <= {"act", "jobs", "minutes"}:
            raise web.HTTPError(400, 'Send {"act": "hold", "jobs": ["9", "10_3"]}, for "limit" with "minutes".')
        try:
            act = Act(body.get("act"))
        except ValueError as error:
            raise web.HTTPError(400, f"act is one of {', '.join(each.value for each in Act)}.") from error
        words, minutes = body.get("jobs"), body.get("minutes", 0)
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise web.HTTPError(400, 'jobs is a list of texts, such as ["9", "10_3"].')
        if type(minutes) is not int or (minutes > 0) != (act is Act.LIMIT):
            raise web.HTTPError(400, "minutes is a number from 1 up, and only for limit.")
        targets = targets_of(words)
        results = await perform(hub, user.name, act, targets, minutes=minutes, stop=_is_a_session)
        told = [{"job": each.target, "name": each.name, "done": each.done, "said": each.text} for each in results]
        return {"results": told}


async def _is_a_session(_session: Session) -> str:
    return "is a session of yours. DELETE its server: /hub/api/users/<name>/servers/<server>."


class OutputHandler(JobsBase):
    """A part of a job's output."""

    async def get(self, name: str, job: str) -> None:
        """Send it as JSON."""
        await self._for(name, READ, job)

    _not_known = "Slurm or the program that reads files does not answer. Try it again."

    async def _answer(self, hub: HubContext, user: Any, *more: Any) -> Mapping[str, Any]:
        outputs: Outputs = self.settings.setdefault("carme_outputs", Outputs())
        stream, words = self.get_argument("stream", "output"), self.get_argument("find", "")
        if stream not in STREAMS or len(words) > 200:
            raise web.HTTPError(400, f"stream is one of {', '.join(STREAMS)}; find has at most 200 characters.")
        place = await outputs.place(hub, user.name, _target(more[0]), stream)
        if words:
            found = await outputs.find(hub, user.name, place, words)
            lines = [{"at": at, "text": text} for at, text in found.lines]
            rest = {"count": found.count, "searched_from": found.searched_from, "size": found.size}
            return {"path": place.path, "lines": lines, "most_lines": MOST_LINES, **rest}
        offset, length = self._number("offset", -TAIL), self._number("length", TAIL)
        if not 0 < length <= NEW:
            raise web.HTTPError(400, f"length is 1 to {NEW}.")
        part = await outputs.part(hub, user.name, place, offset=offset, length=length)
        return {"path": place.path, **asdict(part)}

    def _number(self, name: str, default: int) -> int:
        text = self.get_argument(name, str(default))
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 18):
            raise web.HTTPError(400, f"{name} is a whole number.")
        return int(text)


class AgainHandler(JobsBase):
    """A job as it would be submitted again."""

    _not_known = NOT_KNOWN

    async def get(self, name: str, job: str) -> None:
        """Send the script and the options; nothing is changed."""
        await self._for(name, READ, job, False)

    async def post(self, name: str, job: str) -> None:
        """Submit it; with an ``Idempotency-Key`` only once."""
        await self._for(name, MANAGE, job, True)

    async def _answer(self, hub: HubContext, user: Any, *more: Any) -> Mapping[str, Any]:
        job, submits = more
        target = _target(job)
        if not submits:
            found = await submissions(self).show(hub, user.name, target)
            return {
                "script": found.script,
                "options": dict(found.options),
                "arguments": found.arguments,
                "notes": found.notes,
            }
        body = small_json(self.request.body, _LARGEST_BODY) if self.request.body.strip() else {}
        tasks = body.get("tasks", "") if isinstance(body, dict) and set(body) <= {"tasks"} else None
        if not isinstance(tasks, str):
            raise web.HTTPError(400, 'Send no body, or {"tasks": "0-9"} for an array.')
        number = await submissions(self).submit(hub, user.name, target, tasks=tasks, key=idempotency_key(self))
        self.set_status(201)
        return {"job": str(number)}


def _target(word: str) -> Target:
    target = target_of(word)
    if target is None:
        raise web.HTTPError(404, "There is no such job.")
    return target


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [
    (JOBS, JobsHandler),
    (ACTS, ActsHandler),
    (ENDED, EndedHandler),
    (OUTPUT, OutputHandler),
    (AGAIN, AgainHandler),
]
