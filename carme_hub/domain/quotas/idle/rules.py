"""Rules on idle sessions: which sessions they are for, and what happens to them. Pure.

``domain.activity.idle`` decides by them. The first rule that fits a session counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time
from enum import Enum
from zoneinfo import ZoneInfo

from carme_hub.domain.quotas.rules import SubjectKind


class Action(Enum):
    """What happens to a session whose idle time is over."""

    STOP = "stop"
    RELEASE_GPUS = "release_gpus"
    TELL = "tell"  # nothing is taken; its user is told
    NONE = "none"  # the rule is an exemption


@dataclass(frozen=True, slots=True)
class IdleRule:
    """One rule on idle sessions. The first rule that fits a session counts.

    Attributes:
        profile: slug of the profile; "" = any. who, name: whose sessions; None = everybody's.
        after: seconds without activity. warn: seconds before the end at which its user is warned, the longest first.
        gpu_below, cpu_below: percent of a GPU, and of one CPU, below which they count as idle.
        still_here: how often its user may say so in one session.
        begin, end: time of day, in the policy's zone, in which the rule is in force; equal = always.
        without_gpus: whether it is also for sessions that have none.
        in_booking: whether it is for sessions in a booking, and for no others.
        restart_profile: slug of the profile with which a session whose GPUs were released is started again; "" = the
            user chooses.
    """

    action: Action
    after: int = 3600
    warn: tuple[int, ...] = (1200, 300)
    profile: str = ""
    who: SubjectKind | None = None
    name: str = ""
    gpu_below: float = 5.0
    cpu_below: float = 10.0
    still_here: int = 3
    begin: time = time()
    end: time = time()
    without_gpus: bool = False
    in_booking: bool = False
    restart_profile: str = ""

    def in_force(self, now: float, zone: str) -> bool:
        """Return whether the rule is in force at a moment."""
        if self.begin == self.end:
            return True
        local = datetime.fromtimestamp(now, ZoneInfo(zone)).time()
        if self.begin < self.end:
            return self.begin <= local < self.end
        return local >= self.begin or local < self.end


@dataclass(frozen=True, slots=True)
class Subject:
    """A session: its user with groups and roles, its account, the slug of its profile, whether it has GPUs.

    ``booked``: whether it is in a booking, which has paid for the GPUs.
    """

    user: str
    account: str
    groups: frozenset[str]
    roles: frozenset[str]
    profile: str
    has_gpus: bool
    booked: bool = False

    def fits(self, rule: IdleRule) -> bool:
        """Return whether a rule is for this session."""
        if rule.profile and rule.profile != self.profile:
            return False
        if (not self.has_gpus and not rule.without_gpus) or self.booked != rule.in_booking:
            return False
        if rule.who is None:
            return True
        names = {
            SubjectKind.USER: {self.user},
            SubjectKind.ACCOUNT: {self.account},
            SubjectKind.GROUP: self.groups,
            SubjectKind.ROLE: self.roles,
        }[rule.who]
        return rule.name == "*" or rule.name in names


def first_rule(rules: Sequence[IdleRule], subject: Subject, now: float, zone: str) -> IdleRule | None:
    """Return the rule that is for a session, which may be an exemption; None if none is."""
    return next((rule for rule in rules if rule.in_force(now, zone) and subject.fits(rule)), None)


def rule_for(rules: Sequence[IdleRule], subject: Subject, now: float, zone: str) -> IdleRule | None:
    """Return the rule that counts for a session; None if it may be idle as long as it likes."""
    found = first_rule(rules, subject, now, zone)
    return None if found is None or found.action is Action.NONE else found
