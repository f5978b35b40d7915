"""A quota's window is what people mean by today, this week, this month, the last N days and this term."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.quotas.rules import Quota, SubjectKind, Window
from carme_hub.domain.quotas.windows import FOREVER, overlap, span

BERLIN = "Europe/Berlin"
CALENDAR = (Window.DAY, Window.WEEK, Window.MONTH)
#: Zones whose clocks change at midnight, by half an hour, never, or by a whole day.
ZONES = (
    *("UTC", BERLIN, "America/New_York", "Africa/Cairo", "America/Havana", "Australia/Lord_Howe", "Asia/Kathmandu"),
    *("America/Sao_Paulo", "Pacific/Apia", "Asia/Beirut"),
)


def at(text: str, zone: str = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def rule(window: Window, **more: object) -> Quota:
    return Quota("q", SubjectKind.USER, window=window, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("window", "start", "end"),
    [
        (Window.DAY, "2026-11-26T00:00", "2026-11-27T00:00"),
        (Window.WEEK, "2026-11-23T00:00", "2026-11-30T00:00"),
        (Window.MONTH, "2026-11-01T00:00", "2026-12-01T00:00"),
    ],
)
def test_days_weeks_and_months_begin_at_midnight_of_the_zone(window: Window, start: str, end: str) -> None:
    assert span(rule(window), at("2026-11-26T14:00"), BERLIN) == (at(start), at(end))


def test_a_week_belongs_to_its_monday_across_the_turn_of_the_year() -> None:
    assert span(rule(Window.WEEK), at("2027-01-01T00:00"), BERLIN) == (at("2026-12-28T00:00"), at("2027-01-04T00:00"))


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-10-26", 24)])
def test_a_day_is_as_long_as_its_clocks_make_it(day: str, hours: int) -> None:
    start, end = span(rule(Window.DAY), at(f"{day}T12:00"), BERLIN)
    assert end - start == hours * 3600


def test_both_hours_of_the_name_two_in_autumn_are_the_same_day() -> None:
    start = at("2026-10-25T00:00")
    for seconds in (2.5 * 3600, 3.5 * 3600):
        assert span(rule(Window.DAY), start + seconds, BERLIN)[0] == start


def test_a_midnight_that_clocks_skip_is_the_moment_they_jump() -> None:
    start, end = span(rule(Window.DAY), at("2026-04-24T12:00", "Africa/Cairo"), "Africa/Cairo")
    assert start == at("2026-04-24T01:00", "Africa/Cairo")
    assert end - start == 23 * 3600


def test_the_last_days_end_now_and_know_no_clock_changes() -> None:
    now = at("2026-10-26T12:00")
    assert span(rule(Window.ROLLING, days=7), now, BERLIN) == (now - 7 * 86400, now)


def test_a_term_counts_only_within_it_and_the_total_always() -> None:
    term = rule(Window.TERM, start=at("2026-10-01T00:00"), end=at("2027-04-01T00:00"))
    for now, inside in [("2026-09-30T23:59", False), ("2026-10-01T00:00", True), ("2027-04-01T00:00", False)]:
        assert span(term, at(now), BERLIN) == (term.start, term.end)
        assert term.in_force(at(now)) is inside
    assert span(rule(Window.TOTAL), at("2026-10-01T00:00"), BERLIN) == (0.0, FOREVER)
    assert rule(Window.DAY).in_force(0.0)


@given(
    st.sampled_from(CALENDAR),
    st.sampled_from(ZONES),
    st.datetimes(datetime(2009, 1, 1), datetime(2037, 12, 31)),  # noqa: DTZ001
)
def test_every_moment_lies_in_exactly_one_window(window: Window, zone: str, when: datetime) -> None:
    now = when.replace(tzinfo=ZoneInfo(zone)).timestamp()
    start, end = span(rule(window), now, zone)
    assert start <= now < end
    assert span(rule(window), start, zone) == (start, end)
    assert span(rule(window), end - 1, zone) == (start, end)
    assert span(rule(window), end, zone)[0] == end
    longest = {Window.DAY: 1, Window.WEEK: 7, Window.MONTH: 31}[window]
    assert timedelta(0) < timedelta(seconds=end - start) <= timedelta(days=longest, hours=1)


@pytest.mark.parametrize(("start", "end", "seconds"), [(0, 5, 0), (0, 15, 5), (12, 15, 3), (5, 50, 10), (30, 40, 0)])
def test_only_what_lies_within_counts(start: float, end: float, seconds: float) -> None:
    assert overlap(start, end, (10.0, 20.0)) == seconds
