"""Handlers of companions: REST for a session's own programs and for its user, and the form of the home page.

``/hub/api/carme/sessions/<uuid>/companions``: GET lists, POST opens, ``…/quote`` returns cost and start, DELETE
``…/<uuid>`` gives one back. The token of the session's own server is allowed for that session, and so is everybody who
may start servers for its user.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

from jupyterhub.apihandlers.base import APIHandler
from jupyterhub.scopes import needs_scope
from jupyterhub.utils import url_path_join
from tornado import web

from carme_hub.domain.sessions.companions import CompanionRequest
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import Refused, SlurmUnreachable, StoreError
from carme_hub.spawners.companions.companions import give_back, open_companion, quote
from carme_hub.spawners.companions.descriptions import described, listed
from carme_hub.spawners.handlers.bodies import small_json
from carme_hub.spawners.handlers.home.page import CarmeHomeHandler
from carme_hub.spawners.hub.shared import HubContext, started_hub

_UUID = "[0-9a-f-]{36}"
COMPANIONS = rf"/api/carme/sessions/({_UUID})/companions"
QUOTE = rf"{COMPANIONS}/quote"
ONE = rf"{COMPANIONS}/({_UUID})"
FORM = rf"/carme/sessions/({_UUID})/companions/({_UUID})/give-back"
_NUMBERS = ("nodes", "gpus", "cpus", "memory_mib", "minutes")
_LARGEST_BODY = 8192
_MAX_NUMBER = 99_999_999
_KEY = re.compile(r"[A-Za-z0-9._-]{1,100}")
_NODE = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
_NODES = re.compile(rf"({_NODE}(,{_NODE}){{0,63}})?")
_NAME = re.compile(r"[\w .:+-]{0,64}")
#: Fields that are texts, each with its pattern and the message for another one.
_TEXTS = {
    "name": (_NAME, "A name is at most 64 letters, digits, blanks and . : + -"),
    "exclude": (_NODES, "exclude is up to 64 names of nodes, separated by commas."),
    "run": (re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"), "run is the id of a run, as carme-hub runs shows it."),
    "replaces": (re.compile(_UUID), "replaces is the id of a companion."),
    "python": (re.compile(r"/[\x20-\x7e]{1,500}"), "python is the absolute path of a Python in the image."),
}
_NO_SESSION = "There is no such session, or it has ended."
_NOT_KNOWN = "The database or Slurm does not answer. Look at the list of companions before you try again."


class SessionHandler(APIHandler):
    """The base of handlers for one session: finds the session, and checks that the caller may use it."""

    #: What is said where Slurm or the database does not answer.
    not_known = _NOT_KNOWN

    async def _authorize(self, id: str, *more: str) -> None:
        """Answer a caller with access; without access a caller does not learn whether the session exists."""
        if self.current_user is None:
            raise web.HTTPError(403)
        hub = started_hub()
        session = hub.registry.current(id) if hub is not None else None
        if session is not None and self._is_its_own(session):
            await self._found(hub, session, *more)
            return
        await self._of_user(hub, session, *more, user_name=session.user if session else self.current_user.name)

    def _is_its_own(self, session: Session) -> bool:
        """Return whether the request has the token of the session's own server."""
        token = self.get_token()
        mine = token is not None and bool(session.token_id) and token.id == session.token_id
        return mine and token.user is not None and token.user.name == session.user

    @needs_scope("start:servers")
    async def _of_user(self, hub: HubContext | None, session: Session | None, *more: str, user_name: str) -> None:  # noqa: ARG002
        await self._found(hub, session, *more)

    async def _found(self, hub: HubContext | None, session: Session | None, *more: str) -> None:
        user = self.find_user(session.user) if session is not None else None
        if hub is None or session is None or session.parent or user is None:
            raise web.HTTPError(404, _NO_SESSION)
        if session.server_name not in user.spawners:
            raise web.HTTPError(404, _NO_SESSION)
        self.set_header("Cache-Control", "no-store")
        try:
            await self._answer(hub, user.spawners[session.server_name], session, *more)
        except Refused as error:
            self._refuse({"unknown": 404, "key-used": 422}.get(error.reason, 409), error)
        except (SlurmUnreachable, StoreError) as error:
            hub.log.warning("%s of session %s: %s", self.request.path, session.id, error)
            raise web.HTTPError(503, self.not_known) from error

    def _refuse(self, status: int, error: Refused) -> None:
        self.set_status(status)
        self.finish(json.dumps({"error": error.reason, "message": error.message}))

    async def _answer(self, hub: HubContext, spawner: Any, session: Session, *more: str) -> None:
        raise NotImplementedError


class QuoteHandler(SessionHandler):
    """Returns the cost and expected start of a companion."""

    async def get(self, id: str) -> None:
        """Send the quote; nothing is written."""
        await self._authorize(id)

    async def _answer(self, hub: HubContext, spawner: Any, session: Session, *_more: str) -> None:
        asked = {
            name: values[-1].decode("utf8", "replace")
            for name, values in self.request.query_arguments.items()
            if name != "_xsrf"
        }
        found = await quote(hub, spawner, session, companion_request(asked))
        self.finish(json.dumps(found.as_json()))


