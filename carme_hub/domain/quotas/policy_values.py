"""Parse the values of a policy's plain data, and write them so that they are parsed back equal. Pure.

An invalid value is a ``ConfigError`` that begins with its location, such as ``quotas[2].gpu_time``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from zoneinfo import ZoneInfo

from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.errors import ConfigError

from .durations import MOST, read_seconds, write_seconds
from .windows import midnight

_MOST_COUNT = 999_999_999


def moment(value: object, where: str, zone: str, after: int) -> float:
    """Return the moment of a date or a time; an end (``after`` = 1) that is a date is included."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = date.fromisoformat(value) if len(value) == 10 else datetime.fromisoformat(value)
    with suppress(OverflowError, ValueError):  # years outside of datetime's range
        if isinstance(value, datetime):
            return _in_years((value if value.tzinfo else value.replace(tzinfo=ZoneInfo(zone))).timestamp(), zone)
        if isinstance(value, date):
            return _in_years(midnight(value + timedelta(days=after), zone), zone)
    raise config_error(where, f"give a date such as 2026-10-01, or a time such as 2026-10-01T08:00, not {value!r}")


def _in_years(at: float, zone: str) -> float:
    """Return a moment that datetime can represent in UTC and in the zone; ``ValueError`` otherwise."""
    for there in (UTC, ZoneInfo(zone)):
        datetime.fromtimestamp(at, there)
    return at


def write_moment(at: float, zone: str, after: int) -> str:
    """Return a moment as ``moment`` parses it: as a date if it is at midnight."""
    day = datetime.fromtimestamp(at, ZoneInfo(zone)).date()
    if midnight(day, zone) == at:
        return (day - timedelta(days=after)).isoformat()
    return datetime.fromtimestamp(at, UTC).isoformat()


def gpu_time(value: object, where: str) -> int:
    """Return milli-GPU-seconds; a number means GPU-hours, a text has its unit."""
    hours = None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST / 3600:
        hours = Fraction(str(value))
    elif isinstance(value, str) and (seconds := read_seconds(value)) is not None:
        hours = seconds / 3600
    if hours is None:
        raise config_error(
            where, f'give GPU-hours as a number, or a time with its unit such as "90 min", not {value!r}'
        )
    amount = hours * GPU_HOUR
    if amount.denominator != 1:
        raise config_error(where, f"{value!r} is finer than a thousandth of a GPU-second")
    return int(amount)


def write_gpu_time(amount: int) -> int | str:
    """Return milli-GPU-seconds as ``gpu_time`` parses them."""
    return amount // GPU_HOUR if amount % GPU_HOUR == 0 else write_seconds(amount)


def duration(value: object, where: str) -> int:
    """Return the whole seconds of a text with a unit."""
    seconds = read_seconds(value) if isinstance(value, str) else None
    if seconds is None or seconds.denominator != 1:
        raise config_error(where, f'give a time with its unit, such as "8h", "1d 12h" or "90 min", not {value!r}')
    return int(seconds)


def write_duration(seconds: int) -> str:
    """Return seconds as ``duration`` parses them."""
    return write_seconds(seconds * 1000)


def mapping(value: object, where: str, known: Sequence[str]) -> dict[str, object]:
    """Return the dict, after a check that all keys are known and no value is empty."""
    if not isinstance(value, Mapping):
        raise config_error(where, f"give keys with values, such as {known[0]}: …, not {value!r}")
    for key, inner in value.items():
        place = f"{where}.{key}" if where != "policy" else f"{key}"
        if key not in known:
            raise config_error(place, f"unknown key. {hint(key, known)}")
        if inner is None:
            raise config_error(place, "it has no value; give it one, or leave the key out")
    return dict(value)


def items(value: object, where: str) -> list[object]:
    """Return the items of a list."""
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise config_error(where, f"give a list, not {value!r}")
    return list(value)


def flag(data: Mapping[str, object], key: str, where: str) -> bool:
    """Return the value of a key, True or False; False without the key."""
    value = data.get(key, False)
    if not isinstance(value, bool):
        raise config_error(f"{where}.{key}", f"give true or false, not {value!r}")
    return value


def count(value: object, where: str) -> int:
    """Return a whole number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_COUNT:
        raise config_error(where, f"give a whole number from 0 on, not {value!r}")
    return value


def text(value: object, where: str, pattern: re.Pattern[str], what: str) -> str:
    """Return a text that matches the pattern; ``what`` describes it in the error."""
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise config_error(where, f"give {what}, not {value!r}")
    return value


def hint(word: object, known: Sequence[str]) -> str:
    """Return a hint with the most similar known word, or with all known words."""
    found = difflib.get_close_matches(str(word), known, 1, 0.5)
    return f"Did you mean {found[0]}?" if found else f"Known: {', '.join(known)}."


def config_error(where: str, what: str) -> ConfigError:
    """Return the error that names a location and says what to do there."""
    return ConfigError(f"{where}: {what}{'' if what.endswith(('.', '?')) else '.'}")
