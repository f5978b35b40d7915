"""What comes again is moved and taken back one by one or together, on the wall clock, and always as a whole or not."""

from __future__ import annotations

from datetime import datetime, timedelta
from threading import Event, Thread
from zoneinfo import ZoneInfo

import pytest
from booking_parts import NOW, ROOT, FrontDesk, who, wish

from carme_hub.booking import validation
from carme_hub.booking.calendar import SlotTaken
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.recurrence import Occurrence, Recurrence
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.errors import Refused

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def wall(text: str) -> datetime:
    return datetime.fromisoformat(text)


def every(start: str, hours: float = 2, rule: str = "FREQ=WEEKLY;COUNT=6", zone: str = BERLIN) -> Recurrence:
    return Recurrence(zone, wall(start), wall(start) + timedelta(hours=hours), rule)


def utc(text: str, zone: str = BERLIN) -> int:
    return int(wall(text).replace(tzinfo=ZoneInfo(zone)).timestamp())


def times(found: tuple[Reservation, ...] | list[Reservation], zone: str = BERLIN) -> list[str]:
    """Return when each starts and ends as a clock on the wall shows it."""

    def clock(at: int) -> str:
        return datetime.fromtimestamp(at, ZoneInfo(zone)).strftime("%d.%m. %H:%M")

    return [f"{clock(each.period.start)}-{clock(each.period.end)[-5:]}" for each in found]


async def book(front: FrontDesk, recurrence: Recurrence, **more: object) -> tuple[Reservation, ...]:
    return await front.desk.book(who(), wish(**more), recurrence)  # type: ignore[arg-type]


async def test_a_rule_becomes_its_times_with_a_word_where_clocks_change(front: FrontDesk) -> None:
    daily = every("2027-03-27T02:30", 1, "FREQ=DAILY;COUNT=3")
    checked = await front.desk.check(who(), wish(), daily)
    assert [each.note for each in checked.times] == [
        "",
        "Clocks skip 02:30 on that day; it starts at 03:30.",
        "",
    ]
    found = await book(front, daily)
    assert times(found) == ["27.03. 02:30-03:30", "28.03. 03:30-04:30", "29.03. 02:30-03:30"]
    assert [each.occurrence for each in found] == [each.occurrence for each in checked.times]
    assert ({each.zone for each in found}, len({each.series for each in found})) == ({BERLIN}, 1)
    once = await book(front, every("2027-04-27T09:00", rule=""))
    assert (once[0].series, once[0].occurrence) == ("", "")


async def test_a_rule_that_makes_no_sense_is_refused_by_check_and_book_alike(front: FrontDesk) -> None:
    for bad, words in (
        (every("2027-01-05T09:00", rule="FREQ=HOURLY;COUNT=3"), "DAILY, WEEKLY"),
        (every("2026-11-17T09:00"), "start in the past"),
        (
            Recurrence(
                BERLIN, wall("2027-01-05T09:00"), wall("2027-01-05T10:00"), "", frozenset({"2027-01-05T09:00:00"})
            ),
            "left out",
        ),
    ):
        assert words in (await front.desk.check(who(), wish(), bad)).refusal
        with pytest.raises(Refused, match=words):
            await book(front, bad)
    assert front.everything() == []


async def test_nobody_is_kept_waiting_while_a_rule_is_followed(
    front: FrontDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = validation.occurrences

    def slowly(recurrence: Recurrence) -> tuple[Occurrence, ...]:
        written = Event()

        def write() -> None:
            with front.store.transaction("lab"):
                written.set()

        Thread(target=write, daemon=True).start()
        assert written.wait(5), "somebody else has to wait"
        return followed(recurrence)

    monkeypatch.setattr(validation, "occurrences", slowly)
    for key, start in (("", "2026-11-24T09:00"), ("k", "2026-11-24T12:00")):
        assert len(await front.desk.book(who(), wish(), every(start), key=key)) == 6


async def test_one_time_that_is_taken_books_none(front: FrontDesk) -> None:
    third = utc("2027-01-19T10:00")
    await front.book(Period(third, third + 3600), owner="bob", gpus=4, seats=2)
    with pytest.raises(SlotTaken) as error:
        await book(front, every("2027-01-05T09:00"))
    assert times([e.time for e in error.value.conflicts]) == ["19.01. 09:00-11:00"]  # type: ignore[misc]
    assert len(front.everything()) == 1
    assert front.sound()


@pytest.mark.parametrize("which", ["one", "later", "all"])
async def test_it_is_moved_as_far_on_the_wall_whatever_clocks_did_in_between(front: FrontDesk, which: str) -> None:
    found = await book(front, every("2027-03-09T09:00"))  # clocks go forward on 28 March
    period = Period(utc("2027-03-24T13:30"), utc("2027-03-24T16:00"))
    moved = await front.desk.move(who(), found[2].id, 1, period=period, series=which)  # type: ignore[arg-type]
    new = ["10.03. 13:30-16:00", "17.03. 13:30-16:00", "24.03. 13:30-16:00"]
    new += ["31.03. 13:30-16:00", "07.04. 13:30-16:00", "14.04. 13:30-16:00"]
    was = ["09.03. 09:00-11:00", "16.03. 09:00-11:00", "23.03. 09:00-11:00"]
    was += ["30.03. 09:00-11:00", "06.04. 09:00-11:00", "13.04. 09:00-11:00"]
    first, last = {"one": (2, 3), "later": (2, 6), "all": (0, 6)}[which]
    assert times(moved) == new[first:last]
    assert sorted(times(front.everything())) == sorted([*was[:first], *new[first:last], *was[last:]])
    assert [each.occurrence for each in moved] == [each.occurrence for each in found[first:last]]
    assert {each.version for each in moved} == {2}
    assert front.sound()


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, LORD_HOWE, "Africa/Casablanca"])
async def test_daily_times_across_a_year_move_like_clocks_on_the_wall(front: FrontDesk, zone: str) -> None:
    found = await book(front, every("2027-01-04T09:15", 1.5, "FREQ=DAILY;INTERVAL=3;COUNT=100", zone))
    step = timedelta(hours=2, minutes=20)
    period = Period(*(utc(f"2027-01-04T{clock}", zone) for clock in ("11:35", "13:35")))
    moved = await front.desk.move(who(), found[0].id, 1, period=period, series="all")
    there = ZoneInfo(zone)
    for old, new in zip(found, moved, strict=True):
        was, now = (datetime.fromtimestamp(each.period.start, there).replace(tzinfo=None) for each in (old, new))
        assert now - was == step, was
        assert datetime.fromtimestamp(new.period.end, there).replace(tzinfo=None) - now == timedelta(hours=2), now
    assert front.sound()


