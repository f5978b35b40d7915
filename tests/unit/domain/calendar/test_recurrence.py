"""What comes again is at the same time on the wall, in every zone and across every change of clocks."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from time import process_time
from zoneinfo import ZoneInfo

import pytest
from dateutil import tz
from dateutil.rrule import rrulestr
from hypothesis import example, given, settings
from hypothesis import strategies as st

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.recurrence import MAX_DAYS, MAX_OCCURRENCES, BadRecurrence, Recurrence, occurrences

BERLIN = "Europe/Berlin"
#: Zones whose clocks change otherwise than by an hour in spring and autumn: by half an hour, and for Ramadan.
ZONES = (BERLIN, "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca")
DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")


def wall(text: str) -> datetime:
    return datetime.fromisoformat(text)


def every(rule: str, start: str = "2026-10-06T09:00", end: str = "2026-10-06T11:00", zone: str = BERLIN) -> Recurrence:
    return Recurrence(zone, wall(start), wall(end), rule)


def shown(recurrence: Recurrence) -> list[str]:
    """Return when it starts and ends as clocks on the wall show it."""
    zone = ZoneInfo(recurrence.zone)

    def clock(at: int) -> str:
        return datetime.fromtimestamp(at, zone).strftime("%d.%m. %H:%M%z")

    return [f"{clock(each.period.start)} {clock(each.period.end)}" for each in occurrences(recurrence)]


def by_hand(zone: str, start: datetime, weekdays: set[int], weeks: int, count: int) -> list[int]:
    """Expand a weekly rule day by day, with dateutil's own zones: the independent expansion."""
    there, found, day = tz.gettz(zone), [], start.date()
    monday = day - timedelta(days=day.weekday())
    while len(found) < count:
        if day.weekday() in weekdays and (day - monday).days // 7 % weeks == 0:
            at = tz.resolve_imaginary(datetime.combine(day, start.time(), there))
            found.append(int(at.astimezone(UTC).timestamp()))
        day += timedelta(days=1)
    return found


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(ZONES),
    st.dates(date(2025, 1, 1), date(2030, 1, 1)),
    st.times(),
    st.sets(st.integers(0, 6), min_size=1),
    st.integers(1, 3),
    st.integers(1, 50),
)
def test_a_weekly_rule_is_what_an_independent_expansion_says(
    zone: str, day: date, at: object, weekdays: set[int], weeks: int, count: int
) -> None:
    start = datetime.combine(day, at).replace(second=0, microsecond=0, fold=0)  # type: ignore[call-overload]
    days = ",".join(DAYS[number] for number in sorted(weekdays))
    rule = f"FREQ=WEEKLY;INTERVAL={weeks};BYDAY={days};COUNT={count}"
    found = occurrences(Recurrence(zone, start, start + timedelta(minutes=90), rule))
    assert [each.period.start for each in found] == by_hand(zone, start, weekdays, weeks, count)


def test_a_class_keeps_its_time_on_the_wall_across_the_change_of_clocks() -> None:
    assert shown(every("FREQ=WEEKLY;BYDAY=TU;COUNT=4", "2026-10-13T09:00", "2026-10-13T11:00")) == [
        "13.10. 09:00+0200 13.10. 11:00+0200",
        "20.10. 09:00+0200 20.10. 11:00+0200",
        "27.10. 09:00+0100 27.10. 11:00+0100",
        "03.11. 09:00+0100 03.11. 11:00+0100",
    ]


def test_a_night_ends_at_its_time_on_the_wall_and_says_how_long_it_is() -> None:
    spring = every("FREQ=DAILY;COUNT=2", "2026-03-27T22:00", "2026-03-28T06:00")
    assert [each.period.length for each in occurrences(spring)] == [8 * 3600, 7 * 3600]
    assert [each.note for each in occurrences(spring)] == ["", "Clocks change during it: it is 1 h shorter."]
    autumn = Recurrence("Australia/Lord_Howe", wall("2026-04-04T22:00"), wall("2026-04-05T06:00"))
    assert [each.note for each in occurrences(autumn)] == ["Clocks change during it: it is 30 min longer."]


