"""The fields of the booking form: conversion to a booking request, and the form with an alternative taken.

All fields are text, as browsers send them, so a form that is not valid is shown again unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from carme_hub.booking.calendar import BookingRequest, Conflict
from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.recurrence import Recurrence, occurrences
from carme_hub.services.pages import BadForm
from carme_hub.services.reservations.pages.base import DAYS, checked_zone

_CODES = tuple(code for code, _, _ in DAYS)
_EVERY = {"weekly": 1, "fortnightly": 2}
_MOST = 1024
_HOUR = 3600
#: First and last day that a form accepts; the days before and after them exist in every zone, too.
_FIRST, _LAST = date(1970, 1, 2), date(8999, 12, 30)


@dataclass(frozen=True, slots=True)
class Form:
    """The fields as sent. ``without``: starts on the wall clock that are left out. ``key``: the idempotency key."""

    title: str = ""
    gpu_type: str = ""
    seats: str = "1"
    gpus: str = "1"
    start_date: str = ""
    start_time: str = ""
    end_date: str = ""
    end_time: str = ""
    zone: str = ""
    repeats: str = ""
    days: tuple[str, ...] = ()
    count: str = ""
    until: str = ""
    whom: str = "me"
    users: str = ""
    group: str = ""
    profile: str = ""
    account: str = ""
    without: tuple[str, ...] = ()
    key: str = ""

    @classmethod
    def read(cls, one: Callable[[str, str], str], several: Callable[[str], list[str]]) -> Form:
        """Return the form of a request, read by its functions for one value of a name (with a default) and for all."""
        said = {
            each.name: tuple(several(each.name)[:400])
            if each.name in ("days", "without")
            else one(each.name, str(each.default)).strip()[:20_000]
            for each in fields(cls)
        }
        return cls(**said)  # type: ignore[arg-type]

    @classmethod
    def empty(cls, now: float, zone: str, *, type: str = "", account: str = "") -> Form:
        """Return the form with defaults: two hours from the next full hour on."""
        start = datetime.fromtimestamp((int(now) // _HOUR + 1) * _HOUR, ZoneInfo(zone))
        return cls(gpu_type=type, account=account, zone=zone).at(start, start + timedelta(hours=2))

    def at(self, start: datetime, end: datetime) -> Form:
        """Return the same form at another time on the wall clock."""
        return replace(
            self,
            start_date=start.date().isoformat(),
            start_time=f"{start:%H:%M}",
            end_date=end.date().isoformat(),
            end_time=f"{end:%H:%M}",
        )

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield (name, value) of all fields, as a form sends them."""
        for each in fields(self):
            value = getattr(self, each.name)
            yield from ((each.name, one) for one in (value if isinstance(value, tuple) else (value,)))

    # -- conversion -------------------------------------------------------------------------------------------------

    def request(self, owner: str) -> BookingRequest:
        """Return the booking request without times, which are those of ``recurrence``.

        Raises:
            BadForm: a field is not valid; the message says what to type.
        """
        if not self.title:
            raise BadForm("Give it a title, so that others know what it is for.")
        if not self.gpu_type:
            raise BadForm("Choose a GPU type.")
        need = Need(self.gpu_type, _number(self.gpus, "GPUs for each seat", 0), _number(self.seats, "Seats", 1))
        users = frozenset(self.users.replace(",", " ").replace(";", " ").split()) if self.whom == "users" else ()
        if self.whom == "users" and not users:
            raise BadForm("Name the people for whom it is, or choose “Just me”.")
        if self.whom == "group" and not self.group:
            raise BadForm("Name the group or class for which it is, or choose “Just me”.")
        return BookingRequest(
            owner=owner,
            account=self.account,
            title=self.title,
            need=need,
            times=(),
            users=frozenset(users),
            group=self.group if self.whom == "group" else "",
            everybody=self.whom == "everybody",
            profile=self.profile if self.whom == "group" else "",
            zone=checked_zone(self.zone),
        )

    def recurrence(self) -> Recurrence:
        """Return its times on the wall clock of its zone."""
        start, end = self.start(), self.end()
        if end <= start:
            raise BadForm("It ends before it starts. Give a later end.")
        return Recurrence(checked_zone(self.zone), start, end, self.rule(start), frozenset(self.without))

    def once(self) -> Period:
        """Return its first time, without repetitions."""
        (one,) = occurrences(replace(self, repeats="", without=()).recurrence())
        return one.period

    def start(self) -> datetime:
        """Return its start on the wall clock."""
        return _moment(self.start_date, self.start_time, "start")

    def end(self) -> datetime:
        """Return its end on the wall clock: without a day, the next such time after the start."""
        if self.end_date:
            return _moment(self.end_date, self.end_time, "end")
        end = _moment(self.start_date, self.end_time, "end")
        return end if end > self.start() else end + timedelta(days=1)

    def rule(self, start: datetime) -> str:
        """Return its RRULE of RFC 5545; "" for a single time."""
        if self.repeats not in _EVERY:
            return ""
        days = [code for code in _CODES if code in self.days] or [_CODES[start.weekday()]]
        parts = [f"FREQ=WEEKLY;INTERVAL={_EVERY[self.repeats]}", f"BYDAY={','.join(days)}"]
        if self.count and self.until:
            raise BadForm("Give either the number of times or the last day, and leave the other empty.")
        if self.count:
            parts.append(f"COUNT={_number(self.count, 'How many times', 1)}")
        elif self.until:
            parts.append(f"UNTIL={_day(self.until, 'The last day'):%Y%m%d}")
        else:
            raise BadForm("Give the number of times, or the last day.")
        return ";".join(parts)

    @property
    def again(self) -> bool:
        """Return whether it is recurring."""
        return self.repeats in _EVERY

    # -- alternatives -----------------------------------------------------------------------------------------------

    def take(self, what: str) -> Form:
        """Return the form with an alternative taken; ``what`` is the value of the page's button.

        It is ``time:START:END`` (epoch seconds), ``seats:3``, ``type:h100``, or ``without:2026-11-24T09:00:00,…``.
        """
        kind, _, value = what.partition(":")
        try:
            if kind == "time":
                start, end = (datetime.fromtimestamp(int(at), ZoneInfo(self.zone)) for at in value.split(":"))
                return self._shifted(start.replace(tzinfo=None), end.replace(tzinfo=None))
            if kind == "seats":
                return replace(self, seats=str(int(value)))
            if kind == "type":
                return replace(self, gpu_type=value)
            if kind == "without":
                starts = (datetime.fromisoformat(each).isoformat() for each in value.split(","))
                return replace(self, without=tuple(sorted({*self.without, *starts})))
        except (ValueError, OverflowError, OSError, ZoneInfoNotFoundError) as error:
            raise BadForm("That choice is not understood. Choose again.") from error
        raise BadForm("That choice is not understood. Choose again.")

    def _shifted(self, start: datetime, end: datetime) -> Form:
        """Return the form shifted so that one of its times is the given one: by whole weeks, at the new time of day."""
        if not self.again:
            return self.at(start, end)
        first = self.start()
        nearest = start - timedelta(days=7 * round((start - first) / timedelta(days=7)))
        days = self.days if set(self.days) - {_CODES[first.weekday()]} else (_CODES[nearest.weekday()],)
        return replace(self.at(nearest, nearest + (end - start)), days=days, without=())

    def fits_days(self, period: Period) -> bool:
        """Return whether a series can be shifted there: a series on several weekdays keeps its weekdays."""
        if not self.again or not set(self.days) - {_CODES[self.start().weekday()]}:
            return True
        return _CODES[datetime.fromtimestamp(period.start, ZoneInfo(self.zone)).weekday()] in self.days


