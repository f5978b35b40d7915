"""Bookings as iCalendar (RFC 5545), for calendar programs on computers and phones.

Each occurrence is an event of its own with UTC times: the hub has expanded the rule, and occurrences may have been
moved, so no program has to expand the rule again with another result. The library does folding, escaping and time
formats.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from icalendar import Calendar, Event

from carme_hub.domain.calendar.reservations import Reservation, State

MEDIA = "text/calendar; charset=utf-8"
#: Interval at which calendars should refresh; many ignore it.
_REFRESH = timedelta(minutes=15)
_STATUS = {
    State.DRAFT: "TENTATIVE",
    State.PENDING: "TENTATIVE",
    State.CANCELLED: "CANCELLED",
    State.RELEASED: "CONFIRMED",  # it took place until its release
}


def text(found: Iterable[Reservation], *, name: str, link: str) -> str:
    """Return a calendar.

    Args:
        name: of the calendar. link: the address of the calendar's page, with a slash at its end.
    """
    calendar = Calendar()
    calendar.add("prodid", "-//Carme Hub//GPU calendar//EN")
    calendar.add("version", "2.0")
    calendar.add("method", "PUBLISH")
    calendar.add("name", name)  # RFC 7986
    calendar.add("x-wr-calname", name)  # for older calendars, which do not read "name"
    calendar.add("refresh-interval", _REFRESH, parameters={"VALUE": "DURATION"})
    for each in found:
        calendar.add_component(_event(each, link))
    return calendar.to_ical().decode()


def _event(one: Reservation, link: str) -> Event:
    event = Event()
    event.add("uid", f"{one.id}@carme-hub")
    event.add("sequence", one.version - 1)
    event.add("dtstamp", _at(one.changed or one.created))
    event.add("created", _at(one.created))
    event.add("last-modified", _at(one.changed or one.created))
    event.add("dtstart", _at(one.period.start))
    event.add("dtend", _at(max(one.period.start + 1, one.ended or one.period.end)))
    event.add("summary", one.title)
    event.add("status", _STATUS.get(one.state, "CONFIRMED"))
    event.add("description", _words(one))
    event.add("location", ", ".join(place.node for place in one.places))
    event.add("url", f"{link}bookings/{one.id}")
    return event


def _words(one: Reservation) -> str:
    gpus = f"{one.need.seats} × {one.need.gpus or 'whole node of'} {one.need.type}"
    lines = [f"{gpus}, account {one.account}, booked by {one.owner}."]
    if one.state is State.PENDING:
        lines.append("It waits for an approval.")
    if one.waits:
        lines.append("It is on the waitlist: nothing is reserved yet.")
    return "\n".join([*lines, *([one.problem] if one.problem else [])])


def _at(moment: float) -> datetime:
    return datetime.fromtimestamp(int(moment), UTC)
