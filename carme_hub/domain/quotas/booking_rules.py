"""Limits on booking: how much of the cluster, how far ahead and how often. Pure.

All rules that apply to a user hold at once, so the strictest value of each limit counts; the site's default rule
supplies limits that no rule sets. ``carme_hub.booking.rules`` calls this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from carme_hub.domain import wording
from carme_hub.domain.calendar.periods import Period


@dataclass(frozen=True, slots=True)
class BookingRule:
    """Limits on booking; None = not set.

    Attributes:
        ahead: seconds from now to the latest start. length: seconds of one reservation.
        at_once: bookings of one user that are not over; a recurring booking counts once.
        cooldown: seconds between two reservations of one user.
        approval_above: milli-GPU-seconds of one booking above which it needs an approval.
        share: percentage of each GPU type that all users together may book at one moment.
    """

    ahead: int | None = None
    length: int | None = None
    at_once: int | None = None
    cooldown: int | None = None
    approval_above: int | None = None
    share: int | None = None


@dataclass(frozen=True, slots=True)
class Blackout:
    """A period in which nothing can be booked, and the reason."""

    period: Period
    reason: str


@dataclass(frozen=True, slots=True)
class ExistingBooking:
    """A reservation of the same user. ``booking``: the id that all occurrences of a recurring booking share."""

    booking: str
    period: Period


def strictest(rules: Iterable[BookingRule], default: BookingRule) -> BookingRule:
    """Return the strictest values of several rules."""
    known = [*rules]

    def strictest_value(name: str, *, largest: bool = False) -> int | None:
        said = [value for rule in known if (value := getattr(rule, name)) is not None]
        if not said:
            said = [value for value in (getattr(default, name),) if value is not None]
        return (max(said) if largest else min(said)) if said else None

    return BookingRule(
        strictest_value("ahead"),
        strictest_value("length"),
        strictest_value("at_once"),
        strictest_value("cooldown", largest=True),
        strictest_value("approval_above"),
        strictest_value("share"),
    )


def needs_approval(rule: BookingRule, amount: int) -> bool:
    """Return whether a booking of ``amount`` milli-GPU-seconds needs an approval."""
    return rule.approval_above is not None and amount > rule.approval_above


def refusal(
    rule: BookingRule,
    period: Period,
    *,
    booking: str,
    mine: Sequence[ExistingBooking],
    blackouts: Iterable[Blackout],
    now: float,
    zone: str,
) -> str:
    """Return why a period cannot be booked, as a sentence for the user, "" if it can.

    Args:
        booking: the booking of the period. mine: the user's reservations that are not over or ended recently, and the
            other occurrences of the same booking.
        zone: IANA zone of the times in the sentence.
    """
    if period.end <= now:
        return "This is over already. Choose a later time."
    if rule.ahead is not None and period.start - now > rule.ahead:
        latest = wording.moment(now + rule.ahead, now, zone)
        return f"You may book {wording.duration(rule.ahead)} ahead: the latest start is {latest}."
    if rule.length is not None and period.length > rule.length:
        requested = wording.duration(period.length)
        return f"You may book at most {wording.duration(rule.length)} at a time, and this is {requested}."
    for blackout in blackouts:
        if period.overlaps(blackout.period):
            edges = (wording.moment(at, now, zone) for at in (blackout.period.start, blackout.period.end))
            start, end = (words.removeprefix("on ") for words in edges)
            return f"Nothing can be booked from {start} to {end}: {blackout.reason.rstrip('.')}."
    others = [each for each in mine if each.booking != booking]
    open_now = {each.booking for each in others if each.period.end > now}
    if rule.at_once == 0:
        return "You may have no bookings."
    if rule.at_once is not None and len(open_now) >= rule.at_once:
        have = f"{len(open_now)} booking{'' if len(open_now) == 1 else 's'}"
        return f"You have {have} that {'is' if len(open_now) == 1 else 'are'} not over, and may have {rule.at_once}."
    if rule.cooldown:
        for each in sorted(others, key=lambda one: one.period):
            if period.overlaps(Period(each.period.start - rule.cooldown, each.period.end + rule.cooldown)):
                before = each.period.end <= period.start
                at = wording.moment(each.period.end if before else each.period.start, now, zone)
                return (
                    f"There must be {wording.duration(rule.cooldown)} between two of your bookings, and one of them "
                    f"{'ends' if before else 'begins'} {at}."
                )
    return ""
