"""REST of the console, for programs: ``/hub/api/carme/console/…``, with the scopes and the acts of its pages.

Bodies are small JSON objects; a field that is not known is refused. Times are UTC epoch seconds.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from typing import Any

from jupyterhub.apihandlers.base import APIHandler
from jupyterhub.scopes import needs_scope
from tornado import web

from carme_hub.domain.administration.acts import DONE, NOT_KNOWN
from carme_hub.domain.administration.messages import Kind
from carme_hub.domain.administration.scopes import MESSAGE, OPERATE, READ
from carme_hub.domain.administration.texts import BadAct
from carme_hub.errors import CarmeError, Refused, SlurmError, SlurmRejected, StoreError
from carme_hub.spawners.console import acts
from carme_hub.spawners.console.rows import PAGE, page_of
from carme_hub.spawners.handlers.bodies import small_json
from carme_hub.spawners.handlers.console.base import actor_of, may
from carme_hub.spawners.handlers.console.lists import (
    JOBS,
    NODES,
    SESSIONS,
    all_jobs,
    all_nodes,
    all_sessions,
    wanted_of,
)
from carme_hub.spawners.home.cards import profile_names
from carme_hub.spawners.hub.shared import HubContext, started_hub
from carme_hub.store.threads import in_store_thread

API = "/api/carme/console"
_UUID = "[0-9a-f-]{36}"
_LARGEST_BODY = 16_384
#: Fields of bodies that are times, and those that are true or false; the others are texts.
_NUMBERS, _SWITCHES = ("begins", "ends", "until"), ("mail", "over")
#: UTC epoch seconds that a calendar has.
MOST_EPOCH = 1e11


class ConsoleApi(APIHandler):
    """The base: finds the hub for a caller with the scope, reads the body, and answers errors as JSON."""

    def checked_hub(self, scope: str) -> HubContext:
        """Return the hub's context for a caller with the scope."""
        if self.current_user is None or not may(self, scope):
            raise web.HTTPError(403, f"The scope {scope} is needed.")
        hub = started_hub()
        if hub is None or hub.administration is None:
            raise web.HTTPError(503, "The hub is starting, or has no Slurm.")
        self.set_header("Cache-Control", "no-store")
        return hub

    def body(self, *known: str) -> dict[str, Any]:
        """Return the body: texts "", numbers 0.0 and switches False where they are missing.

        Raises:
            web.HTTPError: it is no such object.
        """
        data = small_json(self.request.body, _LARGEST_BODY)
        if not isinstance(data, dict):
            raise web.HTTPError(400, f"Send a JSON object with some of: {', '.join(known)}.")
        if unknown := sorted(set(data) - set(known)):
            raise web.HTTPError(400, f"Unknown: {', '.join(unknown)[:100]}. Known: {', '.join(known)}.")
        return {name: _value(name, data.get(name)) for name in known}

    async def answered(self, act: Any, status: int = 200) -> None:
        """Send the result of an act, or why it was not done."""
        try:
            result = await act
        except (Refused, SlurmError, StoreError) as error:
            self._refuse(error)
            return
        self.set_status(status)
        self.finish(json.dumps(result))

    def _refuse(self, error: CarmeError) -> None:
        if isinstance(error, Refused):
            status = 400 if isinstance(error, BadAct) else {"unknown": 404}.get(error.reason, 409)
            reason = error.reason
        else:
            status = 409 if isinstance(error, SlurmRejected) else 503
            reason = "slurm-rejected" if isinstance(error, SlurmRejected) else "unreachable"
        self.set_status(status)
        more = {"field": error.field} if isinstance(error, BadAct) and error.field else {}
        self.finish(json.dumps({"error": reason, "message": acts.said(error), **more}))

    def number(self, name: str, default: int) -> int:
        """Return a whole number of the query."""
        value = self.get_query_argument(name, "")
        return int(value) if value.isascii() and value.isdigit() and len(value) < 7 else default


