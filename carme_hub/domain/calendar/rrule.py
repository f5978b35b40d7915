"""Parse recurrence rules of RFC 5545 and list their days, which dateutil computes one month or year at a time. Pure.

dateutil searches until it has found enough days or reached the year 9999, and some rules have no day at all: a
30 February. A query for one month or year ends with it, so any rule is expanded after about forty queries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from dateutil.rrule import rrulestr

_FREQUENCIES = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
#: Smallest and largest number of each part, and the frequencies with which RFC 5545 allows the part.
_NUMBERS = {
    "INTERVAL": (1, 366, _FREQUENCIES),
    "BYMONTH": (1, 12, _FREQUENCIES),
    "BYMONTHDAY": (-31, 31, ("DAILY", "MONTHLY", "YEARLY")),
    "BYYEARDAY": (-366, 366, ("YEARLY",)),
    "BYWEEKNO": (-53, 53, ("YEARLY",)),
    "BYSETPOS": (-366, 366, ("MONTHLY", "YEARLY")),
}
_OTHERS = ("FREQ", "COUNT", "UNTIL", "BYDAY", "WKST")
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_NUMBER = re.compile(r"[+-]?[0-9]{1,3}")
_BYDAY = re.compile(rf"([+-]?[0-9]{{1,2}})?({'|'.join(_WEEKDAYS)})")
#: Longest rule in characters: enough for a number for each day of a month.
_MAX_LENGTH = 500
#: An interval in years or months that leads beyond the year 9999, where dateutil ends its search.
_BEYOND_ALL = 120_000


class BadRule(ValueError):
    """An invalid rule; the message says what to write."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A parsed rule.

    Attributes:
        count, until: as written; one of them is "". by: all other parts.
    """

    freq: str
    interval: int
    count: str
    until: str
    by: Mapping[str, str]


def parse(text: str) -> Rule:
    """Return the parsed rule.

    Raises:
        BadRule: the rule is invalid, or never ends.
    """
    if len(text) > _MAX_LENGTH:
        raise BadRule(f"The rule is too long: it may have {_MAX_LENGTH} characters.")
    parts: dict[str, str] = {}
    for part in text.upper().strip().removeprefix("RRULE:").split(";"):
        name, equals, value = part.partition("=")
        if name not in (*_NUMBERS, *_OTHERS) or not equals or not value or name in parts:
            raise BadRule(f"{part!r} is not valid. Write a rule like FREQ=WEEKLY;BYDAY=TU;COUNT=12.")
        parts[name] = value
    if parts.get("FREQ") not in _FREQUENCIES:
        raise BadRule("FREQ is DAILY, WEEKLY, MONTHLY or YEARLY: write FREQ=WEEKLY, for example.")
    if ("COUNT" in parts) == ("UNTIL" in parts):
        raise BadRule("Set its end by either COUNT (how many times) or UNTIL (the last day).")
    _check_numbers(parts)
    _check_days(parts)
    freq, interval = parts.pop("FREQ"), int(parts.pop("INTERVAL", "1"))
    return Rule(freq, interval, parts.pop("COUNT", ""), parts.pop("UNTIL", ""), parts)


def days(rule: Rule, first: datetime, last: datetime) -> Iterator[datetime]:
    """Yield the days of a rule from ``first`` to ``last``, at the time of day of ``first``.

    Args:
        first, last: wall-clock times without an offset, some years away from the ends of the calendar.
    """
    by, first = dict(rule.by), first.replace(microsecond=0)
    if rule.freq in ("DAILY", "WEEKLY"):
        by.setdefault("BYDAY", ",".join(_WEEKDAYS) if rule.freq == "DAILY" else _WEEKDAYS[first.weekday()])
    elif by.keys().isdisjoint(("BYDAY", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO")):
        by["BYMONTHDAY"] = str(first.day)
        if rule.freq == "YEARLY":
            by.setdefault("BYMONTH", str(first.month))
    freq = "MONTHLY" if rule.freq == "MONTHLY" else "YEARLY"  # daily and weekly rules are expanded a year at a time
    query = ";".join([f"FREQ={freq}", f"INTERVAL={_BEYOND_ALL}", *(f"{name}={value}" for name, value in by.items())])
    for begin in _period_starts(rule, first, last):
        for day in rrulestr(query, dtstart=begin):
            if day > last:
                return
            if day >= first and _matches_interval(rule, first, day):
                yield day


def _period_starts(rule: Rule, first: datetime, last: datetime) -> Iterator[datetime]:
    """Yield the first days of the months or years to query."""
    month = first.year * 12 + (first.month - 1 if rule.freq == "MONTHLY" else 0)
    step = {"MONTHLY": rule.interval, "YEARLY": 12 * rule.interval}.get(rule.freq, 12)
    while month <= last.year * 12 + last.month - 1:
        yield first.replace(year=month // 12, month=month % 12 + 1, day=1)
        month += step


def _matches_interval(rule: Rule, first: datetime, day: datetime) -> bool:
    """Return whether a day matches the INTERVAL of a daily or weekly rule."""
    if rule.freq == "DAILY":
        return (day - first).days % rule.interval == 0
    if rule.freq == "WEEKLY":
        begin = first - timedelta(days=(first.weekday() - _WEEKDAYS.index(rule.by.get("WKST", "MO"))) % 7)
        return (day - begin).days // 7 % rule.interval == 0
    return True


def _check_numbers(parts: Mapping[str, str]) -> None:
    for name in _NUMBERS.keys() & parts.keys():
        (least, most, frequencies), value = _NUMBERS[name], parts[name]
        if parts["FREQ"] not in frequencies:
            raise BadRule(
                f"{name} does not go with FREQ={parts['FREQ']}. Write FREQ={frequencies[-1]}, or leave it out."
            )
        numbers = [value] if name == "INTERVAL" else value.split(",")
        if not all(_NUMBER.fullmatch(each) and int(each) and least <= int(each) <= most for each in numbers):
            below = f", or from {least} to -1" if least < 0 else ""
            raise BadRule(f"{name}={value} is not valid. Write whole numbers from 1 to {most}{below}.")


def _check_days(parts: Mapping[str, str]) -> None:
    if (start := parts.get("WKST", "MO")) not in _WEEKDAYS:
        raise BadRule(f"WKST={start} is not valid. Write the day with which a week begins: MO or SU.")
    if "BYDAY" not in parts:
        return
    wrong = f"BYDAY={parts['BYDAY']} is not valid."
    found = [_BYDAY.fullmatch(each) for each in parts["BYDAY"].split(",")]
    numbers = [int(each[1]) for each in found if each and each[1]]
    if not all(found):
        raise BadRule(f"{wrong} Write days like MO,TU, or with FREQ=MONTHLY like 1MO or -1FR.")
    if not numbers:
        return
    if parts["FREQ"] not in ("MONTHLY", "YEARLY") or "BYWEEKNO" in parts:
        raise BadRule(f"{wrong} Days can have numbers only with FREQ=MONTHLY or FREQ=YEARLY, and without BYWEEKNO.")
    if len(numbers) < len(found):
        raise BadRule(f"{wrong} Give all days or none of them a number.")
    most = 53 if parts["FREQ"] == "YEARLY" and "BYMONTH" not in parts else 5
    if not all(1 <= abs(each) <= most for each in numbers):
        raise BadRule(f"{wrong} The numbers are from 1 to {most}, or from -{most} to -1.")
