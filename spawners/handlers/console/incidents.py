"""Incidents: administrators report one, add to it, and say that it is over; the status page shows it to users.

REST: ``GET`` and ``POST /hub/api/carme/console/incidents``; ``POST …/incidents/<id>/updates`` with ``text``, ``over``.
"""

from __future__ import annotations

import json
import time
from typing import Any

from carme_hub.domain.administration.messages import MOST_SECONDS, Incident, Kind, Message
from carme_hub.domain.administration.scopes import MESSAGE, READ
from carme_hub.domain.administration.texts import MOST_REASON, MOST_TEXT
from carme_hub.spawners.console import acts
from carme_hub.spawners.handlers.console.act_forms import ActHandler, Said
from carme_hub.spawners.handlers.console.base import ROOT, actor_of
from carme_hub.spawners.handlers.console.forms import Field
from carme_hub.spawners.handlers.console.rest import _UUID, API, ConsoleApi, message_json
from carme_hub.spawners.hub.shared import HubContext

_PUBLIC = "Text only. Users read it, and on some sites everybody: name nobody, and no address."


async def report(hub: HubContext, handler: Any, interface: str, text: str) -> Message:
    """Report an incident; its text is the reason in the audit log, too."""
    reason = " ".join(text.split())[:MOST_REASON]
    by, ends = actor_of(handler, interface), time.time() + MOST_SECONDS
    return await acts.administration(hub).announce(by, Kind.INCIDENT, text, reason, 0.0, ends)


class IncidentHandler(ActHandler):
    """Reports an incident."""

    scope, tab, title, button, style = MESSAGE, "/messages", "Report an incident", "Report it", "danger"

    def fields(self, hub: HubContext) -> list[Field]:  # noqa: ARG002
        """Return the fields."""
        return [Field("text", "What does not work, and for whom", "textarea", _PUBLIC, required=True, most=MOST_TEXT)]

    async def points(self, hub: HubContext) -> tuple[list[str], bool]:  # noqa: ARG002
        """Say where it appears."""
        return [
            "It appears on everybody's page, in JupyterLab and on the status page until you say that it is over."
        ], True

    async def do(self, hub: HubContext, values: dict[str, str]) -> Said:
        """Report it."""
        await report(hub, self, "page", values["text"])
        return [("success", "The incident is reported. Add to it, or end it, in the list of messages.")]


class UpdateHandler(ActHandler):
    """Adds to an incident, or ends it."""

    scope, tab, title, button = MESSAGE, "/messages", "Add to an incident", "Add it"
    kept = ("id",)

    def fields(self, hub: HubContext) -> list[Field]:  # noqa: ARG002
        """Return the fields."""
        return [
            Field("text", "What is known now", "textarea", _PUBLIC, required=True, most=MOST_TEXT),
            Field("over", "It is over", "check"),
        ]

    async def points(self, hub: HubContext) -> tuple[list[str], bool]:
        """Return the incident."""
        found = await acts.administration(hub).message(self.one("id"))
        if found is None or found.kind is not Kind.INCIDENT or not found.is_shown(time.time()):
            return ["There is no such incident, or it is over already."], False
        return [found.text], True

    async def do(self, hub: HubContext, values: dict[str, str]) -> Said:
        """Add it."""
        over = bool(values["over"])
        ours = acts.administration(hub)
        await ours.update_incident(actor_of(self, "page"), self.one("id"), values["text"], over=over)
        return [("success", "The incident is over." if over else "It is added.")]


class IncidentsApi(ConsoleApi):
    """Incidents of the last 30 days."""

    async def get(self) -> None:
        """List them, the newest first."""
        hub = self.checked_hub(READ)

        async def listed() -> dict[str, Any]:
            found = await acts.administration(hub).incidents()
            return {"incidents": [incident_json(each) for each in found]}

        await self.answered(listed())

    async def post(self) -> None:
        """Report one."""
        hub = self.checked_hub(MESSAGE)
        text = self.body("text")["text"]

        async def reported() -> dict[str, Any]:
            return message_json(await report(hub, self, "rest", text))

        await self.answered(reported(), 201)


class UpdatesApi(ConsoleApi):
    """Updates of an incident."""

    async def post(self, id: str) -> None:
        """Add one, or end the incident with it."""
        hub = self.checked_hub(MESSAGE)
        body = self.body("text", "over")

        async def added() -> dict[str, Any]:
            by, ours = actor_of(self, "rest"), acts.administration(hub)
            return message_json(await ours.update_incident(by, id, body["text"], over=body["over"]))

        await self.answered(added(), 201)


def incident_json(one: Incident) -> dict[str, Any]:
    """Return an incident for programs."""
    updates = [{"at": each.at, "actor": each.actor, "text": each.text} for each in one.updates]
    return {**json.loads(json.dumps(message_json(one.message))), "updates": updates}


HANDLERS: list[tuple[str, Any]] = [
    (f"{ROOT}/incident", IncidentHandler),
    (f"{ROOT}/incident-update", UpdateHandler),
    (f"{API}/incidents", IncidentsApi),
    (f"{API}/incidents/({_UUID})/updates", UpdatesApi),
]