def _value(name: str, value: Any) -> Any:
    if name in _SWITCHES:
        if value is not None and not isinstance(value, bool):
            raise web.HTTPError(400, f"{name} is true or false.")
        return bool(value)
    if name in _NUMBERS:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise web.HTTPError(400, f"{name} is UTC epoch seconds.")
        if not -MOST_EPOCH < (value or 0) < MOST_EPOCH:  # neither is "not a number", which JSON in Python may have
            raise web.HTTPError(400, f"{name} is UTC epoch seconds.")
        return float(value or 0)
    if value is not None and not isinstance(value, str):
        raise web.HTTPError(400, f"{name} is a text.")
    return value or ""


class ListApi(ConsoleApi):
    """Lists of sessions, jobs and nodes, with the query of the console's pages."""

    async def get(self, what: str) -> None:
        """Send a page."""
        hub = self.checked_hub(READ)
        about = {"sessions": SESSIONS, "jobs": JOBS, "nodes": NODES}[what]

        async def listed() -> dict[str, Any]:
            if about is SESSIONS:
                rows: Any = await all_sessions(self, hub)
            else:
                rows = await (all_jobs(hub) if about is JOBS else all_nodes(hub))
            page = await asyncio.to_thread(page_of, rows, wanted_of(self, about))
            found = {"page": page.number, "pages": page.pages, "count": page.count, "every": page.every}
            return {**found, what: [asdict(row) for row in page.rows]}

        await self.answered(listed())


class StopApi(ConsoleApi):
    """Stops a session."""

    async def post(self, id: str) -> None:
        """Stop it; who may not stop servers of its user does not learn whether it exists."""
        hub = self.checked_hub(READ)
        session = hub.registry.current(id)
        await self._stop(hub, id, user_name=session.user if session is not None else self.current_user.name)

    @needs_scope("delete:servers")
    async def _stop(self, hub: HubContext, id: str, user_name: str) -> None:  # noqa: ARG002
        reason = self.body("reason")["reason"]

        async def stop() -> dict[str, Any]:
            session = await acts.stop_session(hub, actor_of(self, "rest"), id, reason)
            return {"session": session.id, "user": session.user}

        await self.answered(stop(), 202)


class NodeApi(ConsoleApi):
    """Drains or resumes a node."""

    async def post(self, node: str, what: str) -> None:
        """Do it."""
        hub = self.checked_hub(OPERATE)
        reason = self.body("reason")["reason"]

        async def change() -> dict[str, Any]:
            await acts.set_drained(hub, actor_of(self, "rest"), node, reason, drained=what == "drain")
            return {"node": node, "drained": what == "drain"}

        await self.answered(change())


class MessagesApi(ConsoleApi):
    """Messages and announcements."""

    async def get(self) -> None:
        """List them, the newest first."""
        hub = self.checked_hub(READ)
        page = max(1, self.number("page", 1))

        async def listed() -> dict[str, Any]:
            store = acts.administration(hub).store
            found, count = await in_store_thread(store.messages, PAGE, (page - 1) * PAGE)
            return {"page": page, "count": count, "messages": [message_json(each) for each in found]}

        await self.answered(listed())

    async def post(self) -> None:
        """Send a message."""
        hub = self.checked_hub(MESSAGE)
        body = self.body("to", "name", "text", "ends", "mail", "reason")
        mail, ends = body.pop("mail"), body.pop("ends")

        async def send() -> dict[str, Any]:
            by = actor_of(self, "rest")
            return message_json(await acts.send_message(hub, self.db, by, **body, ends=ends, mail=mail))

        await self.answered(send(), 201)


