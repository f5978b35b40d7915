"""Rules of the policy on booking for one person and account: all limits together, and blackouts.

Use cases check these rules before they look for places; the calendar decides whether there are free GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.quotas.booking_rules import Blackout, BookingRule, ExistingBooking, refusal, strictest
from carme_hub.domain.quotas.policy import Policy, permissions
from carme_hub.domain.quotas.rules import Person, SubjectKind, applicable


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for one person and one account at one time.

    Attributes:
        may_book: whether they may book at all. rule: all limits together. zone: IANA zone of times in sentences.
    """

    may_book: bool
    rule: BookingRule
    blackouts: tuple[Blackout, ...]
    zone: str


def rules_for(policy: Policy, person: Person, account: str, now: float, usual: BookingRule) -> Rules:
    """Return the policy's rules in force together; ``usual`` has the limits that they do not set."""
    applied = applicable(policy.quotas, person, account)
    said = [one.quota.booking for one in applied if one.quota.booking and one.quota.in_force(now)]
    return Rules(permissions(applied, now).may_book, strictest(said, usual), policy.blackouts, policy.zone)


def refused(rules: Rules, period: Period, *, booking: str, mine: Sequence[ExistingBooking], now: float) -> str:
    """Return why this period cannot be booked, as a sentence, "" if it can; see ``booking_rules.refusal``."""
    if not rules.may_book:
        return "You may not book GPUs with this account."
    return refusal(rules.rule, period, booking=booking, mine=mine, blackouts=rules.blackouts, now=now, zone=rules.zone)


def share_of(policy: Policy, usual: BookingRule, now: float) -> int:
    """Return the percent of each GPU type that all users together may book at one time.

    The rules about all users set it. A rule about some users can only reduce it for these: ``Rules.rule``.
    """
    about_all = (quota for quota in policy.quotas if quota.who is SubjectKind.USER and quota.name == "*")
    rules = [quota.booking for quota in about_all if quota.booking and quota.in_force(now)]
    return strictest(rules, usual).share or 100
