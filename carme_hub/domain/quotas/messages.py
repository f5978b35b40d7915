"""Messages for users about quotas: refusals, warnings, and what is possible. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from carme_hub.domain.wording import day, duration, gpu_hours, hours, moment

from .rules import AppliedQuota, Check, Quota, QuotaRequest

_EACH = {"day": "a day", "week": "a week", "month": "a calendar month", "total": "in total"}
#: Percentages of a limit at which users are notified.
THRESHOLDS = (100, 90, 75)


def subject(rule: AppliedQuota) -> str:
    """Return the subject of a rule as the beginning of a sentence."""
    quota, who = rule.quota, rule.quota.who.value
    if who in ("user", "account") or quota.together:
        return f"{who.capitalize()} {rule.subject}"
    if quota.name == "*":
        return f"As a member of a group, {rule.subject}" if who == "group" else f"With a role, {rule.subject}"
    if who == "group":
        return f"As a member of group {quota.name}, {rule.subject}"
    return f"With role {quota.name}, {rule.subject}"


def window(quota: Quota, zone: str) -> str:
    """Return the window of a limit: "a week", "in any 30 days", "from 1 October 2026 to 31 March 2027"."""
    if quota.window.value == "rolling":
        return f"in any {quota.days} days" if quota.days != 1 else "in any 24 hours"
    if quota.window.value == "term":
        first = datetime.fromtimestamp(quota.start, ZoneInfo(zone))
        last = datetime.fromtimestamp(quota.end, ZoneInfo(zone)) - timedelta(seconds=1)
        return f"from {day(first)} to {day(last)}"
    return _EACH[quota.window.value]


def refusal(check: Check, request: QuotaRequest, zone: str) -> str:
    """Return the sentence about one limit that does not hold: subject, limit, usage, and request."""
    who, limit, used, requested = subject(check.rule), check.limit, check.used, check.requested
    priced = "" if request.factor == 1000 or request.other_rate else f" at a price factor of {request.factor / 1000:g}"
    more = " more" if request.already_held else ""
    match check.reason:
        case "gpu-time":
            held = f"{hours(used)} {'is' if hours(used) == '1' else 'are'} used or held"
            over = window(check.rule.quota, zone)
            return f"{who} may use {gpu_hours(limit)} {over}; {held}, and this needs {hours(requested)}{more}{priced}."
        case "needs-grant":
            has = f"{gpu_hours(limit)} left" if limit > 0 else "no GPU time left"
            return f"Account {request.account} has {has}, and this needs {hours(requested)}{more}{priced}."
        case "concurrent-gpus":
            return f"{who} may have {_gpus(limit)} at once; {used} {_are(used)} in use, and this needs {requested}."
        case "session-gpus":
            return f"{who} may have {_gpus(limit)} in one session, and this needs {requested}."
        case "sessions":
            return f"{who} may have {_sessions(limit)} at once; {used} {_are(used)} open."
        case "sessions-per-day":
            were = "was" if used == 1 else "were"
            return f"{who} may start {_sessions(limit)} in 24 hours; {used} {were} started."
        case "time-limit":
            needs = (
                f"this would make it {duration(used + requested)}"
                if request.already_held
                else f"this needs {duration(requested)}"
            )
            return f"{who} may have sessions of at most {duration(limit)}, and {needs}."
        case "gpu-types":
            types = check.rule.quota.gpu_types or ()
            only = f"use only {_or(types)}" if types else "use no GPU"
            return f"{who} may {only}, and this needs {request.gpus.type}."
    return f"{who} may not extend sessions."


def possibility_hint(when: float, largest: QuotaRequest | None, now: float, zone: str) -> str:
    """Return the end of a refusal: when the request is possible again (0 = unknown), and what is granted now."""
    smaller = "" if largest is None else f"at most {request_text(largest)}"
    if when:
        other = f", or with {smaller} now." if smaller else ". Nothing smaller would be granted now."
        return f"Possible again {moment(when, now, zone)}{other}"
    if smaller:
        return f"{smaller[0].upper()}{smaller[1:]} would be granted now."
    return "Nothing smaller would be granted now."


def request_text(request: QuotaRequest) -> str:
    """Return a request as "2 × a100 for 1 h 30 min"."""
    return f"{request.gpus} for {duration(request.seconds)}{' more' if request.already_held else ''}"


def threshold(total: int, limit: int) -> int:
    """Return the highest of ``THRESHOLDS`` that a total reaches, in percent, or 0."""
    return next((m for m in THRESHOLDS if limit > 0 and 100 * total >= m * limit), 0)


def near_limit(rule: AppliedQuota, share: int, zone: str) -> str:
    """Return the warning about a limit that is reached or nearly reached."""
    limit = rule.quota.gpu_time or 0
    least = "at least " if share < THRESHOLDS[0] else ""
    return (
        f"{subject(rule)} may use {gpu_hours(limit)} {window(rule.quota, zone)}; with this, {least}{share} % is taken."
    )


def over_limit(rule: AppliedQuota, used: int, request: QuotaRequest, zone: str, qos: str) -> str:
    """Return the warning about a soft limit that the request exceeds; ``qos``: the QOS that it gets, "" for none."""
    limit = rule.quota.gpu_time or 0
    slower = f" It runs with QOS {qos}." if qos else ""
    return (
        f"{subject(rule)} should use at most {gpu_hours(limit)} {window(rule.quota, zone)}; {hours(used)} "
        f"{'is' if hours(used) == '1' else 'are'} used or held, and this needs {hours(request.amount)}.{slower}"
    )


def _gpus(count: int) -> str:
    return "no GPU" if not count else f"{count} GPU{'' if count == 1 else 's'}"


def _sessions(count: int) -> str:
    return "no session" if not count else f"{count} session{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _or(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