async def test_what_clocks_had_skipped_is_moved_from_where_the_rule_has_it(front: FrontDesk) -> None:
    found = await book(front, every("2027-03-27T02:30", 1, "FREQ=DAILY;COUNT=3"))
    period = Period(utc("2027-03-27T05:30"), utc("2027-03-27T06:30"))
    moved = await front.desk.move(who(), found[0].id, 1, period=period, series="all")
    assert [each[:12] for each in times(moved)] == ["27.03. 05:30", "28.03. 05:30", "29.03. 05:30"]


async def test_an_edge_that_is_not_moved_stays_to_the_second(front: FrontDesk) -> None:
    second = int(wall("2027-10-31T02:30").replace(tzinfo=ZoneInfo(BERLIN), fold=1).timestamp())
    one = (await front.desk.book(who(), wish(Period(second, second + 3600), zone=BERLIN)))[0]
    (moved,) = await front.desk.move(who(), one.id, 1, period=Period(second, second + 7200))
    assert moved.period == Period(second, second + 7200)
    found = await book(front, every("2027-10-30T02:30", 1, "FREQ=DAILY;COUNT=2"))
    (last,) = await front.desk.move(who(), found[1].id, 1, period=Period(second, second + 3600))
    longer = Period(found[0].period.start, found[0].period.end + 1800)
    moved = await front.desk.move(who(), found[0].id, 1, period=longer, series="all")
    assert [each.period.start for each in moved] == [found[0].period.start, last.period.start]
    assert moved[1].period.end == last.period.end + 1800


async def test_a_whole_series_may_be_moved_onto_its_own_times(front: FrontDesk) -> None:
    found = await book(front, every("2027-01-05T09:00"), gpus=4, seats=2)
    later = found[1].period
    moved = await front.desk.move(who(), found[0].id, 1, period=later, series="all")
    assert [each.period for each in moved[:-1]] == [each.period for each in found[1:]]
    assert front.sound()


async def test_what_is_in_the_way_leaves_all_as_it_was(front: FrontDesk) -> None:
    found = await book(front, every("2027-01-05T09:00"), gpus=4, seats=2)
    in_the_way = utc("2027-01-26T12:00")
    await front.book(Period(in_the_way, in_the_way + 3600), owner="bob")
    before = front.everything()
    period = Period(utc("2027-01-12T10:30"), utc("2027-01-12T12:30"))
    with pytest.raises(SlotTaken, match=r"not free at that time\. Nothing was changed") as error:
        await front.desk.move(who(), found[1].id, 1, period=period, series="later")
    (conflict,) = error.value.conflicts
    assert conflict.time.period == Period(utc("2027-01-26T10:30"), utc("2027-01-26T12:30"))
    assert Period(utc("2027-01-26T10:00"), utc("2027-01-26T12:00")) in conflict.times
    assert front.everything() == before
    assert front.sound()


async def test_a_class_that_is_on_is_not_moved_along_with_the_others(front: FrontDesk) -> None:
    found = await book(front, every("2027-01-05T09:00"))
    front.begin(found[0])
    period = Period(utc("2027-01-12T10:00"), utc("2027-01-12T12:00"))
    moved = await front.desk.move(who(), found[1].id, 1, period=period, title="Later", series="all")
    assert front.one(found[0].id).period == found[0].period
    assert {each.title for each in front.everything()} == {"Later"}
    assert len(moved) == 6
    longer = Period(found[0].period.start, found[0].period.end + 1800)
    moved = await front.desk.move(who(), found[0].id, 3, period=longer, series="all")
    assert {(each.period.length) for each in moved} == {9000}
    assert front.sound()


async def test_times_are_taken_back_one_by_one_or_together(front: FrontDesk) -> None:
    found = await book(front, every("2027-01-05T09:00"))
    (one,) = await front.desk.cancel(who(), found[1].id)
    assert (one.id, one.state) == (found[1].id, State.CANCELLED)
    later = await front.desk.cancel(who(), found[3].id, series="later")
    assert [each.id for each in later] == [each.id for each in found[3:]]
    front.begin(found[0])
    front.now += 3600
    rest = await front.desk.cancel(ROOT, found[2].id, series="all", reason="flood")
    assert [(each.id, each.state) for each in rest] == [
        (found[0].id, State.RELEASED),
        (found[2].id, State.CANCELLED),
    ]
    assert front.held() == {}
    assert front.now > NOW
