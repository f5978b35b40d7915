"""What is not known is never idle, and nobody loses a session without the warnings that were promised."""

from __future__ import annotations

from dataclasses import replace
from datetime import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.activity.idle import MOST_BEHIND, IdleState, decide, follow, minute_is_idle
from carme_hub.domain.activity.minutes import GpuMinute, Minute
from carme_hub.domain.quotas.idle.rules import Action, IdleRule, Subject, rule_for
from carme_hub.domain.quotas.rules import SubjectKind

NOW = 1_800_000_000.0
RULE = IdleRule(Action.STOP, after=3600, warn=(1200, 300), still_here=2)
QUIET = {"cpu": 1.0, "kernels": 0, "terminals": 0, "runs": 0}
IDLE_GPU = GpuMinute(utilisation=0.0)
ALICE = Subject("alice", "physics", frozenset({"course"}), frozenset({"teacher"}), "a100", has_gpus=True)


def minute(ago: int, **changes: object) -> Minute:
    return replace(Minute(int(NOW) - 60 * ago, 60, gpus=(IDLE_GPU,), **QUIET), **changes)  # type: ignore[arg-type]


def quiet(minutes: int, now: float = NOW) -> list[Minute]:
    """Return idle minutes until two minutes before a moment."""
    last = int(now) // 60 * 60 - 120
    return [Minute(last - 60 * ago, 60, gpus=(IDLE_GPU,), **QUIET) for ago in range(minutes - 1, -1, -1)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "idle", "because"),
    [
        ({}, True, ""),
        ({"kernels": 1}, False, "1 kernel was at work"),
        ({"terminals": 2}, False, "2 terminals were at work"),
        ({"runs": 1}, False, "1 run was at work"),
        ({"gpus": (IDLE_GPU, GpuMinute(utilisation=5.0))}, False, "GPU 1 was used at 5 %"),
        ({"cpu": 10.0}, False, "its CPUs were used at 10 %"),
        # A MIG device has no utilisation, nor has a GPU that the driver has lost; without a driver there is no value.
        ({"gpus": (GpuMinute(memory=4000),)}, None, "the use of its GPUs is not known"),
        ({"gpus": (IDLE_GPU, GpuMinute())}, None, "the use of its GPUs is not known"),
        ({"gpus": ()}, None, "the use of its GPUs is not known"),
        ({"gpus": (GpuMinute(utilisation=5.0), GpuMinute())}, False, "GPU 0 was used at 5 %"),
        ({"kernels": None}, None, "its server says nothing of its kernels and terminals"),
        ({"terminals": None}, None, "its server says nothing of its kernels and terminals"),
        ({"runs": None}, None, "its server says nothing of its kernels and terminals"),
        ({"cpu": None}, None, "the use of its CPUs is not known"),
        # What is known to be at work needs nothing else.
        ({"kernels": 1, "terminals": None, "cpu": None}, False, "1 kernel was at work"),
    ],
)
def test_a_minute_is_idle_only_if_everything_says_so(
    changes: dict[str, object], idle: bool | None, because: str
) -> None:
    assert minute_is_idle(minute(2, **changes), RULE) == (idle, because)


def test_a_session_without_gpus_needs_no_use_of_them() -> None:
    bare = [replace(each, gpus=()) for each in quiet(30)]
    assert minute_is_idle(bare[0], RULE, has_gpus=False) == (True, "")
    tail = follow(None, bare, RULE, has_gpus=False)
    assert tail is not None
    assert tail.since == bare[0].at


def whole(minutes: list[Minute], now: float = NOW, **changes: object) -> IdleState:
    given: dict[str, object] = {"clicks": (), "warned": (), "companions": 0, **changes}
    return decide(RULE, follow(None, minutes, RULE), now=now, **given)  # type: ignore[arg-type]


def decided(minutes: list[Minute], now: float = NOW, **changes: object) -> tuple[str, float, float, int]:
    found = whole(minutes, now, **changes)
    return found.state, found.since, found.deadline, found.warning