class CompanionsHandler(SessionHandler):
    """Lists a session's companions, and opens one."""

    async def get(self, id: str) -> None:
        """List companions, including ended ones."""
        await self._authorize(id, "list")

    async def post(self, id: str) -> None:
        """Open a companion; with an ``Idempotency-Key`` only once."""
        await self._authorize(id, "open")

    async def _answer(self, hub: HubContext, spawner: Any, session: Session, *more: str) -> None:
        if more == ("list",):
            self.finish(json.dumps({"companions": await listed(hub, session, virtual=spawner.virtual)}))
            return
        key = idempotency_key(self)
        wanted = companion_request(_body(self.request.body))
        if bool(wanted.run) != bool(wanted.python):
            raise web.HTTPError(400, "A batch job has a run and a python.")
        companion, warnings = await open_companion(hub, spawner, session, wanted, key)
        self.set_status(201)
        self.finish(
            json.dumps({**described(hub, companion, time.time(), virtual=spawner.virtual), "warnings": list(warnings)})
        )


class CompanionHandler(SessionHandler):
    """One companion of a session."""

    async def delete(self, id: str, companion: str) -> None:
        """Give it back; the answer is sent once that is stored, so that a crash cannot lose it."""
        await self._authorize(id, companion)

    async def _answer(self, hub: HubContext, spawner: Any, session: Session, *more: str) -> None:
        found = await give_back(hub, session, more[0])
        self.finish(json.dumps(described(hub, found, time.time(), virtual=spawner.virtual)))


class GiveBackFormHandler(CarmeHomeHandler):
    """The home page's form that gives a companion back; the page shows a refusal."""

    async def get(self, *_asked: str) -> None:
        """Redirect to the home page: a GET changes nothing."""
        self.redirect(url_path_join(self.hub.base_url, "home"))

    @web.authenticated
    async def post(self, id: str, companion: str) -> None:
        """Give the companion back, and redirect to the home page."""
        hub = started_hub()
        session = hub.registry.current(id) if hub is not None else None
        name = session.user if session else self.current_user.name
        await self._post(hub, session, companion, user_name=name)

    @needs_scope("start:servers")
    async def _post(self, hub: HubContext | None, session: Session | None, companion: str, user_name: str) -> None:  # noqa: ARG002
        if hub is None or session is None or session.parent:
            await self._reply(404, _NO_SESSION)
            return
        try:
            await give_back(hub, session, companion)
        except Refused as error:
            await self._reply(404, error.message)
        except (SlurmUnreachable, StoreError) as error:
            hub.log.warning("Companion %s is not given back yet: %s", companion, error)
            await self._reply(503, "The database does not answer, so nothing was changed. Try it again in a moment.")
        else:
            self.redirect(url_path_join(self.hub.base_url, "home"), status=303)

    async def _reply(self, status: int, message: str) -> None:
        self.set_status(status)
        self._refused = message
        await self.show()


def idempotency_key(handler: APIHandler) -> str:
    """Return the key of a request, "" without one."""
    key = handler.request.headers.get("Idempotency-Key", "")
    if key and not _KEY.fullmatch(key):
        raise web.HTTPError(400, "An Idempotency-Key is 1 to 100 letters, digits, dots, dashes or underscores.")
    return str(key)


def _body(body: bytes) -> dict[str, object]:
    data = small_json(body, _LARGEST_BODY)
    if not isinstance(data, dict):
        raise web.HTTPError(400, 'Send a JSON object, such as {"nodes": 2, "gpus": 4}.')
    return data


def companion_request(said: dict[str, Any]) -> CompanionRequest:
    """Return the companion that a query or body requests; numbers may be text, and unknown fields are errors."""
    known_fields = (*_NUMBERS, *_TEXTS, "requeue", "stage")
    unknown = sorted(set(said) - set(known_fields))
    if unknown:
        known = ", ".join(known_fields)
        raise web.HTTPError(400, f"Unknown: {', '.join(map(str, unknown))[:100]}. Known: {known}.")
    texts = {field: said[field] for field in _TEXTS if field in said}
    for field, text in texts.items():
        pattern, message = _TEXTS[field]
        if not isinstance(text, str) or not pattern.fullmatch(text):
            raise web.HTTPError(400, message)
    numbers = {field: _number(field, said[field]) for field in _NUMBERS if field in said}
    requeue = said.get("requeue", False)
    if type(requeue) is not bool or (requeue and "run" not in texts):
        raise web.HTTPError(400, "requeue is true or false, and for a batch job.")
    stage = said.get("stage", False)
    if type(stage) is not bool:
        raise web.HTTPError(400, "stage is true or false.")
    texts["name"] = texts.get("name", texts.get("run", "")).strip()
    return CompanionRequest(**{**numbers, **texts, "requeue": requeue, "stage": stage})


def _number(field: str, value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,8}", value):
        value = int(value)
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise web.HTTPError(400, f"{field} is a whole number from 0 up.")
    return value


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [
    (QUOTE, QuoteHandler),
    (COMPANIONS, CompanionsHandler),
    (ONE, CompanionHandler),
    (FORM, GiveBackFormHandler),
]
