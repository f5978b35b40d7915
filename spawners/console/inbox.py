"""What a user reads of administrators: messages, announcements and maintenance; on pages, and in sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from carme_hub.domain.administration.messages import Kind, Message
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.hub.shared import HubContext


@dataclass(frozen=True, slots=True)
class Shown:
    """One of them for a page. ``level``: Bootstrap's name of a colour; ``heading``: what it is, and when."""

    id: str
    level: str
    heading: str
    text: str
    seen: bool


def shown_messages(hub: HubContext, user: str, now: float) -> list[Shown]:
    """Return what a page shows a user: announcements first, the newest message last."""
    if hub.administration is None:
        return []
    own = [
        Shown(each.id, "info", f"Message from {each.actor}, {clock(each.at, now)}", each.text, True)
        for each in hub.administration.messages_of(user)
    ]
    return [*announced(hub, now), *own]


def announced(hub: HubContext | None, now: float) -> list[Shown]:
    """Return what is announced to everybody."""
    if hub is None or hub.administration is None:
        return []
    return [Shown(each.id, *_announced(each, now), each.text, False) for each in _announcements(hub)]


def _announcements(hub: HubContext) -> list[Message]:
    return hub.administration.announcements() if hub.administration is not None else []


def _announced(one: Message, now: float) -> tuple[str, str]:
    if one.kind is Kind.MAINTENANCE:
        return "warning", f"Maintenance {clock(one.begins, now)} to {clock(one.ends, now)}"
    return "info", "Announcement"


def for_session(hub: HubContext, user: str, now: float) -> dict[str, Any]:
    """Return what a session's programs read of its user's messages, and of announcements."""
    if hub.administration is None:
        return {"messages": [], "announcements": []}
    own = [
        {"id": each.id, "from": each.actor, "at": int(each.at), "text": each.text}
        for each in hub.administration.messages_of(user)
    ]
    every = [
        {"id": each.id, "kind": each.kind.value, "heading": _announced(each, now)[1], "text": each.text}
        for each in _announcements(hub)
    ]
    return {"messages": own, "announcements": every}
