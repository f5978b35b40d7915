"""Quotas: rules on GPU time and on sessions, and the decision whether a request is granted. Pure.

All rules that apply must hold. ``decide`` is the one function behind admission, the form and the replay of a policy.
What is asked counts in full in the window in which it is asked, so that no window after it can be overrun.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from typing import NamedTuple

from . import quota_sentences as sentences
from .booking_rules import BookingRule
from .resources import NO_GPUS, Gpus

#: The step and the least in which a smaller request is looked for, in seconds.
STEP = 900
#: Seconds in which starts are counted.
DAY = 86400


class Who(Enum):
    """Whom a quota is about. ``name`` "*" means each of them."""

    USER = "user"
    GROUP = "group"
    ROLE = "role"
    ACCOUNT = "account"


class Window(Enum):
    """The time over which GPU time is counted. Weeks begin on Monday; all in the site's time zone."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    ROLLING = "rolling"  # the last N days
    TERM = "term"  # from a date to a date
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Quota:
    """One rule; every limit that is None is not set.

    Attributes:
        id: unique within a policy; shown in refusals and reports.
        who, name: the subject. together: a group's or role's members share the limits; otherwise each has them.
        gpu_time: milli-GPU-seconds per window. window, days (for rolling), start, end (for term; epoch seconds).
        soft: over ``gpu_time`` a session is still admitted, with a warning and ``soft_qos``.
        concurrent_gpus: GPUs of all open sessions and jobs. session_gpus: GPUs of one session.
        sessions: open sessions at once. sessions_per_day: starts in 24 hours.
        time_limit: seconds of one session. gpu_types: the only types allowed.
        needs_grant: the account must have balance left (grants less use and holds).
        owners_approve: milli-GPU-seconds that an account's owners may approve in a calendar month out of nothing.
        booking: limits on booking, of each user alone; nothing to sessions.
    """

    id: str
    who: Who
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
        """Return whether the rule counts at this moment: one with a term only within it, all others always."""
        return self.window is not Window.TERM or self.start <= now < self.end


@dataclass(frozen=True, slots=True)
class Person:
    """Who asks: user name, hub groups, roles."""

    user: str
    groups: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked: GPUs for so many seconds at a price factor (thousandths), charged to an account.

    Attributes:
        held: seconds that the same session holds already: ``seconds`` more are asked, and no new session is.
        also: milli-GPU-seconds a second of GPUs of other types, which go with a node that is booked whole.
    """

    account: str
    gpus: Gpus = NO_GPUS
    seconds: int = 0
    factor: int = 1000
    held: int = 0
    also: int = 0

    @property
    def amount(self) -> int:
        """Return the milli-GPU-seconds that would be held."""
        return (self.gpus.count * self.factor + self.also) * self.seconds


@dataclass(frozen=True, slots=True)
class Use:
    """What a subject of one quota has taken, within the quota's window where it is GPU time.

    Attributes:
        gpu_time: milli-GPU-seconds used and held in the window.
        frees_at: when the window next gives something back (start of the next day, of the next term …; for rolling,
            when the oldest use leaves the window); 0 = never by itself.
        gpus, sessions: of open sessions and jobs now. started: epoch seconds of each start in the last 24 hours.
        ends: (epoch second, GPUs) for what is open, by the end of its time limit.
        frees: (epoch second, milli-GPU-seconds) of what leaves a rolling window, where that is known; without it,
            all of it is taken to be free at ``frees_at``.
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
    """What is known at one moment.

    Attributes:
        use: by quota id and subject (``Applied``). left: balance left by account, in milli-GPU-seconds.
    """

    now: float
    use: Mapping[tuple[str, str], Use] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One rule that does not hold: its id, the sentence for the user, and when it will hold again (0 = unknown)."""

    quota: str
    reason: str
    message: str
    possible_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What came out.

    Attributes:
        refusals: the rules that do not hold, the tightest first; empty = granted.
        warnings: sentences about soft limits. qos: the QOS that a soft limit asks for, "" for none.
        largest: the largest request that would be granted now: what was asked where it is granted; otherwise of the
            same GPU type, with no more GPUs and no more time (in quarters of an hour, or all that was asked), the one
            with the most GPUs × time, and among equals the one with the most GPUs. None when none would.
    """

    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    qos: str = ""
    largest: Ask | None = None

    @property
    def granted(self) -> bool:
        """Return whether every rule holds."""
        return not self.refusals

    @property
    def message(self) -> str:
        """Return what is said to the user: the sentence of the tightest rule; "" where it is granted."""
        return self.refusals[0].message if self.refusals else ""


