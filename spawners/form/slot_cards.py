"""A user's bookings at the top of the spawn page: present ones with a start button, and those that begin soon.

A card is a form of its own with plain user options in hidden fields: it works without JavaScript, and the Enter key in
the form below never presses its button. Its options are checked like any others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carme_hub.domain.calendar import slots
from carme_hub.domain.calendar.reservations import Reservation
from carme_hub.domain.sessions.profile import Limit, Profile
from carme_hub.spawners.form.durations import clock_in_zone
from carme_hub.spawners.form.form import Offer, environment
from carme_hub.spawners.form.slots import BOOKING, Bookings


@dataclass(frozen=True, slots=True)
class Card:
    """A booking in which the user may start now.

    Attributes:
        gives: its resources as short phrases. options: posted by its button; empty = no button, and ``sentence`` says
            why. sentence: further information.
    """

    id: str
    heading: str
    title: str
    gives: tuple[str, ...]
    options: Mapping[str, str | int]
    sentence: str = ""


def cards(offer: Offer) -> tuple[Card, ...]:
    """Return a card for each booking that this user may start in now."""
    bookings = offer.bookings
    return tuple(_card(offer, bookings, each) for each in bookings.mine) if bookings is not None else ()


def lines(offer: Offer) -> tuple[str, ...]:
    """Return a sentence for each booking that begins within a day, and one if bookings cannot be read."""
    bookings = offer.bookings
    if bookings is None:
        return ()
    coming = (
        f"{'The class' if each.group else 'Your booking'} “{each.title}” begins at "
        f"{clock_in_zone(each.period.start, bookings.now, each.zone)}."
        for each in bookings.upcoming
    )
    return (*coming, *((bookings.note(),) if bookings.note() else ()))


def slots_html(offer: Offer, *, url: str = "", xsrf: str = "") -> str:
    """Return cards and sentences as HTML, "" if there are none.

    Args:
        url: to which the buttons post. xsrf: the hub's XSRF token. ``form.js`` fills in both if it shows this HTML.
    """
    found_cards, found_lines = cards(offer), lines(offer)
    if not found_cards and not found_lines:
        return ""
    template = environment().get_template("carme_slots.html")
    return template.render(cards=found_cards, lines=found_lines, url=url, xsrf=xsrf).strip()


def _card(offer: Offer, bookings: Bookings, reservation: Reservation) -> Card:
    heading = "Class now" if reservation.group else "Your booking now"
    label = _share(reservation, virtual=offer.virtual)
    until = f"until {bookings.until(reservation)}"
    about = (reservation.id, f"{heading}: {reservation.title}", reservation.title)
    options, why = _options(offer, bookings, reservation)
    if why:
        return Card(*about, (label, until), {}, why)
    sentences = [reservation.problem] if reservation.problem else []
    if not bookings.has_room(reservation, int(options["gpus"])):
        sentences.append("All its GPUs are in use now; your session waits until some are free.")
    if reservation.period.start > bookings.now:
        sentences.append(f"It begins at {clock_in_zone(reservation.period.start, bookings.now, reservation.zone)}.")
    charged = (f"charged to {reservation.account}",) if offer.accounts is not None else ()
    return Card(*about, (label, until, *charged), options, " ".join(sentences))


def _options(offer: Offer, bookings: Bookings, reservation: Reservation) -> tuple[dict[str, str | int], str]:
    """Return the options that start a session in a booking, or {} and why this user cannot."""
    accounts = offer.accounts
    if accounts is not None and reservation.account not in accounts:
        return {}, (
            f"It is charged to the Slurm account {reservation.account}, and you are not in that account. "
            f"Ask {reservation.owner}, who booked it, or the cluster’s support to add you."
        )
    named = [each for each in offer.profiles if each.slug == reservation.profile]
    if reservation.profile and not named:
        return {}, (
            f"It is for the profile {reservation.profile}, which is not offered to you. "
            f"Ask {reservation.owner}, who booked it."
        )
    why = ""
    for profile in named or offer.profiles:
        options = _asked(profile, reservation, bookings.now)
        if not options:
            continue
        if accounts is not None:
            options["account"] = reservation.account
        request, problems = offer.examine(options)
        if request is not None:
            return options, ""
        why = why or " ".join(problem.message for problem in problems)
    if not why:
        why = f"No profile that is offered to you gives {_share(reservation, virtual=offer.virtual)}. "
        why += "Ask the cluster’s support."
    return {}, why


def _share(reservation: Reservation, *, virtual: bool = False) -> str:
    """Return one session's share of a booking: 2 × a100."""
    seat = slots.seat_gpus(reservation)
    return f"{seat.count} × {'virtual ' if virtual else ''}{seat.type}"


def _asked(profile: Profile, reservation: Reservation, now: float) -> dict[str, str | int]:
    """Return the profile's options for one session's share until the booking ends; {} if it does not match."""
    seat, cpus = slots.seat_gpus(reservation), slots.seat_cpus(reservation)
    if profile.gpus is None or profile.reservation:
        return {}
    most = min(seat.count, profile.gpus.most(seat.type))
    counts = [count for count in range(most, 0, -1) if profile.gpus.count.allows(count)]
    if not counts or (reservation.need.gpus and counts[0] < seat.count and not reservation.profile):
        return {}
    asked: dict[str, str | int] = {
        "profile": profile.slug,
        "gpu_type": seat.type,
        "gpus": counts[0],
        "reservation": BOOKING + reservation.id,
    }
    settled = set(profile.override).union(*(c.override for o in profile.options for c in o.choices))
    if "time_minutes" not in settled:
        asked["time_minutes"] = _nearest_allowed(profile.time_minutes, slots.minutes_left(reservation, now))
    if cpus and profile.cpus.default > cpus and "cpus" not in settled:
        asked["cpus"] = _nearest_allowed(profile.cpus, cpus)
    return asked


def _nearest_allowed(limit: Limit, wanted: int) -> int:
    """Return the largest allowed value up to ``wanted``, or the smallest allowed value if all are larger."""
    if limit.choices:
        return max((each for each in limit.choices if each <= wanted), default=min(limit.choices))
    return min(max(wanted, limit.min), limit.max)
