"""Quotas: rules on GPU time and sessions, and which of them apply to a user and account. Pure.

``decision.decide`` evaluates them. A request counts in full in the window in which it is made, so that no later window
can be exceeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import NamedTuple

from carme_hub.domain.cluster.resources import NO_GPUS, Gpus

from .booking_rules import BookingRule

#: Seconds in which starts are counted.
DAY = 86400


class SubjectKind(Enum):
    """The kind of subject of a quota. ``name`` "*" means each subject of the kind."""

    USER = "user"
    GROUP = "group"
    ROLE = "role"
    ACCOUNT = "account"


class Window(Enum):
    """The window in which GPU time is counted. Weeks begin on Monday; all windows are in the site's time zone."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    ROLLING = "rolling"  # the last N days
    TERM = "term"  # from a date to a date
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Quota:
    """One rule; a limit that is None is not set.

    Attributes:
        id: unique within a policy; shown in refusals and reports.
        who, name: the subject. together: the members of a group or role share the limits; otherwise each has its own.
        gpu_time: milli-GPU-seconds per window. window, days (for rolling), start, end (for term; epoch seconds).
        soft: a session that exceeds ``gpu_time`` is still admitted, with a warning and ``soft_qos``.
        concurrent_gpus: GPUs of all open sessions and jobs. session_gpus: GPUs of one session.
        sessions: open sessions at once. sessions_per_day: starts in 24 hours.
        time_limit: seconds of one session. gpu_types: the only allowed types.
        needs_grant: the account must have balance left (grants minus usage and holds).
        owners_approve: milli-GPU-seconds of new GPU time that an account's owners may approve per calendar month.
        booking: limits on booking for each user; they do not apply to sessions.
    """

    id: str
    who: SubjectKind
    name: str = "*"
    together: bool = False
    gpu_time: int | None = None
    window: Window = Window.TOTAL
    days: int = 0
    start: float = 0.0
    end: float = 0.0
    soft: bool = False
    soft_qos: str = ""
    concurrent_gpus: int | None = None
    session_gpus: int | None = None
    sessions: int | None = None
    sessions_per_day: int | None = None
    time_limit: int | None = None
    gpu_types: tuple[str, ...] | None = None
    needs_grant: bool = False
    may_extend: bool | None = None
    may_book: bool | None = None
    may_add_images: bool | None = None
    priority: int | None = None
    owners_approve: int | None = None
    booking: BookingRule | None = None

    def in_force(self, now: float) -> bool:
        """Return whether the rule applies at this moment: a rule with a term only within it, others always."""
        return self.window is not Window.TERM or self.start <= now < self.end


@dataclass(frozen=True, slots=True)
class Person:
    """The user of a request: name, hub groups, roles."""

    user: str
    groups: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class QuotaRequest:
    """A request for GPUs for a time at a price factor (thousandths), charged to an account.

    Attributes:
        already_held: seconds that the same session holds: the request extends it by ``seconds``.
        other_rate: milli-GPU-seconds per second of GPUs of other types, which belong to a node booked as a whole.
    """

    account: str
    gpus: Gpus = NO_GPUS
    seconds: int = 0
    factor: int = 1000
    already_held: int = 0
    other_rate: int = 0

    @property
    def amount(self) -> int:
        """Return the milli-GPU-seconds that the request would hold."""
        return (self.gpus.count * self.factor + self.other_rate) * self.seconds


@dataclass(frozen=True, slots=True)
class SubjectUsage:
    """The usage of one quota by one subject; GPU time counts within the quota's window.

    Attributes:
        gpu_time: milli-GPU-seconds used and held in the window.
        frees_at: when GPU time becomes free next (start of the next day or term; in a rolling window when the oldest
            usage leaves the window); 0 = never by itself.
        gpus, sessions: of open sessions and jobs now. started: epoch seconds of each start in the last 24 hours.
        ends: (epoch second, GPUs) of open sessions and jobs, by the end of the time limit.
        frees: (epoch second, milli-GPU-seconds) of usage that leaves a rolling window, if known; otherwise all usage is
            assumed to become free at ``frees_at``.
    """

    gpu_time: int = 0
    frees_at: float = 0.0
    gpus: int = 0
    sessions: int = 0
    started: tuple[float, ...] = ()
    ends: tuple[tuple[float, int], ...] = ()
    frees: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """The input of a decision: usage and balances at one moment.

    Attributes:
        use: usage by quota id and subject (``AppliedQuota``). left: balance by account, in milli-GPU-seconds.
    """

    now: float
    use: Mapping[tuple[str, str], SubjectUsage] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AppliedQuota:
    """A quota and the subject whose usage counts: a user, a whole group or role, or an account."""

    quota: Quota
    subject: str