@dataclass(frozen=True, slots=True)
class Applied:
    """A quota and whose use counts for it: a user, a whole group or role, or an account."""

    quota: Quota
    subject: str


def applying(quotas: Sequence[Quota], person: Person, account: str) -> tuple[Applied, ...]:
    """Return the quotas that are about this person or this account, in the policy's order."""
    found: list[Applied] = []
    for quota in quotas:
        names = {
            Who.USER: frozenset({person.user}),
            Who.GROUP: person.groups,
            Who.ROLE: person.roles,
            Who.ACCOUNT: frozenset({account}),
        }[quota.who]
        ours = sorted(names) if quota.name == "*" else [quota.name] if quota.name in names else []
        if ours and quota.who in (Who.GROUP, Who.ROLE) and not quota.together:
            ours = [person.user]  # membership brings the limits; each member has them alone
        found += [Applied(quota, subject) for subject in ours]
    return tuple(found)


class Check(NamedTuple):
    """One limit against one request: it holds when nothing is asked of it, or ``used + asked <= limit``.

    Attributes:
        reason: a slug: gpu-time, concurrent-gpus, session-gpus, sessions, sessions-per-day, time-limit, gpu-types,
            needs-grant, may-extend. limit, used, asked: in the unit of the reason; yes or no is a limit of 0.
    """

    rule: Applied
    reason: str
    limit: int
    used: int
    asked: int

    @property
    def holds(self) -> bool:
        """Return whether the limit allows it."""
        return self.asked <= 0 or self.used + self.asked <= self.limit

    @property
    def allows(self) -> Fraction:
        """Return the part of what is asked that the limit would allow by itself, from 0 to less than 1."""
        return Fraction(max(0, self.limit - self.used), self.asked)


_UNUSED = Use()


def checks(applied: Iterable[Applied], ask: Ask, facts: Facts) -> Iterator[Check]:
    """Yield every hard limit of the rules in force. A request without GPUs is nothing to limits on GPUs."""
    count, amount, new = ask.gpus.whole, ask.amount, 0 if ask.held else 1
    for one in applied:
        rule = one.quota
        if not rule.in_force(facts.now):
            continue
        use = facts.use.get((rule.id, one.subject), _UNUSED)
        if rule.gpu_time is not None and not rule.soft:
            yield Check(one, "gpu-time", rule.gpu_time, use.gpu_time, amount)
        if rule.concurrent_gpus is not None:
            yield Check(one, "concurrent-gpus", rule.concurrent_gpus, use.gpus, count * new)
        if rule.session_gpus is not None:
            yield Check(one, "session-gpus", rule.session_gpus, 0, count)
        if rule.sessions is not None:
            yield Check(one, "sessions", rule.sessions, use.sessions, new)
        if rule.sessions_per_day is not None:
            yield Check(one, "sessions-per-day", rule.sessions_per_day, len(_lately(use, facts.now)), new)
        if rule.time_limit is not None:
            yield Check(one, "time-limit", rule.time_limit, ask.held, ask.seconds)
        if rule.gpu_types is not None:
            yield Check(one, "gpu-types", 0, 0, int(bool(count) and ask.gpus.type not in rule.gpu_types))
        if rule.needs_grant:
            yield Check(one, "needs-grant", facts.left.get(ask.account, 0), 0, amount)
        if rule.may_extend is False:
            yield Check(one, "may-extend", 0, 0, 1 - new)


def allowed(applied: Iterable[Applied], ask: Ask, facts: Facts) -> bool:
    """Return whether ``decide`` would grant it, without its sentences."""
    return all(check.asked <= 0 or check.used + check.asked <= check.limit for check in checks(applied, ask, facts))


