"""What people are told of bookings, in sentences. Times are in the zone in which each was booked."""

from __future__ import annotations

from collections.abc import Sequence

from carme_hub.domain.calendar.capacity import Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation
from carme_hub.domain.cluster.jobs import Job
from carme_hub.domain.wording import duration, moment

from .context import ACTOR

#: The most of people's own words that a notice repeats.
_LONGEST = 300
_NAMED = 5


def confirmed(there: Sequence[Reservation], now: float) -> str:
    """Say to its owner that a booking will be."""
    one = there[0]
    return f"“{one.title}” is confirmed{_by(one)}: {_gpus(one)} {_times(there, now)}.{_because(one)}"


def moved(one: Reservation, now: float) -> str:
    """Say that a booking is at another time now."""
    who = one.owner if one.actor == one.owner else one.actor
    return f"{who} has moved “{one.title}”. It is {_from_to(one.period, one.zone, now)} now: {_gpus(one)}."


def invited(there: Sequence[Reservation], now: float) -> str:
    """Say to whom it is for that they have GPUs then."""
    one = there[0]
    return f"{one.owner} has booked {_gpus(one)} for you, “{one.title}”, {_times(there, now)}."


def waits(there: Sequence[Reservation], now: float) -> str:
    """Say to an administrator that a booking waits for them."""
    one = there[0]
    return f"{one.owner} asks for {_gpus(one)} {_times(there, now)}: “{one.title}” waits for an approval."


def cancelled(there: Sequence[Reservation], now: float) -> str:
    """Say that a booking will not be."""
    one = there[0]
    by = "" if one.actor == ACTOR else f" by {one.actor}"
    return f"“{one.title}” {_times(there, now)} was cancelled{by}.{_because(one)}"


def released(one: Reservation, now: float) -> str:
    """Say to its owner that what was left of a booking was given back."""
    when = _from_to(one.period, one.zone, now)
    return f"“{one.title}” {when} was given back{_by(one)}.{_because(one)} What it held of GPU time is given back, too."


def problem(one: Reservation, now: float) -> str:
    """Say to its owner why a booking cannot be kept now."""
    return f"“{one.title}” {_from_to(one.period, one.zone, now)}: {one.problem}"


def soon(one: Reservation, now: float) -> str:
    """Say to whom it is for that it begins."""
    left = duration(60 * max(1, round((one.period.start - now) / 60)))
    until = moment(one.period.end, now, one.zone)
    start = moment(one.period.start, now, one.zone)
    return f"“{one.title}” begins in {left}, {start}: {_gpus(one)}, until {_at(until)}."


def is_now(one: Reservation, now: float) -> str:
    """Say to whom it is for that its time is now."""
    return f"“{one.title}” is now: {_gpus(one)}, until {_at(moment(one.period.end, now, one.zone))}."


def other_nodes(one: Reservation, before: Reservation, now: float) -> str:
    """Say to its owner that a booking is on other nodes now."""
    new, old = _nodes(one.places), _nodes(before.places)
    return f"“{one.title}” {_from_to(one.period, one.zone, now)} is on {new} now, in place of {old}.{_because(one)}"


def maintenance(one: Reservation, job: Job, now: float, *, refunds: bool) -> str:
    """Say to whose session runs there that there will be maintenance, and what they can do.

    Args:
        refunds: whether the GPU time that it used is refunded when they stop it for that.
    """
    nodes = ", ".join(sorted(one.nodes & set(job.nodes)))
    begins = "has begun" if one.period.start <= now else f"begins {moment(one.period.start, now, one.zone)}"
    stop = "stop it now with a refund of the GPU time that it used" if refunds else "stop it now"
    return (
        f"Maintenance of {nodes} {begins}, and your session there may run longer than that. Save your work. On your "
        f"home page you can move the session to another node, or {stop}."
    )


def _gpus(one: Reservation) -> str:
    what = f"{one.need.gpus} {one.need.type}" if one.need.gpus else f"a whole node of {one.need.type}"
    return what if one.need.seats == 1 else f"{one.need.seats} × {what}"


def _times(there: Sequence[Reservation], now: float) -> str:
    one, more = there[0], len(there) - 1
    after = f" and {more} more time{'' if more == 1 else 's'}" if more else ""
    return _from_to(one.period, one.zone, now) + after


def _from_to(period: Period, zone: str, now: float) -> str:
    start, end = (_at(moment(at, now, zone)) for at in (period.start, period.end))
    return f"from {start} to {end}"


def _at(words: str) -> str:
    return words.removeprefix("on ")


def _nodes(places: Sequence[Place]) -> str:
    names = list(dict.fromkeys(place.node for place in places))
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + rest or "no node"


def _by(one: Reservation) -> str:
    """Return who else than its owner did that, "" where it was its owner or came by itself."""
    return "" if one.actor in ("", ACTOR, one.owner) else f" by {one.actor}"


def _because(one: Reservation) -> str:
    """Return the reason that was given, as a sentence of its own."""
    said = one.reason.strip()[:_LONGEST]
    if not said:
        return ""
    return f" Reason: {said}{'' if said[-1] in '.!?' else '.'}"
