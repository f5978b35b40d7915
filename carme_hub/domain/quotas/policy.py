"""A site's policy (quotas, refunds, currency, blackouts, idle sessions), parsed from plain data and written back. Pure.

The data come from a YAML file, from a setting, or from the history on the administrator's page; they are lists, dicts,
texts and numbers. Nothing is ignored: an unknown key or invalid value is a ``ConfigError`` that begins with its
location. docs/reference/policies.md describes every key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from . import policy_booking as booking
from . import policy_values as values
from .booking_rules import Blackout
from .idle.policy import read_rule, write_rule
from .idle.rules import IdleRule
from .policy_values import config_error
from .rules import AppliedQuota, Quota, SubjectKind, Window

#: Reasons for automatic refunds of GPU time.
REFUNDS = ("node-failure", "preemption", "start-failed", "maintenance")
_POLICY_KEYS = ("zone", "currency", "refunds", "quotas", "blackouts", "idle")
_WHO_KEYS = tuple(who.value for who in SubjectKind)
_COUNTS = ("concurrent_gpus", "session_gpus", "sessions", "sessions_per_day")
_MAY = ("may_extend", "may_book", "may_add_images")
_OTHERS = ("time_limit", "gpu_types", "needs_grant", *_MAY, "booking", "priority", "owners_approve")
_LIMITS = ("gpu_time", *_COUNTS, *_OTHERS)
_WINDOW_KEYS = ("window", "days", "start", "end", "soft", "soft_qos")
_QUOTA_KEYS = ("id", *_WHO_KEYS, "together", *_LIMITS, *_WINDOW_KEYS)
_ID = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
_GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_SUBJECT = re.compile(r"\*|[^\s*][^\n]{0,254}")
_CURRENCY = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True, slots=True)
class Policy:
    """A parsed policy.

    Attributes:
        quotas: in the file's order. refunds: the named ones of ``REFUNDS``, None if the policy does not set them.
        zone: IANA zone in which days, weeks and months begin. currency: ISO 4217 code for reports.
        blackouts: the periods in which nothing can be booked. idle: rules on idle sessions, in the file's order.
        default_refunds: the refunds of a policy that does not set them; from the site's settings, not the policy.
    """

    quotas: tuple[Quota, ...] = ()
    refunds: tuple[str, ...] | None = None
    zone: str = "UTC"
    currency: str = "EUR"
    blackouts: tuple[Blackout, ...] = ()
    idle: tuple[IdleRule, ...] = ()
    default_refunds: tuple[str, ...] = field(default=REFUNDS, compare=False)

    @property
    def refunded(self) -> tuple[str, ...]:
        """Return the reasons for refunds: those of the policy, or else those of the site's settings."""
        return self.default_refunds if self.refunds is None else self.refunds


@dataclass(frozen=True, slots=True)
class Permissions:
    """What a user may do besides starting sessions, and the priority; the defaults are for users without rules."""

    may_extend: bool = True
    may_book: bool = True
    may_add_images: bool = False
    priority: int = 0


def permissions(applied: Iterable[AppliedQuota], now: float) -> Permissions:
    """Return the permissions by the rules in force: False wins over True, and the highest priority counts."""
    rules = [one.quota for one in applied if one.quota.in_force(now)]
    none = Permissions()

    def may(said: Iterable[bool | None], default: bool) -> bool:
        words = [word for word in said if word is not None]
        return all(words) if words else default

    return Permissions(
        may((rule.may_extend for rule in rules), none.may_extend),
        may((rule.may_book for rule in rules), none.may_book),
        may((rule.may_add_images for rule in rules), none.may_add_images),
        max((rule.priority for rule in rules if rule.priority is not None), default=none.priority),
    )


def nice_of(quotas: Iterable[Quota], priority: int) -> int:
    """Return sbatch's ``--nice`` for a priority: the difference to the highest priority of any rule.

    Slurm lets ordinary users only lower a job's priority, so the highest priority is nice 0.
    """
    named = (quota.priority for quota in quotas if quota.priority is not None)
    return max(0, max(named, default=0) - priority)


def owners_approve(quotas: Iterable[Quota], account: str, now: float) -> int:
    """Return what an account's owners may approve per calendar month in milli-GPU-seconds; 0 without a rule."""
    said = (
        rule.owners_approve
        for rule in quotas
        if rule.who is SubjectKind.ACCOUNT and rule.name in ("*", account) and rule.in_force(now)
    )
    return min((amount for amount in said if amount is not None), default=0)


