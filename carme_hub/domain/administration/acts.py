"""One act of an administrator: who did what to what, why, and what came of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: What came of an act: it was done, or it is not known (the hub ended before it knew). Other texts say why it was not.
DONE, NOT_KNOWN = "done", ""

#: Names of acts, in the audit log and in REST.
STOP_SESSION, MESSAGE, ANNOUNCE, WITHDRAW = "stop-session", "message", "announce", "withdraw"
DRAIN, RESUME, STOP_STARTS, ALLOW_STARTS = "drain-node", "resume-node", "stop-starts", "allow-starts"
#: What a rolling update did on a node beside draining and resuming it: the site's command, and the health check.
UPDATE_NODE = "update-node"
UPDATE_INCIDENT, END_INCIDENT = "update-incident", "end-incident"
#: Keep a user out of the hub, let the user in again; and a step of `carme-hub users offboard`.
LOCK_USER, UNLOCK_USER, OFFBOARD_USER = "lock-user", "unlock-user", "offboard-user"
ACTIONS = (
    *(STOP_SESSION, MESSAGE, ANNOUNCE, WITHDRAW, UPDATE_INCIDENT, END_INCIDENT),
    *(DRAIN, RESUME, UPDATE_NODE, STOP_STARTS, ALLOW_STARTS, LOCK_USER, UNLOCK_USER, OFFBOARD_USER),
)


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: a user's name in the hub or ``service:NAME``, and through what: "page" or "rest"."""

    name: str
    interface: str


@dataclass(frozen=True, slots=True)
class Act:
    """One act. ``at``: UTC epoch seconds. ``target``: to what. ``outcome``: ``DONE``, ``NOT_KNOWN``, or why not."""

    at: float
    actor: Actor
    action: str
    target: str
    reason: str
    details: Mapping[str, str] = field(default_factory=dict)
    outcome: str = NOT_KNOWN
    id: int = 0