def test_a_time_that_clocks_skip_is_after_the_gap_and_one_that_comes_twice_is_the_first() -> None:
    spring = every("FREQ=DAILY;COUNT=2", "2026-03-28T02:30", "2026-03-28T03:00")
    assert shown(spring) == ["28.03. 02:30+0100 28.03. 03:00+0100", "29.03. 03:30+0200 29.03. 04:00+0200"]
    assert [each.note for each in occurrences(spring)] == [
        "",
        "Clocks skip 02:30 on that day; it starts at 03:30.",
    ]
    autumn = every("FREQ=DAILY;COUNT=2", "2026-10-24T02:30", "2026-10-24T02:45")
    assert shown(autumn)[1] == "25.10. 02:30+0200 25.10. 02:45+0200"
    assert occurrences(autumn)[1].note == "02:30 occurs twice on that day; the first one counts."


def test_the_last_day_is_within_the_rule_whichever_way_it_is_written() -> None:
    for until in ("20261020", "20261020T090000", "20261020T070000Z"):
        assert len(occurrences(every(f"FREQ=WEEKLY;UNTIL={until}"))) == 3, until
    for before in ("20261019", "20261020T085959", "20261020T065959Z"):
        assert len(occurrences(every(f"FREQ=WEEKLY;UNTIL={before}"))) == 2, before


def test_an_occurrence_is_left_out_or_moved_and_keeps_its_name() -> None:
    moved = Period(1_792_000_000, 1_792_003_600)
    recurrence = Recurrence(
        BERLIN,
        wall("2026-10-06T09:00"),
        wall("2026-10-06T11:00"),
        "FREQ=WEEKLY;COUNT=4",
        without=frozenset({"2026-10-13T09:00:00"}),
        moved={"2026-10-27T09:00:00": moved},
    )
    found = occurrences(recurrence)
    assert [each.id for each in found] == ["2026-10-06T09:00:00", "2026-10-27T09:00:00", "2026-10-20T09:00:00"]
    assert found[1].period == moved


