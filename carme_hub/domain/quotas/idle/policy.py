"""Parse and write a policy's rules on idle sessions. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import time

from carme_hub.domain.quotas import policy_values as values
from carme_hub.domain.quotas.idle.rules import Action, IdleRule
from carme_hub.domain.quotas.policy_values import config_error
from carme_hub.domain.quotas.rules import SubjectKind

_WHO = tuple(who.value for who in SubjectKind)
KEYS = (
    *("profile", *_WHO, "after", "warn", "gpu_below", "cpu_below", "action", "still_here", "hours"),
    *("without_gpus", "in_booking", "restart_profile"),
)
_NAME = re.compile(r"\*|[^\s*][^\n]{0,254}")
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
#: The shortest idle time, and the shortest warning before its end: a report is two minutes old.
SHORTEST, SHORTEST_WARNING = 600, 120
_USUAL = IdleRule(Action.STOP)


def read_rule(value: object, where: str) -> IdleRule:
    """Return a rule.

    Raises:
        ConfigError: a key is unknown, a value is invalid, or two values contradict each other.
    """
    data = values.mapping(value, where, KEYS)
    subjects = [key for key in _WHO if key in data]
    if len(subjects) > 1:
        raise config_error(where, f"it is about one of {', '.join(_WHO)}, and not about {' and '.join(subjects)}")
    if "action" not in data:
        raise config_error(f"{where}.action", f"say what happens: {', '.join(each.value for each in Action)}")
    action = _action(data["action"], f"{where}.action")
    if action is Action.NONE:
        for key in ("after", "warn", "gpu_below", "cpu_below", "still_here", "restart_profile"):
            if key in data:
                raise config_error(f"{where}.{key}", "the rule is an exemption (action: none); leave it out")
    elif "after" not in data:
        raise config_error(f"{where}.after", 'say how long a session may be idle, such as "60 min"')
    _check_release(data, action, where)
    after = values.duration(data["after"], f"{where}.after") if "after" in data else _USUAL.after
    if after < SHORTEST:
        raise config_error(f"{where}.after", "give 10 minutes or more: what sessions do is known two minutes later")
    begin, end = _hours(data["hours"], f"{where}.hours") if "hours" in data else (time(), time())
    who = SubjectKind(subjects[0]) if subjects else None
    return IdleRule(
        action=action,
        after=after,
        warn=_warnings(data["warn"], f"{where}.warn", after) if "warn" in data else _usual_warnings(after),
        profile=_text(data, "profile", where, _SLUG, "a profile's slug"),
        who=who,
        name=values.text(data[subjects[0]], f"{where}.{subjects[0]}", _NAME, 'a name, or "*" for each') if who else "",
        gpu_below=_percent(data, "gpu_below", where, _USUAL.gpu_below),
        cpu_below=_percent(data, "cpu_below", where, _USUAL.cpu_below),
        still_here=values.count(data["still_here"], f"{where}.still_here")
        if "still_here" in data
        else _USUAL.still_here,
        begin=begin,
        end=end,
        without_gpus=values.flag(data, "without_gpus", where),
        in_booking=values.flag(data, "in_booking", where),
        restart_profile=_text(data, "restart_profile", where, _SLUG, "the slug of a profile without GPUs"),
    )


def write_rule(rule: IdleRule) -> dict[str, object]:
    """Return the plain data that ``read_rule`` reads as this rule."""
    found: dict[str, object] = {"profile": rule.profile} if rule.profile else {}
    found |= {rule.who.value: rule.name} if rule.who is not None else {}
    if rule.action is not Action.NONE:
        found |= {"after": values.write_duration(rule.after)}
        found |= {"warn": [values.write_duration(each) for each in rule.warn]}
        found |= {"gpu_below": rule.gpu_below, "cpu_below": rule.cpu_below, "still_here": rule.still_here}
    found["action"] = rule.action.value
    if rule.begin != rule.end:
        found["hours"] = f"{rule.begin:%H:%M}-{rule.end:%H:%M}"
    for key in ("without_gpus", "in_booking"):
        if getattr(rule, key):
            found[key] = True
    return found | ({"restart_profile": rule.restart_profile} if rule.restart_profile else {})


def _check_release(data: Mapping[str, object], action: Action, where: str) -> None:
    """Refuse what Slurm cannot do: GPUs leave a job at its end only, so a session without GPUs has none to release."""
    if action is not Action.RELEASE_GPUS:
        if "restart_profile" in data:
            raise config_error(
                f"{where}.restart_profile", "it belongs to action: release_gpus; leave it out, or change the action"
            )
    elif data.get("without_gpus") is True:
        raise config_error(
            f"{where}.without_gpus", "a session without GPUs has none to release; write a rule of its own, action: stop"
        )
    elif "profile" in data and data["profile"] == data.get("restart_profile"):
        raise config_error(
            f"{where}.restart_profile", "it is the profile whose GPUs are released; name one without GPUs"
        )


def _action(value: object, where: str) -> Action:
    try:
        return Action(value)
    except ValueError:
        known = [each.value for each in Action]
        raise config_error(where, f"{value!r} is not an action. {values.hint(value, known)}") from None


def _usual_warnings(after: int) -> tuple[int, ...]:
    """Return the usual warnings that fit into a short idle time."""
    return tuple(each for each in _USUAL.warn if each < after)


def _warnings(value: object, where: str, after: int) -> tuple[int, ...]:
    found = [values.duration(each, f"{where}[{n}]") for n, each in enumerate(values.items(value, where))]
    if not found:
        raise config_error(where, "nobody loses a session without a warning; give a time before the end, such as 5 min")
    for n, each in enumerate(found):
        if not SHORTEST_WARNING <= each < after:
            raise config_error(
                f"{where}[{n}]", "a warning comes 2 minutes or more before the end, and within the idle time"
            )
    return tuple(sorted(set(found), reverse=True))


def _text(data: Mapping[str, object], key: str, where: str, pattern: re.Pattern[str], what: str) -> str:
    return values.text(data[key], f"{where}.{key}", pattern, what) if key in data else ""


def _percent(data: Mapping[str, object], key: str, where: str, usual: float) -> float:
    value = data.get(key, usual)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 100:
        raise config_error(f"{where}.{key}", f"give a percentage above 0 and up to 100, not {value!r}")
    return float(value)


def _hours(value: object, where: str) -> tuple[time, time]:
    found = _HOURS.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise config_error(where, f'give the time of day in which it counts, such as "08:00-20:00", not {value!r}')
    numbers = [int(each) for each in found.groups()]
    begin, end = time(numbers[0], numbers[1]), time(numbers[2], numbers[3])
    if begin == end:
        raise config_error(where, "it begins when it ends; leave it out for the whole day")
    return begin, end