def test_the_deadline_is_after_the_begin_of_the_idle_time() -> None:
    since = quiet(30)[0].at
    assert decided(quiet(30)) == ("idle", since, since + 3600, 0)
    busy = minute(20, kernels=1)
    some = [busy if each.at == busy.at else each for each in quiet(30)]
    assert decided(some)[1] == busy.at + 60


def test_a_session_that_works_or_of_which_nothing_is_known_is_left_alone() -> None:
    assert whole([*quiet(59), minute(1, runs=1)]).state == "active"
    unknown = whole([*quiet(300), minute(1, kernels=None)])
    assert (unknown.state, unknown.because) == (
        "unknown",
        "Its server says nothing of its kernels and terminals.",
    )
    assert decided([])[0] == "unknown"
    assert decided(quiet(300, NOW - MOST_BEHIND))[0] == "unknown", "it reports no more"
    assert decided(quiet(300), companions=1)[0] == "active"


def test_a_gap_in_the_reports_begins_the_idle_time_anew() -> None:
    before, after = quiet(300)[:200], quiet(20)
    assert decided([*before, *after])[1] == after[0].at


def test_its_user_is_warned_twice_and_then_it_is_due() -> None:
    minutes = quiet(42)
    since = minutes[0].at
    first = since + 3600 - 1200
    assert decided(minutes, first - 1)[0] == "idle"
    assert decided(minutes, first) == ("warn", since, since + 3600, 1200)
    later = since + 3600 - 300
    both = quiet(60, later)
    warned = ((first, 1200),)
    assert decided(both, later, warned=warned) == ("warn", both[0].at, max(both[0].at + 3600, later + 300), 300)


def test_nobody_is_stopped_at_the_first_look_after_the_service_was_away() -> None:
    minutes = quiet(600)
    state, since, deadline, warning = decided(minutes)
    assert (state, warning) == ("warn", 1200)
    assert deadline == NOW + 1200, "it was due hours ago, and has all of the time that the warning promises"
    now = NOW + 1200
    assert decided(quiet(620, now), now, warned=((NOW, 1200),))[::3] == ("warn", 300)
    now += 299
    again = ((NOW, 1200), (NOW + 1200, 300))
    assert decided(quiet(624, now), now, warned=again)[0] == "idle"
    assert decided(quiet(625, now + 1), now + 1, warned=again)[0] == "due"
    assert since == minutes[0].at


def test_warnings_of_an_earlier_idle_time_do_not_count() -> None:
    old = ((NOW - 9000, 1200), (NOW - 8000, 300))
    assert decided(quiet(100), warned=old)[::3] == ("warn", 1200)


def test_still_here_begins_the_time_anew_as_often_as_the_rule_allows() -> None:
    minutes = quiet(300)
    assert decided(minutes, clicks=(NOW - 60,))[:3] == ("idle", NOW - 60, NOW - 60 + 3600)
    late = (NOW - 9000, NOW - 8000, NOW - 60)  # the third is one too many
    assert decided(minutes, clicks=late)[1] == NOW - 8000
    assert decided(minutes, clicks=(NOW + 600,))[1] == minutes[0].at, "a click in the future"


