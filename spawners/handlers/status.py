"""The status page for users: what works now, and the incidents of the last 30 days. ``/hub/carme/status``.

With ``CarmeStatus.public`` it needs no login. It names no user, session, node or author; ``/hub/api/carme/status`` has
the same for programs.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from typing import Any

from jupyterhub.apihandlers.base import APIHandler
from jupyterhub.handlers.base import BaseHandler
from tornado import web
from tornado.httputil import url_concat

from carme_hub.administration.settings import CarmeStatus
from carme_hub.domain.administration.messages import Incident
from carme_hub.errors import StoreError
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.hub.monitoring.readiness import SETTING, TIMEOUT
from carme_hub.spawners.hub.monitoring.status import SERVICES, status_of
from carme_hub.spawners.hub.shared import started_hub

STATUS, API = r"/carme/status", r"/api/carme/status"
NAMES = {
    "hub": "The hub and its pages",
    "starts": "New starts",
    "slurm": "Slurm, the cluster's scheduler",
    "calendar": "The GPU calendar",
    "accounting": "Accounting of GPU time",
}


def _may_see(handler: Any) -> bool:
    return handler.current_user is not None or CarmeStatus(config=handler.config).public


async def _incidents(handler: Any) -> list[Incident] | None:
    """Return the incidents, None while the database does not answer."""
    hub = started_hub()
    if hub is None or hub.administration is None:
        return []
    try:
        async with asyncio.timeout(TIMEOUT):
            return await hub.administration.incidents()
    except StoreError as error:
        handler.log.warning("The incidents cannot be read: %s", error)
    except TimeoutError:
        handler.log.warning("The incidents cannot be read: the database does not answer")
    return None


class StatusHandler(BaseHandler):
    """The page."""

    async def get(self) -> None:
        """Show what works."""
        if not _may_see(self):
            self.redirect(url_concat(self.settings["login_url"], {"next": self.request.uri}))
            return
        parts = await status_of(started_hub(), self.settings[SETTING], self.settings[SERVICES])
        found, now = await _incidents(self), time.time()
        self.set_header("Cache-Control", "no-store")
        html = await self.render_template(
            "carme_status.html",
            parts=[{"name": NAMES[part.name], "problem": part.problem} for part in parts],
            at=clock(now, now),
            zone=time.strftime("%Z", time.localtime(now)),
            known=found is not None,
            open=[_words(each, now) for each in found or () if each.message.is_shown(now)],
            past=[_words(each, now) for each in found or () if not each.message.is_shown(now)],
        )
        self.finish(html)


def _words(one: Incident, now: float) -> dict[str, Any]:
    over = "" if one.message.is_shown(now) else clock(one.message.ends, now)
    updates = [{"when": clock(each.at, now), "text": each.text} for each in one.updates]
    return {"began": clock(one.message.begins, now), "over": over, "text": one.message.text, "updates": updates}


class StatusApi(APIHandler):
    """The same for programs."""

    async def get(self) -> None:
        """Send it."""
        if not _may_see(self):
            raise web.HTTPError(403)
        parts = await status_of(started_hub(), self.settings[SETTING], self.settings[SERVICES])
        found, now = await _incidents(self), time.time()
        self.set_header("Cache-Control", "no-store")
        answer = {
            "parts": [asdict(part) for part in parts],
            "incidents": None if found is None else [_as_json(each, now) for each in found],
        }
        self.finish(json.dumps(answer))


def _as_json(one: Incident, now: float) -> dict[str, Any]:
    return {
        "id": one.message.id,
        "began": one.message.begins,
        "over": None if one.message.is_shown(now) else one.message.ends,
        "text": one.message.text,
        "updates": [{"at": each.at, "text": each.text} for each in one.updates],
    }


HANDLERS: list[tuple[str, Any]] = [(STATUS, StatusHandler), (API, StatusApi)]
