"""What the nodes report of sessions' copies; REST and the page for results that are still on a node.

``POST /hub/api/carme/sessions/<uuid>/stage``: a node reports how far it is, with the session's stage nonce; the answer
is what the user wants done. It comes also long after the end of the session, until the results are at their targets.
``GET /hub/api/carme/users/<name>/staging`` lists, ``POST …/<uuid>`` decides: {"do": "retry" | "discard", "out": […]}.
``/hub/carme/data``: the page; a GET shows or asks, a POST does.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

from jupyterhub.handlers.base import BaseHandler
from jupyterhub.utils import url_path_join
from tornado import web

from carme_hub import metrics
from carme_hub.domain.staging.entries import RUN, STAGE_OUT, flat_options, lines
from carme_hub.domain.staging.progress import StageState, size_text, why
from carme_hub.errors import Refused, StoreError
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.handlers.batch_jobs import UserHandler
from carme_hub.spawners.handlers.bodies import small_json
from carme_hub.spawners.handlers.callback import NonceHandler
from carme_hub.spawners.hub.shared import HubContext, started_hub
from carme_hub.spawners.staging.reports import ReportRefused, answer, as_json, silence
from carme_hub.store.staging import Staging

_UUID = "[0-9a-f-]{36}"
REPORT = rf"/api/carme/sessions/({_UUID})/stage"
LIST = r"/api/carme/users/([^/]+)/staging"
ONE = rf"{LIST}/({_UUID})"
PAGE, DECIDE = r"/carme/data", rf"/carme/data/({_UUID})/(retry|discard)"
_LARGEST_REPORT, _LARGEST_BODY = 64 << 10, 64 << 10
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
#: Seconds between two sentences on the page of a start; part of a start's progress, in percent, that is copying.
SAY_EVERY, FIRST, LAST = 3.0, 50, 75
_NOT_KNOWN = "The database does not answer. Try it again in a moment."


class ReportHandler(NonceHandler):
    """Accepts reports from nodes."""

    async def post(self, id: str) -> None:
        """Store the report, show it on the page of the start, and answer with the user's decision."""
        hub, nonce = self.shared_and_nonce()
        body = small_json(self.request.body, _LARGEST_REPORT)
        named = body.get("node") if isinstance(body, dict) else ""
        node = named if isinstance(named, str) and _NODE.fullmatch(named) else ""
        try:
            staging = await hub.stagings.report(id, nonce, body, node)
            await show_progress(hub, staging)
        except ReportRefused as error:
            metrics.CALLBACKS_REFUSED.inc()
            raise web.HTTPError(403, error.message) from error
        except ValueError as error:
            raise web.HTTPError(400, f"The report is not understood: {error}.") from error
        except StoreError as error:
            raise web.HTTPError(503, "The hub cannot write this now; try again.") from error
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(answer(staging, node)))


async def show_progress(hub: HubContext, staging: Staging) -> None:
    """Show how far the copy is on the page of the session's start."""
    spawner, report = hub.spawner(staging.session), staging.report
    progress = getattr(spawner, "_progress", None)
    if progress is None or report is None or report.way != "in":
        return
    now = time.monotonic()
    if report.state is StageState.MOVING and now - getattr(progress, "staging_said", 0.0) < SAY_EVERY:
        return
    progress.staging_said = now
    part = report.bytes / report.total if report.total else 0.0
    progress.say(round(FIRST + (LAST - FIRST) * min(1.0, part)), await hub.stagings.sentence_of(staging))


async def sentences(hub: HubContext, user: str) -> list[tuple[Staging, str]]:
    """Return the copies of a user, the newest first, each with a sentence."""
    found, now = await hub.stagings.of(user), time.time()
    over = [each.session for each in found if hub.registry.current(each.session) is None]
    ended = {each.id: each.ended for each in await hub.registry.ended(over) if each.started}
    return [(e, silence(e, ended.get(e.session, 0.0), now) or await hub.stagings.sentence_of(e)) for e in found]


class StagingsHandler(UserHandler):
    """Lists what a user's sessions copied."""

    async def get(self, name: str) -> None:
        """List them, the newest first."""
        await self._authorize(name)

    async def _answer(self, hub: HubContext, user: Any, *_more: str) -> None:
        said = await sentences(hub, user.name)
        self.finish(json.dumps({"staging": [as_json(each, words) for each, words in said]}))


