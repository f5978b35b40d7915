"""A policy says who may book what, in times and numbers that are read exactly, and when nobody may."""

from __future__ import annotations

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.booking_rules import Blackout, BookingRule
from carme_hub.domain.quotas.decision import decide
from carme_hub.domain.quotas.policy import dump_policy, parse_policy
from carme_hub.domain.quotas.replay import replay
from carme_hub.domain.quotas.rules import Facts, Person, Quota, QuotaRequest, applicable
from carme_hub.domain.quotas.slurm_limits import Entity, State, plan
from carme_hub.errors import ConfigError

BERLIN = "Europe/Berlin"


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(BERLIN)).timestamp())


def one(booking: object, **whose: object) -> Quota:
    (quota,) = parse_policy({"quotas": [{"id": "q", **(whose or {"user": "*"}), "booking": booking}]}).quotas
    return quota


def blackout(**keys: object) -> Blackout:
    (found,) = parse_policy({"zone": BERLIN, "blackouts": [{"reason": "Exams.", **keys}]}).blackouts
    return found


def test_every_limit_on_booking_is_read() -> None:
    written = {
        "ahead": "14d",
        "length": "8h",
        "at_once": 3,
        "cooldown": "1 h 30 min",
        "approval_above": 32,
        "share": 50,
    }
    assert one(written).booking == BookingRule(14 * 86400, 8 * 3600, 3, 5400, 32 * GPU_HOUR, 50)


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ({"ahead": "0h"}, BookingRule(ahead=0)),
        ({"at_once": 0}, BookingRule(at_once=0)),
        ({"approval_above": 0}, BookingRule(approval_above=0)),
        ({"approval_above": "90 min"}, BookingRule(approval_above=GPU_HOUR * 3 // 2)),
        ({"share": 100}, BookingRule(share=100)),
    ],
)
def test_a_quota_may_say_one_thing_of_booking_and_nothing_else(written: dict[str, object], rule: BookingRule) -> None:
    assert one(written).booking == rule


def test_whatever_is_said_of_booking_is_written_as_it_is_best_read() -> None:
    rule = {"ahead": "336h", "length": "1h 30min", "at_once": 3, "cooldown": "0s", "approval_above": 32, "share": 50}
    times = [
        {"start": "2026-12-24", "end": "2026-12-26", "reason": "Power."},
        {"start": "2027-01-07T07:30:00+00:00", "end": "2027-01-07", "reason": "Move"},
    ]
    document = {
        "zone": BERLIN,
        "currency": "EUR",
        "quotas": [{"id": "q", "user": "*", "booking": rule}],
        "blackouts": times,
    }
    assert dump_policy(parse_policy(document)) == document
    assert "blackouts" not in dump_policy(parse_policy({}))


@pytest.mark.parametrize(
    ("start", "end", "begins", "ends"),
    [
        ("2026-12-24", "2026-12-26", "2026-12-24T00:00", "2026-12-27T00:00"),
        (date(2026, 3, 29), date(2026, 3, 29), "2026-03-29T00:00", "2026-03-30T00:00"),  # a day of 23 hours
        ("2026-12-24T08:00", datetime(2026, 12, 24, 11, 30, tzinfo=UTC), "2026-12-24T08:00", "2026-12-24T12:30"),
        ("2026-12-24T08:00:00.5+01:00", "2026-12-24T09:00:00.5+01:00", "2026-12-24T08:00", "2026-12-24T09:00:01"),
    ],
)
def test_a_blackout_is_from_a_day_or_a_time_in_the_sites_zone(
    start: object, end: object, begins: str, ends: str
) -> None:
    assert blackout(start=start, end=end) == Blackout(Period(at(begins), at(ends)), "Exams.")


