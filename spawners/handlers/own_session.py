"""What a session's own programs ask of it: its time, its GPU time, whether it is idle; and the click that says "here".

``GET /hub/api/carme/sessions/<uuid>`` and ``POST …/still-here`` are for the session's own programs and for whoever may
start servers for its user. The home page has a form for the click.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

from jupyterhub.scopes import needs_scope
from jupyterhub.utils import url_path_join
from tornado import web

from carme_hub.activity.idle_watch import IdleSession, NotIdle
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import Refused, StoreError
from carme_hub.spawners.console.inbox import for_session
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.handlers.companions import SessionHandler
from carme_hub.spawners.handlers.home.page import CarmeHomeHandler
from carme_hub.spawners.home.budgets import Budgets
from carme_hub.spawners.home.cards import job_of, more_time, spent_sentence
from carme_hub.spawners.hub.shared import HubContext, started_hub
from carme_hub.spawners.staging.reports import as_json

_UUID = "[0-9a-f-]{36}"
STATE = rf"/api/carme/sessions/({_UUID})"
STILL_HERE = rf"/api/carme/sessions/({_UUID})/still-here"
FORM = rf"/carme/sessions/({_UUID})/still-here"
_NOT_KNOWN = "The database does not answer, so nothing was changed. Try it again in a moment."


def idle_json(found: IdleSession | None) -> dict[str, Any]:
    """Return what programs read of a session; ``state`` is "off" where no rule is in force."""
    if found is None:
        return {"state": "off"}
    state, rule = found.state, found.rule
    return {
        "state": state.state,
        "since": int(state.since),
        "deadline": int(state.deadline),
        "because": state.because,
        "action": rule.action.value,
        "after": rule.after,
        "clicks_left": found.clicks_left,
    }


class StateHandler(SessionHandler):
    """Answers what is left of a session: its time, its GPU time, and whether it is idle."""

    async def get(self, id: str) -> None:
        """Send the state; nothing is changed."""
        await self._authorize(id)

    async def _answer(self, hub: HubContext, spawner: Any, session: Session, *_more: str) -> None:
        budgets: Budgets = self.settings.setdefault("carme_budgets", Budgets())
        left = await budgets.left(hub, spawner.user, session.request.account)
        found = await hub.stagings.get(session.id) if session.request.stage else None
        staging = as_json(found, await hub.stagings.sentence_of(found)) if found is not None else None
        self.finish(json.dumps({**state_json(hub, spawner, session, time.time(), left), "staging": staging}))


def state_json(hub: HubContext, spawner: Any, session: Session, now: float, left: str = "") -> dict[str, Any]:
    """Return what programs read of a session. ``ends`` is 0 where it is not known; times are UTC epoch seconds.

    Args:
        left: what its user has left of its account, as a text; "" where it is not known.
    """
    virtual = bool(getattr(spawner, "virtual", False))
    job = job_of(hub, session)
    ends = job.start + 60 * job.time_limit if job is not None and job.start and job.time_limit else 0.0
    return {
        "session": session.id,
        "now": int(now),
        "ends": int(ends),
        "said": clock(ends, now) if ends else "",
        "spent": spent_sentence(hub, session, job, now, virtual=virtual),
        "account": session.request.account,
        "left": left,
        "more": [asdict(each) for each in more_time(hub, session, virtual=virtual)],
        "gpus": session.request.gpus.count,
        "virtual": virtual,
        "idle": idle_json(hub.idle.states.get(session.id) if hub.idle is not None else None),
        **for_session(hub, session.user, now),
    }


class StillHereHandler(SessionHandler):
    """Accepts the click."""

    async def post(self, id: str) -> None:
        """Begin the idle time anew, and send the state."""
        await self._authorize(id)

    async def _answer(self, hub: HubContext, spawner: Any, session: Session, *_more: str) -> None:  # noqa: ARG002
        if self.request.body.strip() not in (b"", b"{}"):
            raise web.HTTPError(400, "Send no body.")
        if hub.idle is None:
            raise NotIdle("This hub ends no idle sessions.")
        await hub.idle.still_here(session.id)
        self.finish(json.dumps(idle_json(hub.idle.states.get(session.id))))


class StillHereFormHandler(CarmeHomeHandler):
    """The button of the home page."""

    async def get(self, *_asked: str) -> None:
        """Redirect to the home page: a GET changes nothing."""
        self.redirect(url_path_join(self.hub.base_url, "home"))

    @web.authenticated
    async def post(self, id: str) -> None:
        """Begin the idle time anew, and redirect to the page."""
        hub = started_hub()
        session = hub.registry.current(id) if hub is not None else None
        await self._post(hub, session, user_name=session.user if session else self.current_user.name)

    @needs_scope("start:servers")
    async def _post(self, hub: HubContext | None, session: Session | None, user_name: str) -> None:  # noqa: ARG002
        try:
            if hub is None or session is None or hub.idle is None:
                raise NotIdle("There is no such session, or it has ended already.")
            await hub.idle.still_here(session.id)
        except Refused as error:
            await self._reply(409, error.message)
        except StoreError as error:
            self.log.warning("The click for session %s is not stored: %s", session.id if session else "", error)
            await self._reply(503, _NOT_KNOWN)
        else:
            self.redirect(url_path_join(self.hub.base_url, "home"), status=303)

    async def _reply(self, status: int, message: str) -> None:
        self.set_status(status)
        self._refused = message
        await self.show()


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [
    (STATE, StateHandler),
    (STILL_HERE, StillHereHandler),
    (FORM, StillHereFormHandler),
]