def decide(applied: Sequence[Applied], ask: Ask, facts: Facts, *, zone: str) -> Decision:
    """Decide on a request.

    Args:
        applied: the rules about who asks and the account, from ``applying``.
        facts: use by rule and subject; what is not there has no use, an account that is not there has nothing left.
        zone: IANA zone for the times in the sentences.
    """
    broken = [check for check in checks(applied, ask, facts) if not check.holds]
    warnings, qos = _soft(applied, ask, facts, zone)
    if not broken:
        return Decision((), warnings, qos, ask)
    times = {id(check): _possible_at(check, facts) for check in broken}
    broken.sort(key=lambda check: (check.allows, -(times[id(check)] or float("inf"))))
    largest = _largest(applied, ask, facts)
    # What is said is when everything can be possible again, not only the rule that is named.
    when = max(times.values()) if all(times.values()) else 0.0
    hint = sentences.outlook(when, largest, facts.now, zone)
    refusals = tuple(
        Refusal(check.rule.quota.id, check.reason, f"{sentences.refusal(check, ask, zone)} {hint}", times[id(check)])
        for check in broken
    )
    return Decision(refusals, warnings, qos, largest)


def _lately(use: Use, now: float) -> list[float]:
    return [at for at in use.started if at > now - DAY]


def _soft(applied: Sequence[Applied], ask: Ask, facts: Facts, zone: str) -> tuple[tuple[str, ...], str]:
    """Return the warnings about GPU time, and the QOS of the first soft limit that this goes over."""
    warnings, qos = [], ""
    for one in applied:
        limit = one.quota.gpu_time
        if limit is None or not ask.amount or not one.quota.in_force(facts.now):
            continue
        total = facts.use.get((one.quota.id, one.subject), _UNUSED).gpu_time + ask.amount
        if total > limit and one.quota.soft:
            brings = "" if qos or ask.held else one.quota.soft_qos  # a running job keeps its own
            qos = qos or brings
            warnings.append(sentences.over(one, total - ask.amount, ask, zone, brings))
        elif (share := sentences.mark(total, limit)) and total <= limit:
            warnings.append(sentences.near(one, share, zone))
    return tuple(warnings), qos


def _possible_at(check: Check, facts: Facts) -> float:
    """Return when a limit can hold again for the same request by what is known now; 0 = unknown or never."""
    use = facts.use.get((check.rule.quota.id, check.rule.subject), _UNUSED)
    if check.asked > check.limit:
        return 0.0
    match check.reason:
        case "gpu-time":
            freed = use.frees or ((use.frees_at, check.used),)
        case "concurrent-gpus":
            freed = use.ends
        case "sessions":
            freed = tuple((end, 1) for end, _ in use.ends)
        case "sessions-per-day":
            freed = tuple((at + DAY, 1) for at in _lately(use, facts.now))
        case _:
            return 0.0
    over = check.used + check.asked - check.limit
    for at, much in sorted(freed):
        over -= much
        if over <= 0:
            return at if at > facts.now else 0.0
    return 0.0


def _largest(applied: Sequence[Applied], ask: Ask, facts: Facts) -> Ask | None:
    """Search GPU counts from the most down, until fewer cannot come to more GPUs × time."""
    best: Ask | None = None
    least = ask.gpus.count if ask.held else min(1, ask.gpus.count)  # a running session keeps its GPUs
    for count in range(ask.gpus.count, least - 1, -1):
        if best is not None and count * ask.seconds <= best.gpus.count * best.seconds:
            break
        fewer = replace(ask, gpus=replace(ask.gpus, count=count))
        found = _longest(applied, fewer, facts)
        if found is not None and (best is None or count * found.seconds > best.gpus.count * best.seconds):
            best = found
    return best


def _longest(applied: Sequence[Applied], ask: Ask, facts: Facts) -> Ask | None:
    """Return the request with the longest time that is granted, by halving: whatever is granted is so for less time."""
    found, low, high = None, 1, max(1, -(-ask.seconds // STEP))
    while low <= high:
        middle = (low + high) // 2
        shorter = replace(ask, seconds=min(ask.seconds, STEP * middle))
        if allowed(applied, shorter, facts):
            found, low = shorter, middle + 1
        else:
            high = middle - 1
    return found
