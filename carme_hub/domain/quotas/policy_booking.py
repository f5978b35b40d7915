"""Parse and write the parts of a policy about booking: the ``booking`` of a quota, and blackouts. Pure."""

from __future__ import annotations

import math
import re

from carme_hub.domain.calendar.periods import Period

from . import policy_values as values
from .booking_rules import Blackout, BookingRule
from .policy_values import config_error

#: In the order of ``BookingRule``.
RULE_KEYS = ("ahead", "length", "at_once", "cooldown", "approval_above", "share")
BLACKOUT_KEYS = ("start", "end", "reason")
_TIMES = ("ahead", "length", "cooldown")
_REASON = re.compile(r"\S[^\n]{0,254}")


def read_rule(value: object, where: str) -> BookingRule:
    """Return the rule of a quota's ``booking``."""
    data = values.mapping(value, where, RULE_KEYS)
    if not data:
        raise config_error(where, f"it limits nothing; known limits are {', '.join(RULE_KEYS)}")
    found = {key: values.duration(data[key], f"{where}.{key}") for key in _TIMES if key in data}
    if found.get("length") == 0:
        raise config_error(f"{where}.length", "every booking takes some time; may_book: false lets nobody book")
    if "at_once" in data:
        found["at_once"] = values.count(data["at_once"], f"{where}.at_once")
    if "approval_above" in data:
        found["approval_above"] = values.gpu_time(data["approval_above"], f"{where}.approval_above")
    if "share" in data:
        share = data["share"]
        if isinstance(share, bool) or not isinstance(share, int) or not 1 <= share <= 100:
            raise config_error(f"{where}.share", f"give a whole number of percent from 1 to 100, not {share!r}")
        found["share"] = share
    return BookingRule(**found)


def write_rule(rule: BookingRule) -> dict[str, object]:
    """Return the plain data that ``read_rule`` reads as this rule."""
    found: dict[str, object] = {}
    for key in RULE_KEYS:
        if (value := getattr(rule, key)) is not None:
            found[key] = values.write_duration(value) if key in _TIMES else value
    if rule.approval_above is not None:
        found["approval_above"] = values.write_gpu_time(rule.approval_above)
    return found


def read_blackout(value: object, where: str, zone: str) -> Blackout:
    """Return a period in which nothing can be booked; an end that is a date is included."""
    data = values.mapping(value, where, BLACKOUT_KEYS)
    for key in BLACKOUT_KEYS:
        if key not in data:
            raise config_error(f"{where}.{key}", "a blackout needs start, end and a reason, which people are told")
    start = math.floor(values.moment(data["start"], f"{where}.start", zone, 0))
    end = math.ceil(values.moment(data["end"], f"{where}.end", zone, 1))
    if end <= start:
        raise config_error(f"{where}.end", "the blackout ends before it begins")
    reason = values.text(data["reason"], f"{where}.reason", _REASON, "a reason in one line")
    return Blackout(Period(start, end), reason)


def write_blackout(blackout: Blackout, zone: str) -> dict[str, object]:
    """Return the plain data that ``read_blackout`` reads as this blackout."""
    return {
        "start": values.write_moment(blackout.period.start, zone, 0),
        "end": values.write_moment(blackout.period.end, zone, 1),
        "reason": blackout.reason,
    }
