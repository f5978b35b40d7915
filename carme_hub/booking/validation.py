"""What is asked for makes sense before anything is looked for: who, when, for whom, and under which title.

A start a few minutes ago is now: who fills in a form for "now" is not to be refused because typing takes time.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.recurrence import MOST, Recurrence, occurrences
from carme_hub.domain.quotas.group_names import ACCOUNT_GROUP, ROLE_GROUP

from .calendar import BookingRequest, Time
from .context import BadBooking, Booker, NotAllowed, TooFar

#: The least seconds of one reservation: Slurm starts no job, and nobody a session, in less.
SHORTEST = 300
#: Seconds by which a start may be past, and counts as now.
LATE = 300
#: Seconds from now to the last end of anything, whatever the rules say: what is later is a slip of the pen.
LAST = 3 * 366 * 86_400
#: Users who are named in one booking; more are a group.
MOST_USERS = 500
#: Roles whose people may know which groups there are; see ``carme_hub.config.ROLES``.
LISTING = frozenset({"teacher", "operator", "admin"})
_TITLE, _REASON = 200, 1000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,254}")
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
#: Unicode categories that end a line, are no text, or cannot be stored.
_UNWRITTEN = frozenset({"Cc", "Cs", "Zl", "Zp"})
#: Characters that turn what follows around, so that a title reads otherwise than it is.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@dataclass(frozen=True, slots=True)
class ExpandedRequest:
    """A wish with all its times in the place of a rule. ``notes``: what clocks do to each of them, "" = nothing."""

    wish: BookingRequest
    notes: tuple[str, ...]


def spelled_out(wish: BookingRequest, recurrence: Recurrence | None) -> ExpandedRequest:
    """Return a wish with all its times, or refuse their rule; for before a transaction, in which others wait."""
    if recurrence is None:
        _need_zone(wish.zone)
        if not 1 <= len(wish.times) <= MOST:
            raise BadBooking(f"A booking has from 1 to {MOST} times.")
        return ExpandedRequest(wish, ("",) * len(wish.times))
    found = occurrences(recurrence)
    if not found:
        raise BadBooking("All its times are left out. Leave one of them.")
    once = len(found) == 1
    times = tuple(Time(each.period, "" if once else each.id) for each in found)
    return ExpandedRequest(replace(wish, times=times, zone=recurrence.zone), tuple(each.note for each in found))


def understood(
    who: Booker, wish: BookingRequest, now: int, *, titled: bool = True, pays: bool = True, begun: int = 0
) -> BookingRequest:
    """Return a wish that makes sense now, or refuse what is wrong with it.

    Args:
        wish: with all its times. titled: whether it needs its title by now. pays: whether its account is charged with
            more than before. begun: a start that is past and stays, of what is being moved.
    """
    if wish.owner != who.user and not who.admin:
        raise NotAllowed("You may book in your own name only.")
    if not _NAME.fullmatch(wish.owner):
        raise BadBooking(f"{wish.owner[:60]!r} is no user name.")
    if pays:
        need_account(who, wish.account)
    _need_people(who, wish)
    if wish.profile and not _SLUG.fullmatch(wish.profile):
        raise BadBooking("A profile is named by its slug: lower-case letters, digits and hyphens.")
    title = line(wish.title, "title", _TITLE) if titled or wish.title.strip() else ""
    if titled and not title:
        raise BadBooking("Give it a title, so that others know what it is for.")
    times = tuple(replace(each, period=period_asked(each.period, now, begun=begun)) for each in wish.times)
    return replace(wish, title=title, times=times)


def need_account(who: Booker, account: str) -> None:
    """Refuse to charge an account of which they are no member."""
    if account in who.accounts or (who.admin and _NAME.fullmatch(account)):
        return
    if not account or not who.accounts:
        raise NotAllowed("Name a Slurm account that is to be charged; you have to be a member of it.")
    raise NotAllowed(f"You may not book for account {account[:60]}. You may for {_listed(who.accounts)}.")


def line(text: str, what: str, most: int = _REASON) -> str:
    """Return a line of text without the space around it, or refuse one that is none."""
    text = text.strip()
    if len(text) > most:
        raise BadBooking(f"The {what} has {len(text)} characters, and may have {most}.")
    if any(unicodedata.category(each) in _UNWRITTEN or each in _TURNING for each in text):
        raise BadBooking(f"The {what} is one line of plain text, without control characters.")
    return text


def title_of(text: str) -> str:
    """Return a title, or refuse it."""
    if not (title := line(text, "title", _TITLE)):
        raise BadBooking("Give it a title, so that others know what it is for.")
    return title


def period_asked(period: Period, now: int, *, begun: int = 0) -> Period:
    """Return a period that can be asked for: from now where it began a moment ago.

    Args:
        begun: a start that is past and stays.
    """
    start = period.start
    if start < now and start != begun:
        if start < now - LATE:
            raise BadBooking("It would start in the past. Choose a later start.")
        start = now
    if period.end - start < SHORTEST:
        raise BadBooking(f"It would be shorter than {SHORTEST // 60} minutes. Choose a later end.")
    if period.end - now > LAST:
        raise TooFar(f"Nothing can be booked more than {LAST // (366 * 86_400)} years ahead.")
    return Period(start, period.end)


def _need_zone(zone: str) -> None:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadBooking(f"{zone[:60]!r} is no time zone. Zones are named like Europe/Berlin.") from error


def _need_people(who: Booker, wish: BookingRequest) -> None:
    for user in sorted(wish.users):
        if not _NAME.fullmatch(user):
            raise BadBooking(f"{user[:60]!r} is no user name.")
    if len(wish.users) > MOST_USERS:
        raise BadBooking(f"A booking names at most {MOST_USERS} users. Book it for a group.")
    if wish.group and (len(wish.group) > 255 or line(wish.group, "group") != wish.group):
        raise BadBooking("There is no such group.")
    if wish.group.startswith((ACCOUNT_GROUP, ROLE_GROUP)):
        raise NotAllowed(
            "Groups of accounts and roles cannot be booked for. Book for everybody of the account, or users."
        )
    # Its members are told, and Slurm shows who they are: no matter for everybody who can type its name.
    lists = who.admin or not who.person.roles.isdisjoint(LISTING)
    if wish.group and wish.group not in who.person.groups and not lists:
        raise NotAllowed(f"You may book for groups that you are in, and you are not in {wish.group[:60]}.")


def _listed(names: Iterable[str], most: int = 5) -> str:
    known = sorted(names)
    return ", ".join(known[:most]) + (", …" if len(known) > most else "")
