"""Which images which nodes need soon, by the calendar. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from carme_hub.domain.calendar.reservations import PROMISED, Kind, Reservation
from carme_hub.domain.sessions.profile import Profile

#: Seconds before a booking's start from which on its images are fetched, as a rule.
AHEAD = 24 * 3600.0


def image_of_profile(profile: Profile | None, images: Collection[str]) -> str:
    """Return the image with which sessions of a profile start unless their users choose another; "" = none.

    Args:
        profile: None = any. images: names of the site's images, the default first.
    """
    if profile is not None:
        fixed = profile.override.get("image")
        if isinstance(fixed, str):
            return fixed
        if found := [name for name in profile.images if name in images]:
            return found[0]
    return next(iter(images), "")


def wanted(
    node: str,
    bookings: Iterable[Reservation],
    profiles: Mapping[str, Profile],
    images: Collection[str],
    now: float,
    ahead: float = AHEAD,
) -> list[str]:
    """Return the names of images that a node needs, those of the earliest booking first.

    Args:
        bookings: of the calendar; those that begin within ``ahead`` seconds, or run, count.
    """
    of_node = [
        each
        for each in bookings
        if each.kind is Kind.BOOKING and each.state in PROMISED and node in each.nodes
        if each.period.end > now and each.period.start <= now + ahead
    ]
    found = (image_of_profile(profiles.get(each.profile), images) for each in sorted(of_node, key=_start))
    return [name for name in dict.fromkeys(found) if name]


def _start(reservation: Reservation) -> float:
    return reservation.period.start