KNOWN = "ahead, length, at_once, cooldown, approval_above, share"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({}, f"booking: it limits nothing; known limits are {KNOWN}."),
        ("14d", "booking: give keys with values, such as ahead: …, not '14d'."),
        ({"lenght": "8h"}, "booking.lenght: unknown key. Did you mean length?"),
        ({"days": 3}, f"booking.days: unknown key. Known: {KNOWN}."),
        ({"ahead": 14}, 'booking.ahead: give a time with its unit, such as "8h", "1d 12h" or "90 min", not 14.'),
        ({"cooldown": "0.5s"}, "booking.cooldown: give a time with its unit"),
        ({"cooldown": None}, "booking.cooldown: it has no value; give it one, or leave the key out."),
        ({"length": "0h"}, "booking.length: every booking takes some time; may_book: false lets nobody book."),
        ({"at_once": True}, "booking.at_once: give a whole number from 0 on, not True."),
        ({"approval_above": -1}, "booking.approval_above: give GPU-hours as a number, or a time with its unit"),
        ({"share": 0}, "booking.share: give a whole number of percent from 1 to 100, not 0."),
        ({"share": 101}, "booking.share: give a whole number of percent from 1 to 100, not 101."),
        ({"share": 0.5}, "booking.share: give a whole number of percent from 1 to 100, not 0.5."),
        ({"share": True}, "booking.share: give a whole number of percent from 1 to 100, not True."),
    ],
)
def test_a_mistake_about_booking_is_named_with_its_place(written: object, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        one(written)
    assert str(error.value).startswith(f"quotas[0].{message}")


def test_limits_on_booking_are_not_shared_by_a_group() -> None:
    with pytest.raises(ConfigError) as error:
        one({"at_once": 1}, group="students", together=True)
    assert str(error.value) == (
        "quotas[0].together: limits on booking are each user's own; give booking a quota without together."
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"end": "2026-12-26"}, "start: a blackout needs start, end and a reason, which people are told."),
        ({"start": "2026-12-24"}, "end: a blackout needs start, end and a reason"),
        ({"start": "2026-12-24", "end": "2026-12-26", "reason": ""}, "reason: give a reason in one line, not ''."),
        ({"start": "2026-12-24", "end": "2026-12-23"}, "end: the blackout ends before it begins."),
        ({"start": "2026-12-24T08:00", "end": "2026-12-24T08:00"}, "end: the blackout ends before it begins."),
        ({"start": "Christmas", "end": "2026-12-23"}, "start: give a date such as 2026-10-01, or a time such as"),
        ({"start": "2026-12-24", "end": "9999-12-31T23:59"}, "end: give a date such as"),
        ({"start": "2026-12-24", "ends": "2026-12-26"}, "ends: unknown key. Did you mean end?"),
    ],
)
def test_a_mistake_in_a_blackout_is_named_with_its_place(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_policy({"zone": "America/New_York", "blackouts": [{"reason": "Exams.", **keys}]})
    assert str(error.value).startswith(f"blackouts[0].{message}")


def test_limits_on_booking_alone_are_nothing_to_sessions_to_slurm_and_to_a_replay() -> None:
    policy = parse_policy(
        {
            "quotas": [
                {"id": "all", "user": "*", "booking": {"length": "1h", "at_once": 0, "share": 1}},
                {"id": "group", "group": "*", "booking": {"ahead": "1h"}},
                {"id": "account", "account": "*", "booking": {"approval_above": 0}},
            ],
            "blackouts": [{"start": "1970-01-01", "end": "2100-01-01", "reason": "Never."}],
        }
    )
    person = Person("ada", frozenset({"lab"}))
    rules = applicable(policy.quotas, person, "physics")
    assert len(rules) == 3
    assert decide(rules, QuotaRequest("physics", Gpus("a100", 8), 86400), Facts(1e9), zone="UTC").granted
    slurm = State(
        "c",
        {(Entity.ACCOUNT, "physics"): {}, (Entity.USER, "physics/ada"): {}},
        frozenset({"gres/gpu", "gres/gpu:a100"}),
    )
    wanted = plan(policy.quotas, slurm, now=1e9, people={"ada": person})
    assert (wanted.changes, wanted.unenforced) == ((), ())
    job = Usage(
        *(1, "1", "x", "ada", "physics", "gpu", "normal", "COMPLETED", Phase.TERMINAL),
        *(1e9, 1e9, 1e9 + 60, (Gpus("a100", 8),), "n1", 86400),
    )
    assert replay(policy, [job], {"ada": person}, now=1e9 + 3600).total.refused == 0