class StagingHandler(UserHandler):
    """Takes a decision about results that are still on a node."""

    async def post(self, name: str, id: str) -> None:
        """Store it; the node asks for it when it tries again, within minutes."""
        await self._authorize(name, id)

    async def _answer(self, hub: HubContext, user: Any, *more: str) -> None:
        body = small_json(self.request.body, _LARGEST_BODY)
        if not isinstance(body, dict) or not {"do"} <= set(body) <= {"do", "out"}:
            raise web.HTTPError(400, 'The body is {"do": "retry" or "discard", "out": [{"source", "target"}]}.')
        out = str(flat_options({"out": body["out"]}).get(STAGE_OUT, "")) if body.get("out") else ""
        staging = await hub.stagings.decide(user.name, more[0], str(body["do"]), out)
        self.finish(json.dumps(as_json(staging)))


class DataPageHandler(BaseHandler):
    """The page of data on nodes."""

    @web.authenticated
    async def get(self) -> None:
        """Show the visitor's own."""
        await self.show()

    async def show(self, refused: str = "", asked: str = "") -> None:
        """Show the page.

        Args:
            refused: why nothing was done. asked: the session whose results are to be removed, to be confirmed.
        """
        rows: list[dict[str, Any]] = []
        try:
            found = await sentences(self.context(), self.current_user.name)
            rows = [shown(each, said, time.time()) for each, said in found]
        except StoreError as error:
            self.log.warning("The page of data of %s: %s", self.current_user.name, error)
            refused = refused or _NOT_KNOWN
        kept = [each for each in rows if each["kept"]]
        others = [each for each in rows if not each["kept"]]
        page = await self.render_template("carme_data.html", kept=kept, others=others, refused=refused, asked=asked)
        self.set_header("Cache-Control", "no-store")
        self.finish(page)

    def context(self) -> HubContext:
        """Return the context of the hub."""
        hub = started_hub()
        if hub is None:
            raise StoreError("The hub is starting")
        return hub


class DecideHandler(DataPageHandler):
    """The forms of the page."""

    @web.authenticated
    async def get(self, id: str, do: str) -> None:
        """Ask before results are removed; nothing is changed."""
        await self.show(asked=id if do == "discard" else "")

    @web.authenticated
    async def post(self, id: str, do: str) -> None:
        """Store the decision, and show the page."""
        try:
            await self.context().stagings.decide(
                self.current_user.name, id, do, self.get_body_argument("out", "")[:16384]
            )
        except Refused as error:
            self.set_status(409)
            await self.show(refused=error.message)
        except StoreError as error:
            self.log.warning("The decision on session %s is not stored: %s", id, error)
            self.set_status(503)
            await self.show(refused=_NOT_KNOWN)
        else:
            self.redirect(url_path_join(self.hub.base_url, "carme", "data"), status=303)


def shown(one: Staging, said: str, now: float) -> dict[str, Any]:
    """Return a row of the page."""
    report, decision = one.report, one.decision
    kept = one.state is StageState.KEPT
    decided = ""
    if kept and decision.get("do") == "discard":
        decided = "You have decided to remove them; the node does it at its next try, within minutes."
    elif kept and decision.get("do") == "retry":
        decided = "The node tries again within minutes."
    return {
        "session": one.session,
        "kept": kept,
        "state": one.state.value,
        "node": one.where,
        "run": one.stage.get(RUN, ""),
        "since": clock(one.created, now),
        "at": clock(one.at, now) if one.at else "",
        "said": why(report) if kept and report is not None else said,
        "size": size_text(max(report.total, report.bytes)) if report is not None else "",
        "out": lines(decision.get("out") or one.stage.get("out", [])),
        "into": lines(one.stage.get("in", [])),
        "errors": list(report.errors) if report is not None else [],
        "decided": decided,
    }


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [
    (REPORT, ReportHandler),
    (LIST, StagingsHandler),
    (ONE, StagingHandler),
    (PAGE, DataPageHandler),
    (DECIDE, DecideHandler),
]
