"""Messages to users, and announcements, maintenance and incidents to everybody. Pure.

A message has recipients, each of whom sees it until they have said so; an announcement is shown to all while its time
lasts, and a maintenance from when it is announced until it is over. An incident is shown until an administrator says
that it is over, and has updates meanwhile. All end by themselves, an incident after the longest time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from .texts import BadAct

#: Seconds for which a message is kept for those who have not seen it: as a rule, and at most; for an announcement too.
USUAL_SECONDS, MOST_SECONDS = 7 * 86_400, 90 * 86_400


class Kind(Enum):
    """What is shown to whom."""

    MESSAGE = "message"
    ANNOUNCEMENT = "announcement"
    MAINTENANCE = "maintenance"
    INCIDENT = "incident"


class Audience(Enum):
    """To whom a message is."""

    USER = "user"
    NODE = "node"
    GROUP = "group"
    IMAGE = "image"
    EVERYBODY = "everybody"


@dataclass(frozen=True, slots=True)
class Message:
    """One message, announcement or maintenance. Times are UTC epoch seconds.

    Attributes:
        target: for whom, as words: "user alice", "node n1", "group course", "image base", "everybody".
        begins, ends: of an announcement, when it is shown; of a maintenance, when that is.
        mail: whether it is mailed too. withdrawn: when it was taken back, 0 = it was not.
        recipients, seen: how many users a message is for, and how many of them have seen it.
    """

    id: str
    kind: Kind
    at: float
    actor: str
    target: str
    text: str
    begins: float
    ends: float
    mail: bool = False
    withdrawn: float = 0.0
    recipients: int = 0
    seen: int = 0

    def is_shown(self, now: float) -> bool:
        """Return whether it is shown to those whom it concerns."""
        begun = self.kind is Kind.MAINTENANCE or self.begins <= now
        return not self.withdrawn and begun and now < self.ends

    def can_be_withdrawn(self, now: float) -> bool:
        """Return whether somebody may still be spared it."""
        some_left = self.kind is not Kind.MESSAGE or self.seen < self.recipients
        return not self.withdrawn and now < self.ends and some_left


@dataclass(frozen=True, slots=True)
class Update:
    """What was added to an incident. ``at``: UTC epoch seconds."""

    at: float
    actor: str
    text: str


@dataclass(frozen=True, slots=True)
class Incident:
    """An incident with its updates, the oldest first. ``message.ends`` is when it was over, or far away."""

    message: Message
    updates: Sequence[Update] = ()


def check_period(begins: float, ends: float, now: float) -> None:
    """Raise ``BadAct`` for a period that is over, empty, or too far away; nothing could show such a time."""
    if not math.isfinite(begins) or not math.isfinite(ends):
        raise BadAct("A time is UTC epoch seconds.", "begins" if math.isfinite(ends) else "ends")
    if begins and begins < now - MOST_SECONDS:
        raise BadAct(f"Its beginning is more than {MOST_SECONDS // 86_400} days ago.", "begins")
    if ends <= now:
        raise BadAct("Its end is in the past.", "ends")
    if ends <= begins:
        raise BadAct("Its end is before its beginning.", "ends")
    if ends > now + MOST_SECONDS:
        raise BadAct(f"Its end is more than {MOST_SECONDS // 86_400} days away.", "ends")
