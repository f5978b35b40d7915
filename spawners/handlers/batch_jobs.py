"""Handlers of a user's batch jobs: REST for all of the user's sessions, and the form of the home page.

``/hub/api/carme/users/<name>/batch-jobs``: GET lists, DELETE ``…/<uuid>`` cancels one. Allowed are the tokens of the
user's own running servers, and everybody who may start servers for the user. A batch job is requested like a companion
(``companions``), by the session whose image and profile it gets; it outlives that session, so it is listed here.

POST and ``…/quote`` request one from outside of a session (``companions.outside``); that may only who may start servers
for the user, since it has the profile and the image that the request names.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

from jupyterhub.apihandlers.base import APIHandler
from jupyterhub.scopes import needs_scope
from jupyterhub.utils import url_path_join
from tornado import web

from carme_hub.domain.sessions.companions import CompanionRequest
from carme_hub.errors import Refused, SlurmUnreachable, StoreError
from carme_hub.spawners.companions.companions import cancel_batch_job, open_companion, quote
from carme_hub.spawners.companions.descriptions import described
from carme_hub.spawners.companions.outside import PYTHON, checked_files, origin_of
from carme_hub.spawners.handlers.bodies import small_json
from carme_hub.spawners.handlers.companions import companion_request, idempotency_key
from carme_hub.spawners.handlers.home.page import CarmeHomeHandler
from carme_hub.spawners.hub.shared import HubContext, started_hub

_UUID = "[0-9a-f-]{36}"
JOBS = r"/api/carme/users/([^/]+)/batch-jobs"
ONE, QUOTE = rf"{JOBS}/({_UUID})", rf"{JOBS}/quote"
FORM = rf"/carme/batch-jobs/({_UUID})/cancel"
_OPTION = "opt-"
_LARGEST_BODY = 256 << 10  # files are 32 KiB of text, each character of which may be six in JSON
_NO_USER = "There is no such user, or the hub is starting."
_NOT_KNOWN = "The database or Slurm does not answer. Look at the list of batch jobs before you try again."


class UserHandler(APIHandler):
    """The base: checks that the caller may act for the user."""

    async def _authorize(self, name: str, *more: str) -> None:
        if self.current_user is None:
            raise web.HTTPError(403)
        hub = started_hub()
        if hub is not None and self._is_of_a_session(hub, name):
            await self._found(hub, name, *more)
        else:
            await self._of_user(hub, *more, user_name=name)

    def _is_of_a_session(self, hub: HubContext, name: str) -> bool:
        """Return whether the request has the token of one of the user's own servers."""
        token = self.get_token()
        if token is None or token.user is None or token.user.name != name:
            return False
        return any(each.token_id == token.id for each in hub.registry.open_sessions() if each.user == name)

    @needs_scope("start:servers")
    async def _of_user(self, hub: HubContext | None, *more: str, user_name: str) -> None:
        await self._found(hub, user_name, *more)

    async def _found(self, hub: HubContext | None, name: str, *more: str) -> None:
        user = self.find_user(name)
        if hub is None or user is None:
            raise web.HTTPError(404, _NO_USER)
        self.set_header("Cache-Control", "no-store")
        try:
            await self._answer(hub, user, *more)
        except Refused as error:
            self.set_status({"unknown": 404, "key-used": 422}.get(error.reason, 409))
            self.finish(json.dumps({"error": error.reason, "message": error.message}))
        except (SlurmUnreachable, StoreError) as error:
            hub.log.warning("Batch jobs of %s: %s", name, error)
            raise web.HTTPError(503, _NOT_KNOWN) from error

    async def _answer(self, hub: HubContext, user: Any, *more: str) -> None:
        raise NotImplementedError