def applicable(quotas: Sequence[Quota], person: Person, account: str) -> tuple[AppliedQuota, ...]:
    """Return the quotas that apply to this person or account, in the policy's order."""
    found: list[AppliedQuota] = []
    for quota in quotas:
        names = {
            SubjectKind.USER: frozenset({person.user}),
            SubjectKind.GROUP: person.groups,
            SubjectKind.ROLE: person.roles,
            SubjectKind.ACCOUNT: frozenset({account}),
        }[quota.who]
        ours = sorted(names) if quota.name == "*" else [quota.name] if quota.name in names else []
        if ours and quota.who in (SubjectKind.GROUP, SubjectKind.ROLE) and not quota.together:
            ours = [person.user]  # each member has limits of its own
        found += [AppliedQuota(quota, subject) for subject in ours]
    return tuple(found)


class Check(NamedTuple):
    """One limit against one request: it holds if nothing is requested, or ``used + requested <= limit``.

    Attributes:
        reason: a slug: gpu-time, concurrent-gpus, session-gpus, sessions, sessions-per-day, time-limit, gpu-types,
            needs-grant, may-extend. limit, used, requested: in the unit of the reason; a yes-or-no limit is 0.
    """

    rule: AppliedQuota
    reason: str
    limit: int
    used: int
    requested: int

    @property
    def holds(self) -> bool:
        """Return whether the limit allows it."""
        return self.requested <= 0 or self.used + self.requested <= self.limit

    @property
    def allowed_part(self) -> Fraction:
        """Return the fraction of the request that the limit alone would allow, from 0 to less than 1."""
        return Fraction(max(0, self.limit - self.used), self.requested)


NO_USAGE = SubjectUsage()


def checks(applied: Iterable[AppliedQuota], request: QuotaRequest, facts: Facts) -> Iterator[Check]:
    """Yield every hard limit of the rules in force. Limits on GPUs do not count a request without GPUs."""
    count, amount, new = request.gpus.whole, request.amount, 0 if request.already_held else 1
    for one in applied:
        rule = one.quota
        if not rule.in_force(facts.now):
            continue
        use = facts.use.get((rule.id, one.subject), NO_USAGE)
        if rule.gpu_time is not None and not rule.soft:
            yield Check(one, "gpu-time", rule.gpu_time, use.gpu_time, amount)
        if rule.concurrent_gpus is not None:
            yield Check(one, "concurrent-gpus", rule.concurrent_gpus, use.gpus, count * new)
        if rule.session_gpus is not None:
            yield Check(one, "session-gpus", rule.session_gpus, 0, count)
        if rule.sessions is not None:
            yield Check(one, "sessions", rule.sessions, use.sessions, new)
        if rule.sessions_per_day is not None:
            yield Check(one, "sessions-per-day", rule.sessions_per_day, len(recent_starts(use, facts.now)), new)
        if rule.time_limit is not None:
            yield Check(one, "time-limit", rule.time_limit, request.already_held, request.seconds)
        if rule.gpu_types is not None:
            yield Check(one, "gpu-types", 0, 0, int(bool(count) and request.gpus.type not in rule.gpu_types))
        if rule.needs_grant:
            yield Check(one, "needs-grant", facts.left.get(request.account, 0), 0, amount)
        if rule.may_extend is False:
            yield Check(one, "may-extend", 0, 0, 1 - new)


def allowed(applied: Iterable[AppliedQuota], request: QuotaRequest, facts: Facts) -> bool:
    """Return whether ``decide`` would grant the request, without making sentences."""
    return all(
        check.requested <= 0 or check.used + check.requested <= check.limit for check in checks(applied, request, facts)
    )


def recent_starts(use: SubjectUsage, now: float) -> list[float]:
    """Return the starts of the last 24 hours."""
    return [at for at in use.started if at > now - DAY]
