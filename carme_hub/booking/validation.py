"""Validation of booking requests before any search for places: owner, times, users and title.

A start up to a few minutes ago counts as now, so that nobody is refused for the time that filling in a form takes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.recurrence import MAX_OCCURRENCES, Recurrence, occurrences
from carme_hub.domain.quotas.group_names import ACCOUNT_GROUP, ROLE_GROUP

from .calendar import BookingRequest, RequestedTime
from .context import BadBooking, Booker, NotAllowed, TooFar

#: Shortest reservation in seconds: a job or session needs about as long to start.
MIN_SECONDS = 300
#: Seconds by which a start may be past; then it counts as now.
START_TOLERANCE = 300
#: Seconds from now to the latest end, whatever the rules allow: a later one is most likely a typing error.
MAX_AHEAD = 3 * 366 * 86_400
#: Users that one booking may name; for more, a booking names a group.
MAX_USERS = 500
#: Roles whose members may list all groups; see ``carme_hub.config.ROLES``.
GROUP_LISTING_ROLES = frozenset({"teacher", "operator", "admin"})
_TITLE, _REASON = 200, 1000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,254}")
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
#: Unicode categories that end a line, are no text, or cannot be stored.
_FORBIDDEN_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
#: Characters that change the direction of the following text, so that a title would be displayed in another order.
_BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@dataclass(frozen=True, slots=True)
class ExpandedRequest:
    """A request with its times instead of a rule. ``notes``: for each time, the effect of a clock change, "" = none."""

    request: BookingRequest
    notes: tuple[str, ...]


def expanded(request: BookingRequest, recurrence: Recurrence | None) -> ExpandedRequest:
    """Return a request with all its times; raise if the rule is not valid.

    It is called before the transaction, since all other writers wait during one.
    """
    if recurrence is None:
        _check_zone(request.zone)
        if not 1 <= len(request.times) <= MAX_OCCURRENCES:
            raise BadBooking(f"A booking has from 1 to {MAX_OCCURRENCES} times.")
        return ExpandedRequest(request, ("",) * len(request.times))
    found = occurrences(recurrence)
    if not found:
        raise BadBooking("All its times are left out. Keep at least one.")
    once = len(found) == 1
    times = tuple(RequestedTime(each.period, "" if once else each.id) for each in found)
    return ExpandedRequest(replace(request, times=times, zone=recurrence.zone), tuple(each.note for each in found))


def validated(
    who: Booker, request: BookingRequest, now: int, *, titled: bool = True, pays: bool = True, begun: int = 0
) -> BookingRequest:
    """Return a valid request; raise ``BadBooking``, ``NotAllowed`` or ``TooFar`` otherwise.

    Args:
        request: with all its times. titled: whether a title is required. pays: whether the account is charged more
            than before. begun: start of a moved reservation that has begun: it is past, and stays.
    """
    if request.owner != who.user and not who.admin:
        raise NotAllowed("You may book in your own name only.")
    if not _NAME.fullmatch(request.owner):
        raise BadBooking(f"{request.owner[:60]!r} is not a user name.")
    if pays:
        check_account(who, request.account)
    _check_people(who, request)
    if request.profile and not _SLUG.fullmatch(request.profile):
        raise BadBooking("Name the profile by its slug: lower-case letters, digits and hyphens.")
    title = single_line(request.title, "title", _TITLE) if titled or request.title.strip() else ""
    if titled and not title:
        raise BadBooking("Give it a title, so that others know what it is for.")
    times = tuple(replace(each, period=validated_period(each.period, now, begun=begun)) for each in request.times)
    return replace(request, title=title, times=times)


def check_account(who: Booker, account: str) -> None:
    """Raise ``NotAllowed`` if the booker is not a member of the account."""
    if account in who.accounts or (who.admin and _NAME.fullmatch(account)):
        return
    if not account or not who.accounts:
        raise NotAllowed("Name the Slurm account to charge; you have to be a member of it.")
    raise NotAllowed(f"You may not charge account {account[:60]}. You may charge {_listed(who.accounts)}.")


def single_line(text: str, what: str, most: int = _REASON) -> str:
    """Return a stripped line of text; raise ``BadBooking`` if it is too long or not one line of plain text."""
    text = text.strip()
    if len(text) > most:
        raise BadBooking(f"The {what} has {len(text)} characters; at most {most} are allowed.")
    if any(unicodedata.category(each) in _FORBIDDEN_CATEGORIES or each in _BIDI_CONTROLS for each in text):
        raise BadBooking(f"The {what} must be one line of plain text, without control characters.")
    return text


def title_of(text: str) -> str:
    """Return a valid title; raise ``BadBooking`` otherwise."""
    if not (title := single_line(text, "title", _TITLE)):
        raise BadBooking("Give it a title, so that others know what it is for.")
    return title


def validated_period(period: Period, now: int, *, begun: int = 0) -> Period:
    """Return a valid period, from now on if it began a moment ago; raise ``BadBooking`` or ``TooFar`` otherwise.

    Args:
        begun: a start that is past and stays.
    """
    start = period.start
    if start < now and start != begun:
        if start < now - START_TOLERANCE:
            raise BadBooking("The booking would start in the past. Choose a later start.")
        start = now
    if period.end - start < MIN_SECONDS:
        raise BadBooking(f"The booking would be shorter than {MIN_SECONDS // 60} minutes. Choose a later end.")
    if period.end - now > MAX_AHEAD:
        raise TooFar(f"Nothing can be booked more than {MAX_AHEAD // (366 * 86_400)} years ahead.")
    return Period(start, period.end)


def _check_zone(zone: str) -> None:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadBooking(f"{zone[:60]!r} is not a time zone. Zones have names such as Europe/Berlin.") from error


def _check_people(who: Booker, request: BookingRequest) -> None:
    for user in sorted(request.users):
        if not _NAME.fullmatch(user):
            raise BadBooking(f"{user[:60]!r} is not a user name.")
    if len(request.users) > MAX_USERS:
        raise BadBooking(f"A booking names at most {MAX_USERS} users. Book it for a group.")
    if request.group and (len(request.group) > 255 or single_line(request.group, "group") != request.group):
        raise BadBooking("There is no such group.")
    if request.group.startswith((ACCOUNT_GROUP, ROLE_GROUP)):
        raise NotAllowed(
            "You cannot book for the group of an account or role. Book for everybody of the account, or for users."
        )
    # A group's members are notified, and Slurm shows their names, so its name alone must not be enough to book for it.
    lists = who.admin or not who.person.roles.isdisjoint(GROUP_LISTING_ROLES)
    if request.group and request.group not in who.person.groups and not lists:
        raise NotAllowed(f"You may book for groups that you are in, and you are not in {request.group[:60]}.")


def _listed(names: Iterable[str], most: int = 5) -> str:
    known = sorted(names)
    return ", ".join(known[:most]) + (", …" if len(known) > most else "")
