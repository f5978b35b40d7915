"""What a user reads of administrators: messages, announcements and maintenance; on pages, and in sessions.

Maintenance in the calendar is announced by itself, from a week before it begins, with its nodes and times alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from carme_hub.booking.messages import listed
from carme_hub.domain.administration.messages import Kind as MessageKind
from carme_hub.domain.administration.messages import Message
from carme_hub.domain.calendar.reservations import PROMISED, Kind, Reservation
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.hub.shared import HubContext
from carme_hub.spawners.maintenance.affected_sessions import notice_period

_KINDS = {"warning": "maintenance", "info": "announcement", "danger": "incident"}


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
    """Return what is announced to everybody, and maintenance in the calendar."""
    if hub is None or hub.administration is None:
        return []
    written = [Shown(each.id, *_announced(each, now), each.text, False) for each in hub.administration.announcements()]
    return [*written, *(_of_calendar(each, now) for each in _windows(hub, now))]


def _windows(hub: HubContext, now: float) -> list[Reservation]:
    """Return the maintenance windows of the calendar, as it was last read, that are on or begin soon."""
    known = hub.slots.latest.known if hub.slots is not None else ()
    found = [each for each in known if each.kind is Kind.MAINTENANCE and each.state in PROMISED]
    return sorted(
        (each for each in found if each.period.overlaps(notice_period(now))), key=lambda each: each.period.start
    )


def _of_calendar(one: Reservation, now: float) -> Shown:
    when = f"{clock(one.period.start, now)} to {clock(one.period.end, now)}"
    heading = f"Maintenance of {listed(sorted(one.nodes))}, {when}"
    return Shown(one.id, "warning", heading, "Jobs that would still run there then do not start there.", False)


def _announced(one: Message, now: float) -> tuple[str, str]:
    if one.kind is MessageKind.MAINTENANCE:
        return "warning", f"Maintenance {clock(one.begins, now)} to {clock(one.ends, now)}"
    if one.kind is MessageKind.INCIDENT:
        return "danger", f"Incident since {clock(one.begins, now)}"
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
        {"id": each.id, "kind": _KINDS[each.level], "heading": each.heading, "text": each.text}
        for each in announced(hub, now)
    ]
    return {"messages": own, "announcements": every}