def test_what_comes_once_needs_no_rule() -> None:
    assert shown(every("")) == ["06.10. 09:00+0200 06.10. 11:00+0200"]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("FREQ=WEEKLY", "Set its end"),
        ("FREQ=WEEKLY;COUNT=3;UNTIL=20270101", "by either COUNT"),
        ("FREQ=HOURLY;COUNT=3", "FREQ is DAILY, WEEKLY, MONTHLY or YEARLY"),
        ("COUNT=3", "FREQ is DAILY, WEEKLY, MONTHLY or YEARLY"),
        ("every tuesday", "'EVERY TUESDAY' is not valid"),
        ("FREQ=WEEKLY;COUNT=3;X-EVIL=1", "'X-EVIL=1' is not valid"),
        ("FREQ=WEEKLY;COUNT=3;COUNT=4", "'COUNT=4' is not valid"),
        ("FREQ=WEEKLY;UNTIL=never", "UNTIL=NEVER is not a date"),
        ("FREQ=WEEKLY;UNTIL=20261399", "UNTIL=20261399 is not a date"),
        ("FREQ=WEEKLY;BYDAY=XX;COUNT=3", "is not valid"),
        ("FREQ=YEARLY;INTERVAL=0;BYMONTH=2;BYMONTHDAY=30;COUNT=1", "INTERVAL=0 is not valid"),
        ("FREQ=DAILY;INTERVAL=367;COUNT=2", "from 1 to 366"),
        ("FREQ=DAILY;INTERVAL=1,2;COUNT=2", "INTERVAL=1,2 is not valid"),
        ("FREQ=YEARLY;BYMONTH=13;COUNT=1", "from 1 to 12"),
        ("FREQ=MONTHLY;BYMONTHDAY=32;COUNT=1", "from 1 to 31, or from -31 to -1"),
        ("FREQ=MONTHLY;BYMONTHDAY=0;COUNT=1", "from 1 to 31, or from -31 to -1"),
        ("FREQ=MONTHLY;BYMONTHDAY=;COUNT=1", "'BYMONTHDAY=' is not valid"),
        ("FREQ=MONTHLY;BYDAY=99MO;COUNT=2", "BYDAY=99MO is not valid"),
        ("FREQ=MONTHLY;BYDAY=6MO;COUNT=2", "from 1 to 5"),
        ("FREQ=YEARLY;BYDAY=54MO;COUNT=2", "from 1 to 53"),
        ("FREQ=WEEKLY;BYDAY=2MO;COUNT=2", "FREQ=MONTHLY or FREQ=YEARLY"),
        ("FREQ=MONTHLY;BYDAY=MO,1TU;COUNT=2", "all days or none"),
        ("FREQ=WEEKLY;WKST=XX;COUNT=2", "WKST=XX is not valid"),
        ("FREQ=WEEKLY;BYSETPOS=1;COUNT=2", "BYSETPOS does not go with FREQ=WEEKLY"),
        ("FREQ=MONTHLY;BYWEEKNO=20;COUNT=2", "BYWEEKNO does not go with FREQ=MONTHLY"),
        ("FREQ=DAILY;BYMONTHDAY=" + ",".join(["1"] * 400) + ";COUNT=2", "too long"),
        ("FREQ=WEEKLY;COUNT=three", "is not a number"),
        ("FREQ=WEEKLY;COUNT=0", "is not a number"),
        (f"FREQ=DAILY;COUNT={MAX_OCCURRENCES + 1}", "is not a number"),
        ("FREQ=DAILY;UNTIL=20280101", f"more than {MAX_OCCURRENCES} occurrences"),
        ("FREQ=DAILY;UNTIL=99991231", f"more than {MAX_DAYS} days"),
        ("FREQ=YEARLY;COUNT=5", "occurs 4 times in 1098 days, not 5 times"),
        ("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30;COUNT=1", "occurs 0 times in 1098 days, not 1 times"),
        ("FREQ=WEEKLY\nDTSTART:20200101;COUNT=3", "FREQ is DAILY"),
    ],
)
def test_rules_that_cannot_be_followed_are_refused_in_words(rule: str, words: str) -> None:
    with pytest.raises(BadRecurrence, match=words):
        occurrences(every(rule))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"zone": "Mars/Base"}, "not a time zone"),
        ({"zone": "../etc/passwd"}, "not a time zone"),
        ({"end": "2026-10-06T09:00"}, "ends before it starts"),
        ({"start": "2026-10-06T09:00+02:00"}, "without an offset"),
        ({"end": "9999-12-31T09:00"}, "year 9999"),
        ({"start": "0001-01-01T00:00"}, "year 1"),
    ],
)
def test_times_that_are_none_are_refused_in_words(changes: dict[str, str], words: str) -> None:
    with pytest.raises(BadRecurrence, match=words):
        occurrences(every("", **changes))


def test_a_rule_that_never_comes_is_no_endless_search() -> None:
    assert occurrences(every("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30;UNTIL=20290101")) == ()