def parse_policy(document: Mapping[str, object]) -> Policy:
    """Return the policy of a document.

    Raises:
        ConfigError: a key is unknown, a value is invalid, or two values contradict each other.
    """
    data = values.mapping(document, "policy", _POLICY_KEYS)
    zone = _zone(data.get("zone", "UTC"))
    rules = values.items(data.get("quotas", []), "quotas")
    quotas = tuple(_quota(rule, f"quotas[{n}]", zone) for n, rule in enumerate(rules))
    seen: dict[str, int] = {}
    for n, quota in enumerate(quotas):
        if quota.id in seen:
            raise config_error(
                f"quotas[{n}].id", f"{quota.id!r} is quotas[{seen[quota.id]}] already; each id is used once"
            )
        seen[quota.id] = n
    currency = data.get("currency", "EUR")
    if not isinstance(currency, str) or not _CURRENCY.fullmatch(currency):
        raise config_error("currency", f"give the three letters of ISO 4217, such as EUR, not {currency!r}")
    refunds = values.items(data["refunds"], "refunds") if "refunds" in data else None
    for n, name in enumerate(refunds or ()):
        if name not in REFUNDS:
            raise config_error(f"refunds[{n}]", f"{name!r} is not a refund. {values.hint(name, REFUNDS)}")
    named = None if refunds is None else tuple(name for name in REFUNDS if name in refunds)
    blackouts = values.items(data.get("blackouts", []), "blackouts")
    times = tuple(booking.read_blackout(each, f"blackouts[{n}]", zone) for n, each in enumerate(blackouts))
    idle = tuple(read_rule(rule, f"idle[{n}]") for n, rule in enumerate(values.items(data.get("idle", []), "idle")))
    return Policy(quotas, named, zone, currency, times, idle)


def dump_policy(policy: Policy) -> dict[str, object]:
    """Return the document that ``parse_policy`` reads as this policy; it can be written as JSON or YAML."""
    times = [booking.write_blackout(each, policy.zone) for each in policy.blackouts]
    return {
        "zone": policy.zone,
        "currency": policy.currency,
        **({} if policy.refunds is None else {"refunds": list(policy.refunds)}),
        "quotas": [_dump_quota(quota, policy.zone) for quota in policy.quotas],
        **({"blackouts": times} if times else {}),
        **({"idle": [write_rule(rule) for rule in policy.idle]} if policy.idle else {}),
    }


def _dump_quota(quota: Quota, zone: str) -> dict[str, object]:
    found: dict[str, object] = {"id": quota.id, quota.who.value: quota.name}
    if quota.together:
        found["together"] = True
    if quota.gpu_time is not None:
        found["gpu_time"] = values.write_gpu_time(quota.gpu_time)
    if quota.gpu_time is not None or quota.window is Window.TERM:
        found["window"] = quota.window.value
    if quota.window is Window.ROLLING:
        found["days"] = quota.days
    if quota.window is Window.TERM:
        found |= {"start": values.write_moment(quota.start, zone, 0), "end": values.write_moment(quota.end, zone, 1)}
    if quota.soft:
        found["soft"] = True
        found |= {"soft_qos": quota.soft_qos} if quota.soft_qos else {}
    for key in (*_COUNTS, *_MAY, "priority"):
        if (value := getattr(quota, key)) is not None:
            found[key] = value
    if quota.time_limit is not None:
        found["time_limit"] = values.write_duration(quota.time_limit)
    if quota.gpu_types is not None:
        found["gpu_types"] = list(quota.gpu_types)
    if quota.needs_grant:
        found["needs_grant"] = True
    if quota.booking is not None:
        found["booking"] = booking.write_rule(quota.booking)
    if quota.owners_approve is not None:
        found["owners_approve"] = values.write_gpu_time(quota.owners_approve)
    return found


