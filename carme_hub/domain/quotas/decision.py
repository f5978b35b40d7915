"""Decide whether the quotas that apply grant a request. Pure.

All rules that apply must hold. Admission, the form, and the replay of a policy call ``decide``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import messages as sentences
from .rules import DAY, NO_USAGE, AppliedQuota, Check, Facts, QuotaRequest, allowed, checks, recent_starts

#: The step and the minimum of the search for a smaller request, in seconds.
STEP = 900


@dataclass(frozen=True, slots=True)
class Refusal:
    """One rule that does not hold: its id, the sentence for the user, and when it holds again (0 = unknown)."""

    quota: str
    reason: str
    message: str
    possible_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of ``decide``.

    Attributes:
        refusals: the rules that do not hold, the tightest first; empty = granted.
        warnings: sentences about soft limits. qos: the QOS of an exceeded soft limit, "" for none.
        largest: the largest request that is granted now: the request itself if it is granted; otherwise one of the
            same GPU type with at most as many GPUs and as much time (in quarters of an hour, or all of it), namely the
            one with the most GPUs × time, and among equals the one with the most GPUs. None if there is none.
    """

    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    qos: str = ""
    largest: QuotaRequest | None = None

    @property
    def granted(self) -> bool:
        """Return whether every rule holds."""
        return not self.refusals

    @property
    def message(self) -> str:
        """Return the message for the user: the sentence of the tightest rule; "" if the request is granted."""
        return self.refusals[0].message if self.refusals else ""


def decide(applied: Sequence[AppliedQuota], request: QuotaRequest, facts: Facts, *, zone: str) -> Decision:
    """Decide on a request.

    Args:
        applied: the rules for the user and the account, from ``applicable``.
        facts: usage by rule and subject; missing subjects have no usage, missing accounts have nothing left.
        zone: IANA zone for the times in the sentences.
    """
    broken = [check for check in checks(applied, request, facts) if not check.holds]
    warnings, qos = _soft(applied, request, facts, zone)
    if not broken:
        return Decision((), warnings, qos, request)
    times = {id(check): _possible_at(check, facts) for check in broken}
    broken.sort(key=lambda check: (check.allowed_part, -(times[id(check)] or float("inf"))))
    largest = _largest(applied, request, facts)
    # The message says when all rules can hold again, not only the rule that it names.
    when = max(times.values()) if all(times.values()) else 0.0
    hint = sentences.possibility_hint(when, largest, facts.now, zone)
    refusals = tuple(
        Refusal(
            check.rule.quota.id, check.reason, f"{sentences.refusal(check, request, zone)} {hint}", times[id(check)]
        )
        for check in broken
    )
    return Decision(refusals, warnings, qos, largest)


def _soft(
    applied: Sequence[AppliedQuota], request: QuotaRequest, facts: Facts, zone: str
) -> tuple[tuple[str, ...], str]:
    """Return the warnings about GPU time, and the QOS of the first soft limit that the request exceeds."""
    warnings, qos = [], ""
    for one in applied:
        limit = one.quota.gpu_time
        if limit is None or not request.amount or not one.quota.in_force(facts.now):
            continue
        total = facts.use.get((one.quota.id, one.subject), NO_USAGE).gpu_time + request.amount
        if total > limit and one.quota.soft:
            brings = "" if qos or request.already_held else one.quota.soft_qos  # a running job keeps its own
            qos = qos or brings
            warnings.append(sentences.over_limit(one, total - request.amount, request, zone, brings))
        elif (share := sentences.threshold(total, limit)) and total <= limit:
            warnings.append(sentences.near_limit(one, share, zone))
    return tuple(warnings), qos


def _possible_at(check: Check, facts: Facts) -> float:
    """Return when a limit can hold again for the same request, by what is known now; 0 = unknown or never."""
    use = facts.use.get((check.rule.quota.id, check.rule.subject), NO_USAGE)
    if check.requested > check.limit:
        return 0.0
    match check.reason:
        case "gpu-time":
            freed = use.frees or ((use.frees_at, check.used),)
        case "concurrent-gpus":
            freed = use.ends
        case "sessions":
            freed = tuple((end, 1) for end, _ in use.ends)
        case "sessions-per-day":
            freed = tuple((at + DAY, 1) for at in recent_starts(use, facts.now))
        case _:
            return 0.0
    over = check.used + check.requested - check.limit
    for at, much in sorted(freed):
        over -= much
        if over <= 0:
            return at if at > facts.now else 0.0
    return 0.0


def _largest(applied: Sequence[AppliedQuota], request: QuotaRequest, facts: Facts) -> QuotaRequest | None:
    """Search GPU counts from the largest down, until fewer GPUs cannot give more GPUs × time."""
    best: QuotaRequest | None = None
    least = (
        request.gpus.count if request.already_held else min(1, request.gpus.count)
    )  # a running session keeps its GPUs
    for count in range(request.gpus.count, least - 1, -1):
        if best is not None and count * request.seconds <= best.gpus.count * best.seconds:
            break
        fewer = replace(request, gpus=replace(request.gpus, count=count))
        found = _longest(applied, fewer, facts)
        if found is not None and (best is None or count * found.seconds > best.gpus.count * best.seconds):
            best = found
    return best


def _longest(applied: Sequence[AppliedQuota], request: QuotaRequest, facts: Facts) -> QuotaRequest | None:
    """Return the request with the longest granted time, by bisection: a granted request is granted for less time."""
    found, low, high = None, 1, max(1, -(-request.seconds // STEP))
    while low <= high:
        middle = (low + high) // 2
        shorter = replace(request, seconds=min(request.seconds, STEP * middle))
        if allowed(applied, shorter, facts):
            found, low = shorter, middle + 1
        else:
            high = middle - 1
    return found
