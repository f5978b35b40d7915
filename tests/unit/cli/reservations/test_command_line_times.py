"""Times of bookings on the command line: as people write them, and as they are written back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from carme_hub.cli.base import UsageError
from carme_hub.cli.reservations import times

BERLIN = ZoneInfo("Europe/Berlin")
#: A Tuesday, at three in the afternoon.
NOW = datetime(2026, 11, 24, 15, tzinfo=BERLIN).timestamp()


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("2026-12-01 09:00", "2026-12-01 09:00"),
        ("2026-12-01T9:00:30", "2026-12-01 09:00:30"),
        ("2026-12-01", "2026-12-01 00:00"),
        ("16:00", "2026-11-24 16:00"),
        ("9:00", "2026-11-24 09:00"),
        ("today 9:00", "2026-11-24 09:00"),
        ("tomorrow  9:00", "2026-11-25 09:00"),
        ("Thu 18:00", "2026-11-26 18:00"),
        ("tuesday 18:00", "2026-11-24 18:00"),
        ("tue 9:00", "2026-12-01 09:00"),
        ("2026-12-01 09:00+02:00", "2026-12-01 09:00+02:00"),
        ("2026-12-01T09:00Z", "2026-12-01 09:00+00:00"),
        ("now", "2026-11-24 14:00+00:00"),
    ],
)
def test_times_are_read_as_people_write_them(text: str, means: str) -> None:
    assert times.local_text(times.read_time(text, BERLIN, NOW)) == means


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("20:00", "2026-11-26 20:00"),
        ("thu 20:00", "2026-11-26 20:00"),
        ("thu 17:00", "2026-12-03 17:00"),
        ("fri 2:00", "2026-11-27 02:00"),
        ("2026-12-01", "2026-12-02 00:00"),
    ],
)
def test_an_end_is_read_from_its_start_on(text: str, means: str) -> None:
    start = times.read_time("thu 18:00", BERLIN, NOW)
    assert times.local_text(times.read_time(text, BERLIN, NOW, after=start)) == means


@pytest.mark.parametrize("text", ["", " ", "9", "25:00", "th 9:00", "noon", "2026-13-01 09:00", "20261201", "9:00 thu"])
def test_what_is_no_time_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="is no time"):
        times.read_time(text, BERLIN, NOW)


def test_a_time_that_comes_twice_is_written_so_that_it_is_read_again() -> None:
    for hour in range(24):
        moment = int((datetime(2026, 10, 24, 22, 30, tzinfo=UTC) + timedelta(hours=hour)).timestamp())
        text = times.command_time(moment, BERLIN)
        assert times.moment(times.read_time(text, BERLIN, NOW), BERLIN) == moment
        assert ("+" in text) == (hour == 3)


def test_the_zone_is_the_machines_unless_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Australia/Lord_Howe", ":Australia/Lord_Howe", "/usr/share/zoneinfo/Australia/Lord_Howe"):
        monkeypatch.setenv("TZ", name)
        assert times.local_zone() == "Australia/Lord_Howe"
    monkeypatch.delenv("TZ")
    machine = times.local_zone()
    monkeypatch.setenv("TZ", "no such zone")
    assert times.local_zone() == machine