#: Rules of every kind; what is picked by chance goes in front of them.
KINDS = (
    "FREQ=DAILY",
    "FREQ=DAILY;BYDAY=MO,TU,WE,TH,FR",
    "FREQ=DAILY;BYMONTH=1,7,10",
    "FREQ=WEEKLY",
    "FREQ=WEEKLY;WKST=SU;BYDAY=SU,MO",
    "FREQ=WEEKLY;BYMONTH=3,4,5,10,11;BYDAY=TU,SA",
    "FREQ=MONTHLY",
    "FREQ=MONTHLY;BYDAY=-1FR",
    "FREQ=MONTHLY;BYDAY=1MO,3WE",
    "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
    "FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=8,9,10,11,12,13,14",
    "FREQ=MONTHLY;BYMONTHDAY=1,-1",
    "FREQ=YEARLY",
    "FREQ=YEARLY;BYMONTH=2,6",
    "FREQ=YEARLY;BYMONTH=6;BYDAY=2TU",
    "FREQ=YEARLY;BYDAY=20MO,-1SU",
    "FREQ=YEARLY;BYWEEKNO=7,20,40;BYDAY=MO",
    "FREQ=YEARLY;BYWEEKNO=20;WKST=SU",
    "FREQ=YEARLY;BYYEARDAY=1,100,-1",
    "FREQ=YEARLY;BYDAY=SA;BYSETPOS=3,-2",
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(KINDS), st.dates(date(2025, 1, 1), date(2030, 1, 1)), st.integers(1, 3))
def test_what_is_looked_for_month_by_month_is_what_one_long_search_finds(kind: str, day: date, interval: int) -> None:
    start = datetime.combine(day, time(9))
    until = start + timedelta(days=700)
    rule = f"{kind};INTERVAL={interval};UNTIL={until:%Y%m%dT%H%M%S}"
    wanted = [each.isoformat() for each in rrulestr(rule, dtstart=start)]
    if len(wanted) > MAX_OCCURRENCES:
        wanted, rule = wanted[:MAX_OCCURRENCES], f"{kind};INTERVAL={interval};COUNT={MAX_OCCURRENCES}"
    found = occurrences(Recurrence(BERLIN, start, start + timedelta(hours=2), rule))
    assert [each.id for each in found] == wanted


#: What people and programs may write, sense and nonsense.
NUMBERS = st.one_of(st.integers(-60, 60), st.integers(-(10**20), 10**20)).map(str)
WEEKDAYS = st.builds(
    lambda number, day: number + day,
    st.sampled_from(("", "1", "-1", "+5", "53", "99", "0")),
    st.sampled_from((*DAYS, "XX")),
)
VALUES = {
    "INTERVAL": st.integers(-1, 400).map(str),
    "BYDAY": st.lists(WEEKDAYS, max_size=4).map(",".join),
    "WKST": st.sampled_from((*DAYS, "XX")),
    **{
        name: st.lists(NUMBERS, max_size=4).map(",".join)
        for name in ("BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYSETPOS", "BYEASTER", "BYHOUR")
    },
}
SYSTEM_ACTOR = st.builds(
    lambda freq, parts, end: ";".join([f"FREQ={freq}", *(f"{name}={value}" for name, value in parts.items()), end]),
    st.sampled_from(("DAILY", "WEEKLY", "MONTHLY", "YEARLY", "HOURLY")),
    st.fixed_dictionaries({}, optional=VALUES),
    st.sampled_from(("COUNT=1", "COUNT=5", f"COUNT={MAX_OCCURRENCES}", "UNTIL=20261201", "UNTIL=20291001T000000Z")),
)


@settings(max_examples=400, deadline=None)
@given(st.one_of(SYSTEM_ACTOR, st.text(max_size=60), st.text("FREQ=DAILYW;BCOUNT0123456789,-+", max_size=60)))
@example("FREQ=YEARLY;INTERVAL=366;BYMONTH=2;BYMONTHDAY=30;COUNT=1")
@example("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30;COUNT=1")
@example("FREQ=DAILY;INTERVAL=7;BYDAY=WE;COUNT=1")
@example("FREQ=MONTHLY;BYMONTHDAY=31;BYMONTH=2;UNTIL=20291001")
@example(f"FREQ=DAILY;COUNT={MAX_OCCURRENCES}")
def test_whatever_a_rule_says_it_is_soon_refused_or_followed(rule: str) -> None:
    before = process_time()
    try:
        found = occurrences(every(rule))
    except BadRecurrence:
        pass
    else:
        assert len(found) <= MAX_OCCURRENCES
    assert process_time() - before < 0.5
