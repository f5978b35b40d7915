"""The expected start of a choice as a sentence, from free resources and from bookings.

As in ``domain.sessions.availability``, it never promises too much: a session that a booking or maintenance would delay
does not "start now", although GPUs are free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from carme_hub.domain.calendar.conflicts import ReservationConflict
from carme_hub.domain.calendar.reservations import Kind, Reservation
from carme_hub.domain.sessions.availability import Cluster, Suggestion, estimate_start, sentence, suggest_smaller
from carme_hub.domain.sessions.profile import Limit, Profile
from carme_hub.domain.sessions.session import Request
from carme_hub.spawners.form.durations import clock, duration
from carme_hub.spawners.form.slots import Bookings


def prospect(
    cluster: Cluster,
    profile: Profile,
    request: Request,
    now: float,
    *,
    virtual: bool,
    suggest: bool,
    bookings: Bookings | None,
) -> dict[str, object]:
    """Return sentence, state and suggestion for a request.

    Args:
        bookings: None without reservations.
    """
    cluster = cluster.only(request.node)
    silent = not cluster.known or bool(cluster.silent_since)
    inside = bookings.inside(request) if bookings is not None else None
    if bookings is not None and inside is not None:
        return _inside(bookings, inside, request, silent)
    seen = estimate_start(cluster, request, now)
    found = bookings.conflict(request) if bookings is not None and not silent and seen.possible else None
    if found is not None and not found.longest:
        seen = replace(seen, fits=False, expected=max(seen.expected, found.expected) if found.expected else 0.0)
    state = "wait"
    if silent:
        state = "unknown"
    elif not seen.possible:
        state = "never"
    elif seen.starts_now and found is None:
        state = "now"
    smaller = suggest_smaller(cluster, profile, request, virtual=virtual) if suggest and state != "now" else None
    text = sentence(cluster, request, seen, lambda t: clock(t, now), virtual=virtual)
    expected = seen.expected
    if bookings is not None and found is not None:
        minutes = _shorter(profile, found.longest)
        text = _warned(bookings, found, request, text, minutes, virtual)
        expected = found.expected or seen.expected
        if suggest and minutes and seen.starts_now:
            smaller = Suggestion({"time_minutes": minutes}, duration(minutes))
    if bookings is not None and (why := bookings.reason_outside(request)):
        text = f"{why}: {text}"
    return _answer(text, state, expected, smaller)


def _answer(text: str, state: str, expected: float = 0.0, smaller: Suggestion | None = None) -> dict[str, object]:
    suggestion = {"options": dict(smaller.options), "what": smaller.what} if smaller else None
    return {"sentence": text, "state": state, "expected": int(expected) or None, "suggestion": suggestion}


def _inside(bookings: Bookings, reservation: Reservation, request: Request, silent: bool) -> dict[str, object]:
    """Return the answer for a session that starts in a booking."""
    where = f"In your booking “{reservation.title}”"
    limit = f"for {duration(request.time_limit)}, until it ends at {bookings.until(reservation)}"
    if silent:
        return _answer(f"{where}, {limit}", "unknown")
    if not bookings.has_room(reservation, request.gpus.count):
        return _answer(f"{where}: all its GPUs are in use, so it waits for some", "wait")
    begin = max(bookings.now, reservation.period.start)
    starts = "starts now" if begin <= bookings.now else f"starts at {clock(begin, bookings.now)}"
    return _answer(f"{where}: {starts}, {limit}", "now", begin)


def _warned(
    bookings: Bookings, found: ReservationConflict, request: Request, text: str, minutes: int, virtual: bool
) -> str:
    """Return the sentence with the conflict, and with what can be done."""
    cause = found.causes[0] if found.causes else None
    title = bookings.title(cause) if cause is not None else ""
    named = f" ({title})" if title else ""
    if not found.longest:
        return f"{text}, after what is booked{named}"
    type = f"virtual {request.gpus.type}" if virtual and request.gpus else request.gpus.type
    which = f"all {type}" if found.all_booked else f"the {type} that are free now" if type else "the nodes free now"
    what = f"{which} are booked{named}"
    if cause is not None and cause.kind is Kind.MAINTENANCE:
        what = f"there is maintenance{named}"
    before = text.removesuffix("; starts now")
    sooner = "to start now" if before != text else "to start before that"
    take = f"take {duration(minutes)} or less {sooner}" if minutes else "this waits until after that"
    return f"{before}. From {clock(found.at, bookings.now)} {what}: {take}"


def _shorter(profile: Profile, most: int) -> int:
    """Return the profile's longest time limit of at most so many minutes, 0 if it has none."""
    limit: Limit = profile.time_minutes
    settled: Mapping[str, object] = profile.override
    if "time_minutes" in settled or any("time_minutes" in c.override for o in profile.options for c in o.choices):
        return 0
    if limit.choices:
        return max((choice for choice in limit.choices if choice <= most), default=0)
    least = 5 if most >= 10 else 1  # rounded: 1 hour 55 minutes instead of 1 hour 58 minutes
    rounded = min(most, limit.max) // least * least
    return rounded if limit.allows(rounded) else most if limit.allows(most) else 0
