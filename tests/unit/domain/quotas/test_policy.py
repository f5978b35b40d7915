"""A policy is read from plain data exactly, written back as such, and every mistake is named with its place."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas import policy as policies
from carme_hub.domain.quotas import policy_booking
from carme_hub.domain.quotas.booking_rules import Blackout, BookingRule
from carme_hub.domain.quotas.idle.policy import KEYS as IDLE_KEYS
from carme_hub.domain.quotas.policy import REFUNDS, Permissions, Policy, dump_policy, nice_of, parse_policy, permissions
from carme_hub.domain.quotas.rules import Person, Quota, SubjectKind, Window, applicable
from carme_hub.errors import ConfigError

ROOT = Path(__file__).resolve().parents[4]
BERLIN = "Europe/Berlin"


def at(text: str, zone: str = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def one(**keys: object) -> Quota:
    """Parse a policy of one quota."""
    whose = {} if keys.keys() & {"user", "group", "role", "account"} else {"user": "*"}
    (quota,) = parse_policy({"zone": BERLIN, "quotas": [{"id": "q", **whose, **keys}]}).quotas
    return quota


def test_the_example_says_what_its_comments_say() -> None:
    policy = parse_policy(yaml.safe_load((ROOT / "examples" / "policy.yaml").read_text()))
    assert (policy.zone, policy.currency, policy.refunds) == (BERLIN, "EUR", REFUNDS)
    rules = {quota.id: quota for quota in policy.quotas}
    assert rules["student-week"] == Quota(
        "student-week",
        SubjectKind.GROUP,
        "students",
        gpu_time=20 * GPU_HOUR,
        window=Window.WEEK,
        gpu_types=("t4", "a100"),
        time_limit=8 * 3600,
        may_book=False,
    )
    assert rules["course-term"].end == at("2027-04-01T00:00")
    assert rules["everybody"].time_limit == 86400
    assert (rules["vision-month"].soft, rules["vision-month"].soft_qos) == (True, "low")
    assert rules["students-together"].together


def test_the_qos_of_a_soft_limit_is_named_as_slurm_keeps_it() -> None:
    assert one(gpu_time=1, window="day", soft=True, soft_qos="Low").soft_qos == "low"


def test_the_examples_in_the_reference_are_read() -> None:
    page = (ROOT / "docs" / "reference" / "policies.md").read_text()
    examples = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert examples
    for text in examples:
        given = yaml.safe_load(text)
        parse_policy(given if isinstance(given, dict) else {"quotas": given})


def test_every_key_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "policies.md").read_text()
    for key in (*policies._POLICY_KEYS, *policies._QUOTA_KEYS, *policy_booking.RULE_KEYS, *IDLE_KEYS):
        assert re.search(rf"^\|[^|]*`{key}`", page, flags=re.MULTILINE), key


def test_an_empty_policy_allows_everything_and_gives_every_refund() -> None:
    assert parse_policy({}) == Policy() == Policy((), None, "UTC", "EUR")
    assert parse_policy({}).refunded == REFUNDS


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        (20, 20 * GPU_HOUR),
        (0, 0),
        (0.1, GPU_HOUR // 10),
        ("20h", 20 * GPU_HOUR),
        ("20 GPU-hours", 20 * GPU_HOUR),
        ("1d", 24 * GPU_HOUR),
        ("1d 12h", 36 * GPU_HOUR),
        ("90 min", GPU_HOUR * 3 // 2),
        ("1.5 h", GPU_HOUR * 3 // 2),
        ("0.001s", 1),
    ],
)
def test_gpu_time_is_a_number_of_gpu_hours_or_a_time_with_its_unit(written: object, amount: int) -> None:
    assert one(gpu_time=written, window="total").gpu_time == amount


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("2026-10-01", "2027-03-31"),
        (date(2026, 10, 1), date(2027, 3, 31)),
        ("2026-10-01T00:00", datetime(2027, 3, 31, 22, tzinfo=UTC)),
    ],
)
def test_a_term_begins_and_ends_with_its_days_in_the_sites_zone(start: object, end: object) -> None:
    quota = one(gpu_time=1, window="term", start=start, end=end)
    assert (quota.start, quota.end) == (at("2026-10-01T00:00"), at("2027-04-01T00:00"))


def rule(**keys: object) -> dict[str, object]:
    return {"quotas": [{"id": "a", "user": "*", "sessions": 1}, {"id": "b", "group": "students", **keys}]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"zone": "Europe/Berlim"}, "zone: 'Europe/Berlim' is not a time zone. Did you mean Europe/Berlin?"),
        ({"zone": 1}, "zone: 1 is not a time zone."),
        ({"zone": "../etc/passwd"}, "zone: '../etc/passwd' is not a time zone."),
        ({"currency": "euro"}, "currency: give the three letters of ISO 4217, such as EUR, not 'euro'."),
        ({"quota": []}, "quota: unknown key. Did you mean quotas?"),
        ({"quotas": {"id": "a"}}, "quotas: give a list"),
        ({"quotas": "x"}, "quotas: give a list"),
        ({"quotas": [3]}, "quotas[0]: give keys with values"),
        ([], "policy: give keys with values"),
        ({"refunds": ["node-fail"]}, "refunds[0]: 'node-fail' is not a refund. Did you mean node-failure?"),
        ({"quotas": None}, "quotas: it has no value"),
        (rule(gpu_tme=3), "quotas[1].gpu_tme: unknown key. Did you mean gpu_time?"),
        (rule(id="a", sessions=1), "quotas[1].id: 'a' is quotas[0] already; each id is used once."),
        (rule(id="", sessions=1), "quotas[1].id: give each quota an id"),
        (rule(id=None, sessions=1), "quotas[1].id: it has no value"),
        (rule(user="ada", sessions=1), "quotas[1]: set the subject with one of user, group, role, account"),
        (rule(), "quotas[1]: it limits nothing"),
        (rule(gpu_time=3), "quotas[1].window: set the window in which"),
        (rule(gpu_time=3, window="weekly"), "quotas[1].window: 'weekly' is not a window. Did you mean week?"),
        (rule(gpu_time="3", window="week"), "quotas[1].gpu_time: give GPU-hours as a number, or a time with its unit"),
        (rule(gpu_time=True, window="week"), "quotas[1].gpu_time: give GPU-hours"),
        (rule(gpu_time=-1, window="week"), "quotas[1].gpu_time: give GPU-hours"),
        (rule(gpu_time=float("nan"), window="week"), "quotas[1].gpu_time: give GPU-hours"),
        (rule(gpu_time=float("inf"), window="week"), "quotas[1].gpu_time: give GPU-hours"),
        (rule(gpu_time="3 fortnights", window="week"), "quotas[1].gpu_time: give GPU-hours"),
        (rule(gpu_time="3h 5", window="week"), "quotas[1].gpu_time: give GPU-hours"),
        (rule(gpu_time=0.00000001, window="week"), "quotas[1].gpu_time: 1e-08 is finer than"),
        (rule(sessions=1, window="week"), "quotas[1].window: it is the time over which gpu_time is counted"),
        (rule(gpu_time=3, window="rolling"), "quotas[1].days: window: rolling needs it."),
        (rule(gpu_time=3, window="rolling", days=0), "quotas[1].days: give a whole number of days"),
        (rule(gpu_time=3, window="week", days=3), "quotas[1].days: window: week does not take it."),
        (rule(gpu_time=3, window="term", start="2026-10-01"), "quotas[1].end: window: term needs it."),
        (
            rule(gpu_time=3, window="term", start="2026-10-02", end="2026-10-01"),
            "quotas[1].end: the term ends before it begins.",
        ),
        (rule(gpu_time=3, window="term", start="soon", end="later"), "quotas[1].start: give a date such as"),
        (rule(gpu_time=3, window="term", start="2026-13-01", end="2027-01-01"), "quotas[1].start: give a date"),
        (rule(gpu_time=3, window="term", start="2026-01-01", end="9999-12-31"), "quotas[1].end: give a date"),
        (rule(sessions=1, window="term", start="0001-01-01T00:00+12:00", end="2026-01-01"), "quotas[1].start: give a"),
        (rule(sessions=1, window="term", start="2026-01-01", end="9999-12-31T23:00-05:00"), "quotas[1].end: give a"),
        (rule(sessions=1, soft=True), "quotas[1].soft: only gpu_time can be soft"),
        (rule(gpu_time=1, window="day", soft_qos="low"), "quotas[1].soft_qos: it is for soft limits"),
        (rule(gpu_time=1, window="day", soft="yes"), "quotas[1].soft: give true or false, not 'yes'."),
        (rule(sessions=1.5), "quotas[1].sessions: give a whole number from 0 on, not 1.5."),
        (rule(sessions=-1), "quotas[1].sessions: give a whole number"),
        (rule(sessions=True), "quotas[1].sessions: give a whole number"),
        (rule(time_limit=8), 'quotas[1].time_limit: give a time with its unit, such as "8h"'),
        (rule(gpu_types="a100"), "quotas[1].gpu_types: give a list, not 'a100'."),
        (rule(gpu_types=["a100", "b c"]), "quotas[1].gpu_types[1]: give a GPU type"),
        (
            {"quotas": [{"id": "q", "user": "*", "owners_approve": 5}]},
            "quotas[0].owners_approve: it is for accounts, and this quota is about users.",
        ),
        (
            {"quotas": [{"id": "q", "user": "*", "together": True, "sessions": 1}]},
            "quotas[0].together: it is for groups and roles, and this quota is about users.",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(document: dict, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_policy(document)
    assert str(error.value).startswith(message)


def test_one_no_wins_over_every_yes_and_the_highest_priority_counts() -> None:
    rules = parse_policy(
        {
            "zone": BERLIN,
            "quotas": [
                {"id": "all", "user": "*", "may_extend": True, "priority": 5},
                {"id": "students", "group": "students", "may_extend": False, "priority": 3},
                {"id": "teachers", "role": "teacher", "may_add_images": True, "priority": 100},
                {
                    **{"id": "exams", "account": "*", "window": "term", "start": "2026-07-01", "end": "2026-07-31"},
                    **{"may_book": False},
                },
            ],
        }
    ).quotas
    july, august = at("2026-07-31T23:59"), at("2026-08-01T00:00")
    student, teacher = Person("ada", frozenset({"students"})), Person("eva", roles=frozenset({"teacher"}))
    assert permissions(applicable(rules, student, "nlp"), july) == Permissions(False, False, False, 5)
    assert permissions(applicable(rules, teacher, "nlp"), august) == Permissions(True, True, True, 100)
    assert permissions((), july) == Permissions(True, True, False, 0)


def test_the_highest_priority_of_all_rules_is_not_nice_and_all_others_are_by_what_they_lack() -> None:
    rules = (
        Quota("all", SubjectKind.USER, priority=20),
        Quota("late", SubjectKind.ROLE, priority=100, window=Window.TERM, end=1.0),
    )
    assert [nice_of(rules, priority) for priority in (100, 20, 0, 300)] == [0, 80, 100, 0]
    assert nice_of((Quota("none", SubjectKind.USER, sessions=1),), 0) == nice_of((), 0) == 0
    most = one(priority=999_999_999).priority
    assert nice_of((Quota("most", SubjectKind.USER, priority=most),), 0) < 2**31 - 2  # more is no number to sbatch


names = st.sampled_from(["*", "students", "ada", "nlp-2", "Ämter & Co"])
counts = st.none() | st.integers(0, 10**6)
flags = st.none() | st.booleans()


def bookings() -> st.SearchStrategy[BookingRule]:
    """Draw a rule that says at least one thing."""
    words = {"ahead": st.integers(0, 10**9), "length": st.integers(1, 10**9), "at_once": st.integers(0, 10**6)}
    words |= {"cooldown": st.integers(0, 10**9), "approval_above": st.integers(0, 10**13), "share": st.integers(1, 100)}
    return st.fixed_dictionaries({}, optional=words).filter(bool).map(lambda drawn: BookingRule(**drawn))


def blackouts() -> st.SearchStrategy[Blackout]:
    """Draw a time; every third begins and ends with a day in UTC."""
    steps = st.sampled_from((1, 3600, 86400))
    times = st.tuples(st.integers(0, 40_000), st.integers(1, 1000), steps).map(
        lambda drawn: Period(drawn[0] * drawn[2], (drawn[0] + drawn[1]) * drawn[2])
    )
    return st.builds(Blackout, times, st.sampled_from(("Exams.", "Wartung, bis alles läuft")))


@st.composite
def quotas(draw: st.DrawFn, id: str) -> Quota:
    who, window = draw(st.sampled_from(SubjectKind)), draw(st.sampled_from(Window))
    gpu_time = draw(st.integers(0, 10**13) | st.integers(0, 10**4).map(lambda h: h * GPU_HOUR))
    soft, start = draw(st.booleans()), draw(st.integers(0, 4 * 10**9))
    term = window is Window.TERM
    timed = draw(st.booleans())
    together = draw(st.booleans()) and who in (SubjectKind.GROUP, SubjectKind.ROLE)
    return Quota(
        id,
        who,
        draw(names),
        together=together,
        gpu_time=gpu_time if timed else None,
        window=window if timed or term else Window.TOTAL,
        days=draw(st.integers(1, 3660)) if timed and window is Window.ROLLING else 0,
        start=float(start) if term else 0.0,
        end=float(start + draw(st.integers(1, 10**8))) if term else 0.0,
        soft=timed and soft,
        soft_qos=draw(st.sampled_from(["", "low"])) if timed and soft else "",
        concurrent_gpus=draw(counts),
        session_gpus=draw(counts),
        sessions=draw(st.integers(0, 9)),
        sessions_per_day=draw(counts),
        time_limit=draw(counts),
        gpu_types=draw(st.none() | st.lists(st.sampled_from(["a100", "t4", "1g.10gb"]), unique=True).map(tuple)),
        needs_grant=draw(st.booleans()),
        may_extend=draw(flags),
        may_book=draw(flags),
        may_add_images=draw(flags),
        priority=draw(counts),
        owners_approve=draw(counts) if who is SubjectKind.ACCOUNT else None,
        booking=None if together else draw(st.none() | bookings()),
    )


def chosen(said: list[bool]) -> tuple[str, ...]:
    return tuple(name for name, given_back in zip(REFUNDS, said, strict=True) if given_back)


@given(st.data(), st.integers(0, 4), st.sampled_from(["UTC", BERLIN, "Africa/Cairo", "Pacific/Apia"]))
def test_what_is_written_is_read_back_equal(data: st.DataObject, count: int, zone: str) -> None:
    policy = Policy(
        tuple(data.draw(quotas(f"q{n}")) for n in range(count)),
        data.draw(st.none() | st.lists(st.booleans(), min_size=len(REFUNDS), max_size=len(REFUNDS)).map(chosen)),
        zone,
        data.draw(st.sampled_from(["EUR", "CHF"])),
        tuple(data.draw(st.lists(blackouts(), max_size=2))),
    )
    document = dump_policy(policy)
    assert parse_policy(document) == policy
    assert parse_policy(json.loads(json.dumps(document))) == policy
    assert parse_policy(yaml.safe_load(yaml.safe_dump(document))) == policy


known_keys = st.sampled_from([*policy_booking.RULE_KEYS, *policy_booking.BLACKOUT_KEYS])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["1h", "term", "2026-10-01"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text() | known_keys, inner, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(st.sampled_from(policies._POLICY_KEYS), anything),
    st.dictionaries(st.sampled_from(policies._QUOTA_KEYS), anything, max_size=5),
)
def test_whatever_is_written_is_a_policy_or_a_named_mistake(document: dict, quota: dict) -> None:
    for written in (document, {"quotas": [{"id": "q", "user": "*", **quota}]}):
        with suppress(ConfigError):  # and nothing else
            assert dump_policy(parse_policy(written))