@given(
    st.lists(st.booleans() | st.none(), min_size=1, max_size=120),
    st.lists(st.tuples(st.integers(0, 7200), st.sampled_from([1200, 300])), max_size=4),
)
def test_it_is_due_only_after_an_hour_of_known_idleness_and_both_warnings(
    pattern: list[bool | None], warnings: list[tuple[int, int]]
) -> None:
    last = int(NOW) - 120
    minutes = [
        minute((int(NOW) - last) // 60 + len(pattern) - 1 - place, kernels=None if idle is None else int(not idle))
        for place, idle in enumerate(pattern)
    ]
    warned = tuple((NOW - ago, seconds) for ago, seconds in warnings)
    state, since, _, _ = decided(minutes, warned=warned)
    if state == "due":
        tail = pattern[-60:]
        assert len(tail) >= 58
        assert all(tail)
        for seconds in RULE.warn:
            assert any(of == seconds and since <= at <= NOW - seconds for at, of in warned)
    if pattern[-1] is not True:
        assert state in ("active", "unknown")


@given(st.lists(st.sampled_from([0, 1, None]), min_size=1, max_size=30), st.integers(0, 30), st.integers(0, 29))
def test_following_a_session_comes_to_what_the_whole_says(pattern: list[int | None], cut: int, gap: int) -> None:
    minutes = [minute(60 - place, kernels=kernels) for place, kernels in enumerate(pattern) if place != gap]
    first = follow(None, minutes[:cut], RULE)
    assert follow(first, minutes, RULE) == follow(first, minutes[cut:], RULE) == follow(None, minutes, RULE)


@pytest.mark.parametrize(
    ("rule", "subject", "fits"),
    [
        (RULE, ALICE, True),
        (replace(RULE, profile="a100"), ALICE, True),
        (replace(RULE, profile="h100"), ALICE, False),
        (replace(RULE, who=SubjectKind.ACCOUNT, name="physics"), ALICE, True),
        (replace(RULE, who=SubjectKind.ACCOUNT, name="biology"), ALICE, False),
        (replace(RULE, who=SubjectKind.GROUP, name="course"), ALICE, True),
        (replace(RULE, who=SubjectKind.ROLE, name="*"), ALICE, True),
        (replace(RULE, who=SubjectKind.USER, name="bob"), ALICE, False),
        (RULE, replace(ALICE, has_gpus=False), False),
        (replace(RULE, without_gpus=True), replace(ALICE, has_gpus=False), True),
        (RULE, replace(ALICE, booked=True), False),
        (replace(RULE, in_booking=True), replace(ALICE, booked=True), True),
        (replace(RULE, in_booking=True), ALICE, False),
    ],
)
def test_a_rule_is_for_whom_it_names(rule: IdleRule, subject: Subject, fits: bool) -> None:
    assert subject.fits(rule) is fits
    assert (rule_for([rule], subject, NOW, "UTC") is rule) == fits


def test_the_first_rule_that_fits_counts_also_where_it_is_an_exemption() -> None:
    exempt = IdleRule(Action.NONE, who=SubjectKind.USER, name="alice")
    assert rule_for([exempt, RULE], ALICE, NOW, "UTC") is None
    assert rule_for([RULE, exempt], ALICE, NOW, "UTC") is RULE
    assert rule_for([], ALICE, NOW, "UTC") is None


@pytest.mark.parametrize(
    ("begin", "end", "hours"),
    [
        (time(8), time(20), range(8, 20)),
        (time(20), time(6), [*range(20, 24), *range(6)]),
        (time(3), time(3), range(24)),
    ],
)
def test_a_rule_is_in_force_at_its_time_of_day(begin: time, end: time, hours: object) -> None:
    rule = replace(RULE, begin=begin, end=end)
    midnight = NOW - NOW % 86400
    for hour in range(24):
        assert rule.in_force(midnight + 3600 * hour, "UTC") == (hour in hours)  # type: ignore[operator]


def test_after_a_break_its_user_has_the_time_of_the_last_warning() -> None:
    minutes = quiet(62)
    warned = ((NOW - 1300, 1200), (NOW - 400, 300))
    assert decided(minutes, warned=warned)[0] == "due"
    state, _, deadline, _ = decided(minutes, warned=warned, watched_since=NOW - 60)
    assert (state, deadline) == ("idle", NOW - 60 + 300)
    assert decided(minutes, warned=warned, watched_since=NOW - 300)[0] == "due"


def test_a_warning_whose_end_has_passed_counts_no_more_unless_nothing_is_taken() -> None:
    minutes = quiet(300)
    warned = ((NOW - 7000, 1200), (NOW - 6000, 300))
    state, _, deadline, warning = decided(minutes, warned=warned)
    assert (state, deadline, warning) == ("warn", NOW + 1200, 1200)
    tell = replace(RULE, action=Action.TELL)
    found = decide(tell, follow(None, minutes, tell), clicks=(), warned=warned, companions=0, now=NOW)
    assert found.state == "due", "nobody is told the same again and again"


def test_what_its_server_says_to_be_at_work_begins_the_time_anew_however_often() -> None:
    minutes = quiet(300)
    state, since, deadline, _ = decided(minutes, at_work=tuple(NOW - 600 * ago for ago in range(9)))
    assert (state, since, deadline) == ("idle", NOW, NOW + 3600)