class BatchJobsHandler(UserHandler):
    """Lists the batch jobs of a user."""

    async def get(self, name: str) -> None:
        """List them, including ended ones, oldest first."""
        await self._authorize(name)

    async def _answer(self, hub: HubContext, user: Any, *more: str) -> None:
        if more == ("open",):
            return await self._opened(hub, user)
        now, found = time.time(), await hub.registry.all_batch_jobs_of(user.name)
        jobs = [described(hub, each, now, virtual=user.spawner.virtual) for each in found]
        self.finish(json.dumps({"batch_jobs": jobs}))
        return None

    async def _opened(self, hub: HubContext, user: Any) -> None:
        body = small_json(self.request.body, _LARGEST_BODY)
        if not isinstance(body, dict):
            raise web.HTTPError(400, 'Send a JSON object, such as {"run": "long", "gpus": 4, "minutes": 120}.')
        files, options = checked_files(body.pop("files", {})), body.pop("options", {})
        origin = await origin_of(hub, user.spawner, options)
        key = idempotency_key(self)
        job, warnings = await open_companion(hub, user.spawner, origin, _wanted(body), key, files)
        said = described(hub, job, time.time(), virtual=user.spawner.virtual)
        self.set_status(201)
        self.finish(json.dumps({**said, "warnings": list(warnings)}))

    async def post(self, name: str) -> None:
        """Open one by user options of a server; with an ``Idempotency-Key`` only once."""
        await self._open(user_name=name)

    @needs_scope("start:servers")
    async def _open(self, user_name: str) -> None:
        await self._found(started_hub(), user_name, "open")


class QuoteHandler(UserHandler):
    """Returns the cost and expected start of a batch job from outside of a session."""

    async def get(self, name: str) -> None:
        """Send the quote; nothing is written."""
        await self._quote(user_name=name)

    @needs_scope("start:servers")
    async def _quote(self, user_name: str) -> None:
        await self._found(started_hub(), user_name)

    async def _answer(self, hub: HubContext, user: Any, *_more: str) -> None:
        asked = {name: values[-1].decode("utf8", "replace") for name, values in self.request.query_arguments.items()}
        names = [name for name in asked if name.startswith(_OPTION)]
        options = {name.removeprefix(_OPTION): asked.pop(name) for name in names}
        asked.pop("_xsrf", None)
        origin = await origin_of(hub, user.spawner, options)
        found = await quote(hub, user.spawner, origin, _wanted({"run": "run", **asked}))
        self.finish(json.dumps(found.as_json()))


def _wanted(asked: dict[str, Any]) -> CompanionRequest:
    if "run" not in asked:
        raise web.HTTPError(400, "run is the name of the run.")
    found = companion_request(asked)
    return found if found.python else replace(found, python=PYTHON)


class BatchJobHandler(UserHandler):
    """One batch job of a user."""

    async def delete(self, name: str, id: str) -> None:
        """Cancel it; the answer is sent once that is stored, so that a crash cannot lose it."""
        await self._authorize(name, id)

    async def _answer(self, hub: HubContext, user: Any, *more: str) -> None:
        found = await cancel_batch_job(hub, user.name, more[0])
        self.finish(json.dumps(described(hub, found, time.time(), virtual=user.spawner.virtual)))


class CancelFormHandler(CarmeHomeHandler):
    """The home page's form that cancels a batch job; the page shows a refusal."""

    async def get(self, *_asked: str) -> None:
        """Redirect to the home page: a GET changes nothing."""
        self.redirect(url_path_join(self.hub.base_url, "home"))

    @web.authenticated
    async def post(self, id: str) -> None:
        """Cancel the visitor's own batch job, and redirect to the home page."""
        await self._post(id, user_name=self.current_user.name)

    @needs_scope("start:servers")
    async def _post(self, id: str, user_name: str) -> None:
        hub = started_hub()
        try:
            if hub is None:
                return await self._reply(503, "The hub is starting. Try it again in a moment.")
            await cancel_batch_job(hub, user_name, id)
        except Refused as error:
            return await self._reply(404, error.message)
        except (SlurmUnreachable, StoreError) as error:
            self.log.warning("Batch job %s is not cancelled yet: %s", id, error)
            return await self._reply(503, "The database does not answer, so nothing was changed. Try it again.")
        return self.redirect(url_path_join(self.hub.base_url, "home"), status=303)

    async def _reply(self, status: int, message: str) -> None:
        self.set_status(status)
        self._refused = message
        await self.show()


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [(JOBS, BatchJobsHandler), (ONE, BatchJobHandler)]
HANDLERS += [(QUOTE, QuoteHandler), (FORM, CancelFormHandler)]