class AnnouncementsApi(ConsoleApi):
    """Announcements and maintenance."""

    async def post(self) -> None:
        """Announce something."""
        hub = self.checked_hub(MESSAGE)
        body = self.body("kind", "text", "begins", "ends", "reason")

        async def announce() -> dict[str, Any]:
            name = body["kind"] or Kind.ANNOUNCEMENT.value
            if name not in (Kind.ANNOUNCEMENT.value, Kind.MAINTENANCE.value):
                raise BadAct("kind is announcement or maintenance.", "kind")
            values = (Kind(name), body["text"], body["reason"], body["begins"], body["ends"])
            return message_json(await acts.administration(hub).announce(actor_of(self, "rest"), *values))

        await self.answered(announce(), 201)


class WithdrawApi(ConsoleApi):
    """Takes back a message or an announcement."""

    async def post(self, id: str) -> None:
        """Take it back."""
        hub = self.checked_hub(MESSAGE)
        reason = self.body("reason")["reason"]

        async def withdraw() -> dict[str, Any]:
            return message_json(await acts.administration(hub).withdraw(actor_of(self, "rest"), id, reason))

        await self.answered(withdraw())


def message_json(one: Any) -> dict[str, Any]:
    """Return a message for programs."""
    return {**asdict(one), "kind": one.kind.value}


class StartStopsApi(ConsoleApi):
    """Rules that stop new starts."""

    async def get(self) -> None:
        """List those in force, the oldest first."""
        hub = self.checked_hub(READ)
        self.finish(json.dumps({"start_stops": [asdict(rule) for rule in acts.administration(hub).stops()]}))

    async def post(self) -> None:
        """Stop new starts."""
        hub = self.checked_hub(OPERATE)
        body = self.body("profile", "partition", "until", "reason")

        async def stop() -> dict[str, Any]:
            spawner = getattr(self.current_user, "spawner", None)  # a service has none
            names = profile_names(spawner) if spawner is not None else ()
            return asdict(await acts.stop_starts(hub, actor_of(self, "rest"), **body, profiles=names))

        await self.answered(stop(), 201)


class AllowStartsApi(ConsoleApi):
    """Lifts a rule."""

    async def post(self, id: str) -> None:
        """Allow starts again."""
        hub = self.checked_hub(OPERATE)
        reason = self.body("reason")["reason"]

        async def allow() -> dict[str, Any]:
            return asdict(await acts.administration(hub).allow_starts(actor_of(self, "rest"), id, reason))

        await self.answered(allow())


class ActsApi(ConsoleApi):
    """What administrators have done."""

    async def get(self) -> None:
        """List acts, the newest first."""
        hub = self.checked_hub(READ)
        page = max(1, self.number("page", 1))
        asked = [self.get_query_argument(name, "")[:255] for name in ("action", "actor")]

        async def listed() -> dict[str, Any]:
            found, count = await in_store_thread(acts.administration(hub).store.acts, PAGE, (page - 1) * PAGE, *asked)
            return {"at": int(time.time()), "page": page, "count": count, "acts": [_act_json(each) for each in found]}

        await self.answered(listed())


def _act_json(one: Any) -> dict[str, Any]:
    outcome = {DONE: DONE, NOT_KNOWN: "not known"}.get(one.outcome, one.outcome)
    values = {name: getattr(one, name) for name in ("id", "at", "action", "target", "reason")}
    more = {"actor": one.actor.name, "door": one.actor.interface, "outcome": outcome, "details": dict(one.details)}
    return {**values, **more}


HANDLERS: list[tuple[str, Any]] = [
    (f"{API}/(sessions|jobs|nodes)", ListApi),
    (f"{API}/sessions/({_UUID})/stop", StopApi),
    (f"{API}/nodes/([^/]+)/(drain|resume)", NodeApi),
    (f"{API}/messages", MessagesApi),
    (f"{API}/announcements", AnnouncementsApi),
    (f"{API}/messages/({_UUID})/withdraw", WithdrawApi),
    (f"{API}/start-stops", StartStopsApi),
    (f"{API}/start-stops/({_UUID})/allow", AllowStartsApi),
    (f"{API}/acts", ActsApi),
]
