"""Who may book what, in words that say the limit and what would do."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.booking_rules import (
    Blackout,
    BookingRule,
    ExistingBooking,
    needs_approval,
    refusal,
    strictest,
)

BERLIN, HOUR, DAY = "Europe/Berlin", 3600, 86_400
NOW = int(datetime(2026, 11, 21, 12, tzinfo=ZoneInfo(BERLIN)).timestamp())


def at(hours: float, length: float = 2) -> Period:
    start = NOW + int(hours * HOUR)
    return Period(start, start + int(length * HOUR))


def said(rule: BookingRule, period: Period, *mine: ExistingBooking, blackouts: tuple[Blackout, ...] = ()) -> str:
    return refusal(rule, period, booking="new", mine=mine, blackouts=blackouts, now=NOW, zone=BERLIN)


def test_what_no_rule_forbids_can_be_booked() -> None:
    assert said(BookingRule(), at(24)) == ""
    assert said(BookingRule(ahead=DAY, length=2 * HOUR, at_once=1, cooldown=HOUR), at(24)) == ""


def test_the_past_cannot_be_booked_and_what_has_begun_can() -> None:
    assert said(BookingRule(), at(-3)) == "This is over already. Choose a later time."
    assert said(BookingRule(), at(-2)) == "This is over already. Choose a later time."
    assert said(BookingRule(), at(-1)) == ""


@pytest.mark.parametrize(
    ("rule", "period", "words"),
    [
        (
            BookingRule(ahead=14 * DAY),
            at(24 * 15),
            "You may book 14 d ahead: the latest start is on Saturday 5 December at 12:00.",
        ),
        (BookingRule(length=8 * HOUR), at(1, 9), "You may book at most 8 h at a time, and this is 9 h."),
    ],
)
def test_how_far_ahead_and_how_long(rule: BookingRule, period: Period, words: str) -> None:
    assert said(rule, period) == words


def test_a_blackout_says_why_and_touching_it_is_fine() -> None:
    exams = Blackout(at(24, 24), "The exams have the cluster.")
    assert said(BookingRule(), at(47), blackouts=(exams,)) == (
        "Nothing can be booked from Sunday 22 November at 12:00 to Monday 23 November at 12:00: "
        "The exams have the cluster."
    )
    assert said(BookingRule(), at(22), blackouts=(exams,)) == ""
    assert said(BookingRule(), at(48), blackouts=(exams,)) == ""


def test_one_that_comes_again_is_one_booking() -> None:
    weekly = tuple(ExistingBooking("class", at(24 * 7 * week)) for week in range(1, 5))
    two = BookingRule(at_once=2)
    assert said(two, at(24), *weekly) == ""
    assert said(two, at(24), *weekly, ExistingBooking("other", at(50))) == (
        "You have 2 bookings that are not over, and may have 2."
    )
    assert said(two, at(24), *weekly, ExistingBooking("over", at(-5))) == "", "what is over does not count"
    assert said(BookingRule(at_once=1), at(24), *weekly) == "You have 1 booking that is not over, and may have 1."
    assert said(BookingRule(at_once=1), at(24), ExistingBooking("new", at(48))) == "", (
        "its own other times do not count"
    )


def test_between_two_bookings_there_is_a_while() -> None:
    rest = BookingRule(cooldown=4 * HOUR)
    before, after = ExistingBooking("a", at(18)), ExistingBooking("b", at(29))
    words = "There must be 4 h between two of your bookings, and one of them "
    assert said(rest, at(23), before) == f"{words}ends on Sunday 22 November at 08:00."
    assert said(rest, at(24), before) == ""
    assert said(rest, at(24), after) == f"{words}begins on Sunday 22 November at 17:00."
    assert said(rest, at(23), after) == ""
    assert said(rest, at(1), ExistingBooking("over", at(-4))) == f"{words}ends today at 10:00."


def test_of_several_rules_the_strictest_word_counts_and_the_usual_one_where_none_speaks() -> None:
    usual = BookingRule(90 * DAY, 7 * DAY, 5, 0, None, 75)
    rules = [BookingRule(ahead=30 * DAY, cooldown=HOUR), BookingRule(ahead=14 * DAY, cooldown=2 * HOUR, share=50)]
    assert strictest(rules, usual) == BookingRule(14 * DAY, 7 * DAY, 5, 2 * HOUR, None, 50)
    assert strictest([], usual) == usual


def test_large_ones_need_an_approval() -> None:
    rule = BookingRule(approval_above=20 * GPU_HOUR)
    assert (needs_approval(rule, 20 * GPU_HOUR), needs_approval(rule, 20 * GPU_HOUR + 1)) == (False, True)
    assert not needs_approval(BookingRule(), 10**18)