@dataclass(frozen=True, slots=True)
class Alternative:
    """A button: its value (see ``Form.take``), and its label."""

    take: str
    words: str


def alternatives(
    form: Form, conflicts: Sequence[Conflict], say: Callable[[Period], str], count: int = 1
) -> list[Alternative]:
    """Return the alternatives, the nearest first.

    Args:
        say: returns a period as a button's label. count: number of all times; at least one must be left.
    """
    explained = [each for each in conflicts if each.times or each.seats or each.types]
    found = []
    if form.again and 0 < len(conflicts) < count:
        starts = ",".join(each.time.occurrence for each in conflicts if each.time.occurrence)
        what = "that time" if len(conflicts) == 1 else f"these {len(conflicts)} times"
        found += [Alternative(f"without:{starts}", f"Leave out {what}")] if starts else []
    if explained:
        always = " every time" if form.again else ""
        for period in (_whole_minutes(each, explained[0].time.period) for each in explained[0].times):
            if form.fits_days(period):
                found.append(Alternative(f"time:{period.start}:{period.end}", f"Take {say(period)}{always}"))
        seats = min(each.seats for each in explained)
        if seats and len(explained) == len(conflicts):
            found.append(Alternative(f"seats:{seats}", f"{seats} seat{'' if seats == 1 else 's'} then"))
        for type in explained[0].types:
            if all(type in each.types for each in explained):
                found.append(Alternative(f"type:{type}", f"{type} then"))
    return found


def _whole_minutes(period: Period, wanted: Period) -> Period:
    """Return a free period from its next full minute on, since forms have no seconds, unless it begins as wanted."""
    return period if period.start == wanted.start else Period(-(-period.start // 60) * 60, period.end)


def _number(text: str, what: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and least <= int(text) <= _MOST):
        raise BadForm(f"{what}: write a whole number from {least} to {_MOST}.")
    return int(text)


def _day(text: str, what: str) -> date:
    with suppress(ValueError):
        if _FIRST <= (found := date.fromisoformat(text)) <= _LAST:
            return found
    raise BadForm(f"{what}: write a day like 2026-11-24.")


def _moment(day: str, clock: str, what: str) -> datetime:
    try:
        at = time.fromisoformat(clock)
    except ValueError as error:
        raise BadForm(f"The time of the {what}: write it like 09:00.") from error
    return datetime.combine(_day(day, f"The day of the {what}"), at.replace(tzinfo=None, second=0, microsecond=0))