def _quota(entry: object, where: str, zone: str) -> Quota:
    data = values.mapping(entry, where, _QUOTA_KEYS)

    def place(key: str) -> str:
        return f"{where}.{key}"

    if not isinstance(data.get("id"), str) or not _ID.fullmatch(str(data["id"])):
        raise config_error(place("id"), "give each quota an id of its own, of lower-case letters, digits and . _ -")
    subjects = [key for key in _WHO_KEYS if key in data]
    if len(subjects) != 1:
        raise config_error(where, f"set the subject with one of {', '.join(_WHO_KEYS)}, such as group: students")
    (who,) = subjects
    if not any(key in data for key in _LIMITS):
        raise config_error(where, f"it limits nothing; known limits are {', '.join(_LIMITS)}")
    window, days, start, end = _window(data, where, zone)
    soft = values.flag(data, "soft", where)
    if soft and "gpu_time" not in data:
        raise config_error(place("soft"), "only gpu_time can be soft, and this quota has none")
    if "soft_qos" in data and not soft:
        raise config_error(place("soft_qos"), "it is for soft limits; add soft: true")
    together = values.flag(data, "together", where)
    if together and who not in (SubjectKind.GROUP.value, SubjectKind.ROLE.value):
        raise config_error(place("together"), f"it is for groups and roles, and this quota is about {who}s")
    if "owners_approve" in data and who != SubjectKind.ACCOUNT.value:
        raise config_error(place("owners_approve"), f"it is for accounts, and this quota is about {who}s")
    if together and "booking" in data:
        raise config_error(
            place("together"), "limits on booking are each user's own; give booking a quota without together"
        )
    types = [
        values.text(name, f"{where}.gpu_types[{n}]", _GPU_TYPE, "a GPU type as in gres.conf, such as a100")
        for n, name in enumerate(values.items(data.get("gpu_types", []), place("gpu_types")))
    ]
    numbers = {key: values.count(data[key], place(key)) for key in (*_COUNTS, "priority") if key in data}
    numbers |= {key: values.gpu_time(data[key], place(key)) for key in ("gpu_time", "owners_approve") if key in data}
    return Quota(
        id=str(data["id"]),
        who=SubjectKind(who),
        name=values.text(data[who], place(who), _SUBJECT, 'a name, or "*" for each'),
        together=together,
        window=window,
        days=days,
        start=start,
        end=end,
        soft=soft,
        soft_qos=_qos(data["soft_qos"], place("soft_qos")) if "soft_qos" in data else "",
        time_limit=values.duration(data["time_limit"], place("time_limit")) if "time_limit" in data else None,
        gpu_types=tuple(dict.fromkeys(types)) if "gpu_types" in data else None,
        needs_grant=values.flag(data, "needs_grant", where),
        booking=booking.read_rule(data["booking"], place("booking")) if "booking" in data else None,
        **{key: values.flag(data, key, where) for key in _MAY if key in data},
        **numbers,  # type: ignore[arg-type]
    )


def _window(data: Mapping[str, object], where: str, zone: str) -> tuple[Window, int, float, float]:
    names = [window.value for window in Window]
    if "window" not in data:
        if "gpu_time" in data:
            raise config_error(f"{where}.window", f"set the window in which gpu_time is counted: {', '.join(names)}")
        word = Window.TOTAL.value
    else:
        word = str(data["window"])
        if word not in names:
            raise config_error(f"{where}.window", f"{data['window']!r} is not a window. {values.hint(word, names)}")
        if "gpu_time" not in data and word != Window.TERM.value:
            raise config_error(
                f"{where}.window", "it is the time over which gpu_time is counted, and this quota has none"
            )
    needed = {Window.ROLLING.value: ("days",), Window.TERM.value: ("start", "end")}.get(word, ())
    for key in ("days", "start", "end"):
        if (key in data) != (key in needed):
            does = "needs it" if key in needed else "does not take it"
            raise config_error(f"{where}.{key}", f"window: {word} {does}")
    days = values.count(data["days"], f"{where}.days") if "days" in needed else 0
    if "days" in needed and not 1 <= days <= 3660:
        raise config_error(f"{where}.days", "give a whole number of days from 1 to 3660")
    if "start" not in needed:
        return Window(word), days, 0.0, 0.0
    start, end = (
        values.moment(data["start"], f"{where}.start", zone, 0),
        values.moment(data["end"], f"{where}.end", zone, 1),
    )
    if end <= start:
        raise config_error(f"{where}.end", "the term ends before it begins")
    return Window(word), days, start, end


def _zone(value: object) -> str:
    with suppress(ZoneInfoNotFoundError, ValueError, OSError):
        if isinstance(value, str) and value:
            return ZoneInfo(value).key
    near = difflib.get_close_matches(str(value), sorted(available_timezones()), 1)
    hint = f"Did you mean {near[0]}?" if near else "Zones are named like Europe/Berlin."
    raise config_error("zone", f"{value!r} is not a time zone. {hint}")


def _qos(value: object, where: str) -> str:
    """Return the name of a QOS in lower case, as Slurm stores it, so that the names can be compared."""
    return values.text(value, where, _NAME, "the name of a QOS").lower()
