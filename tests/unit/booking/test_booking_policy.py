"""What the policy lets somebody book now, by all rules about them, and how much everybody may book together."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from carme_hub.booking.rules import Rules, refused, rules_for, share_of
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.booking_rules import BookingRule, ExistingBooking
from carme_hub.domain.quotas.policy import Policy, parse_policy
from carme_hub.domain.quotas.rules import Person

BERLIN, HOUR, DAY = "Europe/Berlin", 3600, 86_400
NOW = int(datetime(2026, 11, 21, 12, tzinfo=ZoneInfo(BERLIN)).timestamp())
USUAL = BookingRule(ahead=30 * DAY, length=DAY, at_once=10, share=80)
STUDENT, TEACHER = Person("ada", frozenset({"students"})), Person("eva", roles=frozenset({"teacher"}))


def policy(*quotas: dict[str, object], blackouts: tuple[dict[str, object], ...] = ()) -> Policy:
    """Return a policy of these quotas, each with an id of its own."""
    rules = [{"id": f"q{number}", **quota} for number, quota in enumerate(quotas)]
    return parse_policy({"zone": BERLIN, "quotas": rules, "blackouts": list(blackouts)})


def rules(policy: Policy, person: Person = STUDENT, account: str = "nlp", now: float = NOW) -> Rules:
    return rules_for(policy, person, account, now, USUAL)


def said(found: Rules, hours: float, length: float = 2, *mine: ExistingBooking) -> str:
    start = NOW + int(hours * HOUR)
    return refused(found, Period(start, start + int(length * HOUR)), booking="new", mine=mine, now=NOW)


def test_without_a_policy_everybody_may_book_by_the_usual_rule() -> None:
    assert rules(Policy()) == Rules(True, USUAL, (), "UTC")


def test_rules_about_the_user_and_the_account_count_and_those_about_others_do_not() -> None:
    found = policy(
        {"user": "*", "booking": {"ahead": "20d", "cooldown": "1h"}},
        {"group": "students", "booking": {"ahead": "14d", "length": "8h", "approval_above": 32}},
        {"role": "teacher", "booking": {"ahead": "200d", "cooldown": "2h"}},
        {"account": "nlp", "booking": {"at_once": 3}},
        {"group": "students", "sessions": 1},
    )
    student = BookingRule(14 * DAY, 8 * HOUR, 3, HOUR, 32 * GPU_HOUR, 80)
    assert rules(found).rule == student
    assert rules(found, account="physics").rule == BookingRule(14 * DAY, 8 * HOUR, 10, HOUR, 32 * GPU_HOUR, 80)
    assert rules(found, TEACHER, "physics").rule == BookingRule(20 * DAY, DAY, 10, 2 * HOUR, None, 80)


def test_a_rule_may_give_more_than_the_usual_one() -> None:
    found = policy({"role": "teacher", "booking": {"ahead": "200d"}})
    assert (rules(found, TEACHER).rule.ahead, rules(found).rule.ahead) == (200 * DAY, 30 * DAY)


def test_a_rule_with_a_term_counts_for_who_books_within_it() -> None:
    exams = {"window": "term", "start": "2026-11-20", "end": "2026-11-22"}
    found = policy({"user": "*", **exams, "booking": {"length": "1h", "share": 10}, "may_book": False})
    for now, may_book, length, share in ((NOW, False, HOUR, 10), (NOW + 2 * DAY, True, DAY, 80)):
        assert rules(found, now=now).may_book is may_book
        assert rules(found, now=now).rule.length == length
        assert share_of(found, USUAL, now) == share


def test_who_may_not_book_is_told_so_first() -> None:
    found = rules(policy({"group": "students", "may_book": False}, {"user": "*", "booking": {"length": "1h"}}))
    assert said(found, 24) == "You may not book GPUs with this account."
    assert said(rules(policy({"account": "*", "booking": {"at_once": 0}})), 24) == "You may have no bookings."


def test_blackouts_are_for_everybody_and_in_the_sites_zone() -> None:
    days = {"start": "2026-11-23", "end": "2026-11-23", "reason": "The power supply is serviced."}
    found = rules(policy(blackouts=(days,)))
    assert said(found, 35, 2) == (
        "Nothing can be booked from Monday 23 November at 00:00 to Tuesday 24 November at 00:00: "
        "The power supply is serviced."
    )
    assert said(found, 34, 2) == said(found, 60, 2) == ""


def test_the_limits_of_all_rules_are_kept() -> None:
    found = rules(policy({"user": "*", "booking": {"cooldown": "4h", "length": "8h"}}))
    assert said(found, 24, 8) == ""
    assert said(found, 24, 9) == "You may book at most 8 h at a time, and this is 9 h."
    before = ExistingBooking("other", Period(NOW + 18 * HOUR, NOW + 21 * HOUR))
    assert said(found, 24, 2, before).startswith("There must be 4 h between two of your bookings")


def test_a_share_that_is_said_of_everybody_binds_all_and_one_of_some_users_binds_them_alone() -> None:
    assert share_of(Policy(), USUAL, NOW) == 80
    assert share_of(Policy(), BookingRule(), NOW) == 100
    assert share_of(policy({"user": "*", "booking": {"share": 90}}), USUAL, NOW) == 90
    both = policy({"user": "*", "booking": {"share": 60}}, {"user": "*", "booking": {"share": 50}})
    assert share_of(both, USUAL, NOW) == 50
    assert share_of(policy({"user": "*", "booking": {"length": "1h"}}), USUAL, NOW) == 80
    students = policy({"group": "students", "booking": {"share": 20}}, {"user": "*", "booking": {"share": 60}})
    assert share_of(students, USUAL, NOW) == 60
    assert (rules(students).rule.share, rules(students, TEACHER).rule.share) == (20, 60)
