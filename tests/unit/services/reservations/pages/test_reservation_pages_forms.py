"""What the calendar's forms do without JavaScript: book, take what is offered, move, cancel, give back, decide."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

import pytest
from forged_calendar_pages import HOUR, NOW, Site, running
from forged_login import Visitor, plain
from tornado.httpclient import HTTPResponse

from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.recurrence import Recurrence
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.ledger.entries import GPU_HOUR

DAY = 86_400
POLICY = """
zone: Europe/Berlin
quotas:
  - {id: granted, account: teaching, needs_grant: true}
  - {id: physics, account: physics, booking: {approval_above: 20}}
"""
#: Tuesday 24 November 2026, 09:00 in Berlin.
TUESDAY = NOW + 3 * DAY + 20 * HOUR
FORM = {
    "title": "Class", "gpu_type": "a100", "seats": "4", "gpus": "1", "account": "teaching", "zone": "Europe/Berlin",
    "start_date": "2026-11-24", "start_time": "09:00", "end_date": "2026-11-24", "end_time": "11:00", "whom": "me",
}  # fmt: skip
WEEKLY = {**FORM, "repeats": "weekly", "days": "TU", "count": "3"}


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch, POLICY, book_ahead=400 * DAY) as found:
        await found.service.ledger.grant("teaching", 100 * GPU_HOUR, key="g", actor="root", reason="term")
        yield found


async def tina_at(site: Site, path: str = "book", name: str = "tina") -> Visitor:
    """Return a browser in which a page with forms is open."""
    visitor = site.visitor(name)
    await visitor.get(path)
    return visitor


async def booked(site: Site, name: str = "tina") -> list[Reservation]:
    """Return what somebody has, by start."""
    found = await site.service.bookings.mine(site.booker(name), NOW - DAY)
    return sorted((each for each in found if each.owner == name), key=lambda one: one.period)


def hidden(answer: HTTPResponse) -> dict[str, str]:
    """Return the hidden fields of the page's form; of several of one name the last."""
    return dict(re.findall(r'type="hidden"\s+name="(\w+)"\s+value="([^"]*)"', answer.body.decode()))


async def test_the_form_shows_what_would_be_booked_and_books_it_once(site: Site) -> None:
    tina = await tina_at(site)
    look = await tina.post("book", **FORM)
    page = plain(look)
    assert "Book this?" in page
    assert "Tuesday 24 November, 09:00–11:00" in page
    assert "Costs at most 8 GPU-hours Left in the account 100 GPU-hours now, 92 GPU-hours after it" in page
    assert await booked(site) == [], "looking books nothing"
    again = {**hidden(look), "step": "book"}
    for _ in range(2):  # a second click books nothing more
        answer = await tina.post("book", **again)
        assert answer.code == 303
    (one,) = await booked(site)
    assert (one.need, one.period.start, one.period.length) == (Need("a100", 1, 4), int(TUESDAY), 2 * HOUR)
    assert "“Class”: booked. It begins on Tuesday 24 November at 09:00." in await tina.text(f"bookings/{one.id}")


async def test_a_get_that_names_everything_books_nothing(site: Site) -> None:
    tina = await tina_at(site)
    page = await tina.get("book?" + urlencode({**FORM, "step": "book"}))
    assert 'value="Class"' in page.body.decode(), "it fills in the form"
    assert await booked(site) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"title": " "}, "Give it a title"),
        ({"gpu_type": ""}, "Choose a GPU type."),
        ({"gpu_type": "v100"}, "can never be booked here"),
        ({"seats": "0"}, "Seats: write a whole number from 1 to 1024."),
        ({"seats": "many"}, "Seats: write a whole number"),
        ({"gpus": "-1"}, "GPUs for each seat: write a whole number"),
        ({"start_date": "soon"}, "The day of the start: write a day like 2026-11-24."),
        ({"end_time": "25:00"}, "The time of the end: write it like 09:00."),
        ({"end_time": "08:00"}, "It ends before it starts."),
        ({"start_date": "2026-11-19", "end_date": "2026-11-19"}, "in the past"),
        ({"zone": "Mars/Olympus"}, "Mars/Olympus is not a time zone."),
        ({"account": "physics"}, "You may not charge account physics"),
        ({"whom": "users"}, "Name the people for whom it is"),
        ({"whom": "group"}, "Name the group or class"),
        ({"repeats": "weekly"}, "Give the number of times, or the last day."),
        ({"repeats": "weekly", "count": "3", "until": "2026-12-24"}, "either the number of times"),
        ({"repeats": "weekly", "until": "whenever"}, "The last day: write a day"),
        ({"take": "time:x:y"}, "That choice is not understood."),
        ({"take": "time:99999999999999:1"}, "That choice is not understood."),
        ({"take": "moon:1"}, "That choice is not understood."),
    ],
)
async def test_what_makes_no_sense_is_said_with_all_that_was_typed(
    site: Site, change: dict[str, str], said: str
) -> None:
    tina = await tina_at(site)
    for step in ("look", "book"):
        answer = await tina.post("book", **{**FORM, **change, "step": step})
        page = plain(answer)
        assert said in page, page
        if change.get("title") is None and "can never" not in page and "account" not in change:
            assert 'value="Class"' in answer.body.decode()
    assert await booked(site) == []


async def test_a_full_slot_offers_other_times_fewer_seats_other_types_and_waiting(site: Site) -> None:
    await site.book("alice", "Theirs", TUESDAY, 2, need=Need("a100", 1, 5))
    tina = await tina_at(site)
    look = await tina.post("book", **FORM)
    page = plain(look)
    assert "This cannot be booked as it is" in page
    assert "Take Tuesday 11:00–13:00" in page
    assert "3 seats then" in page
    assert "h100 then" in page
    assert "Theirs" not in page
    assert "Wait until these GPUs are free" in page
    takes = dict(re.findall(r'name="take"\s+value="([^"]+)">\s*([^<]+?)\s*<', look.body.decode()))
    by_words = {words: take for take, words in takes.items()}
    for words, became in {
        "Take Tuesday 11:00–13:00": "Tuesday 24 November, 11:00–13:00",
        "3 seats then": "3 seats with 1 a100 each",
        "h100 then": "4 seats with 1 h100 each",
    }.items():
        taken = await tina.post("book", **{**hidden(look), "take": by_words[words]})
        assert "Book this?" in plain(taken)
        assert became in plain(taken)
    assert (await tina.post("book", **{**hidden(look), "step": "wait"})).code == 303
    (one,) = await booked(site)
    assert (one.state, one.waits) == (State.DRAFT, True)
    assert "It is booked automatically when GPUs become free" in await tina.text("mine")


async def test_what_was_taken_meanwhile_is_said_with_what_is_left(site: Site) -> None:
    tina = await tina_at(site)
    look = await tina.post("book", **FORM)
    await site.book("alice", "Theirs", TUESDAY, 2, need=Need("a100", 1, 5))
    answer = await tina.post("book", **{**hidden(look), "step": "book"})
    assert answer.code == 409
    assert "These GPUs are not free at that time. Nothing was booked." in plain(answer)
    assert "3 seats then" in plain(answer)
    assert await booked(site) == []


async def test_a_weekly_class_lists_its_conflicts_and_leaves_them_out(site: Site) -> None:
    await site.book("alice", "Theirs", TUESDAY + 7 * DAY, 2, need=Need("a100", 1, 6))
    tina = await tina_at(site)
    look = await tina.post("book", **WEEKLY, group="ml-course", profile="pytorch")
    page = plain(look)
    assert "3 times (1 of them not free)" in page
    assert "Tuesday 1 December, 09:00–11:00 not free" in page
    assert "Take Tuesday 1 December, 11:00–13:00 every time" in page
    assert "Wait until" not in page
    take = re.search(r'value="(without:[^"]+)"', look.body.decode())
    assert take is not None
    fixed = await tina.post("book", **{**hidden(look), "days": "TU", "take": take[1]})
    assert "Book this?" in plain(fixed)
    assert "2 times" in plain(fixed)
    await tina.post("book", **{**hidden(fixed), "days": "TU", "step": "book"})
    starts = [each.period.start for each in await booked(site)]
    assert starts == [int(TUESDAY), int(TUESDAY + 14 * DAY)]


async def test_where_all_times_are_taken_leaving_them_out_is_no_way_out(site: Site) -> None:
    for week in range(3):
        await site.book("alice", "Theirs", TUESDAY + 7 * week * DAY, 2, need=Need("a100", 1, 6))
    page = plain(await (await tina_at(site)).post("book", **WEEKLY))
    assert "3 times (3 of them not free)" in page
    assert "every time" in page
    assert "Leave out" not in page


async def test_a_series_that_takes_another_time_is_shifted_as_a_whole_and_stays_in_its_first_week(site: Site) -> None:
    tina = await tina_at(site)
    start = int(TUESDAY + 7 * DAY + DAY + HOUR)  # of the second one: Wednesday at ten
    answer = await tina.post("book", **WEEKLY, take=f"time:{start}:{start + 2 * HOUR}")
    page = plain(answer)
    for day in ("25 November", "2 December", "9 December"):
        assert f"Wednesday {day}, 10:00–12:00" in page


async def test_what_clocks_do_is_said_before_it_is_booked(site: Site) -> None:
    tina = await tina_at(site)
    night = {"start_date": "2027-03-28", "end_date": "2027-03-28", "start_time": "02:30", "end_time": "05:00"}
    page = plain(await tina.post("book", **{**FORM, **night}))
    assert "Clocks skip 02:30 on that day; it starts at 03:30." in page


async def test_a_class_names_its_group_and_profile(site: Site) -> None:
    tina = await tina_at(site)
    page = plain(await tina.post("book", **{**FORM, "whom": "group", "group": "ml-course", "profile": "pytorch"}))
    assert "For you and the members of ml-course" in page
    await tina.post("book", **{**FORM, "whom": "group", "group": "ml-course", "profile": "pytorch", "step": "book"})
    (one,) = await booked(site)
    assert (one.group, one.profile, one.everybody) == ("ml-course", "pytorch", False)
    await tina.post("book", **{**FORM, "gpu_type": "h100", "whom": "users", "users": "alice, bob", "step": "book"})
    assert {each.users for each in await booked(site)} == {frozenset(), frozenset({"alice", "bob"})}


async def test_what_needs_an_approval_says_so_and_waits_for_it(site: Site) -> None:
    alice = await tina_at(site, name="alice")
    form = {**FORM, "account": "physics", "seats": "1", "gpus": "4", "end_time": "19:00"}
    assert "An administrator has to approve it." in plain(await alice.post("book", **form))
    await alice.post("book", **form, step="book")
    (one,) = await booked(site, "alice")
    assert one.state is State.PENDING
    root = await tina_at(site, "administration", "root")
    assert (await root.post(f"administration/decide/{one.id}", decision="deny", reason="")).code == 409
    assert (await alice.post(f"administration/decide/{one.id}", decision="approve")).code == 403
    assert (await root.post(f"administration/decide/{one.id}", decision="approve", reason="")).code == 303
    assert "“Class” of alice is approved." in await root.text("administration")
    assert (await booked(site, "alice"))[0].state is State.CONFIRMED


async def test_who_has_too_little_left_is_told_so_and_nothing_is_booked(site: Site) -> None:
    tina = await tina_at(site)
    form = {**FORM, "seats": "8", "end_time": "23:00"}
    page = plain(await tina.post("book", **form, step="book"))
    assert "Account teaching has 100 GPU-hours left, and this needs 112" in page
    assert await booked(site) == []


async def test_a_booking_is_moved_after_a_second_look(site: Site) -> None:
    (one,) = await site.book("tina", "Class", TUESDAY, need=Need("a100", 1, 4))
    tina = await tina_at(site, f"bookings/{one.id}")
    when = {name: value for name, value in FORM.items() if name.startswith(("start_", "end_"))}
    form = {**when, "zone": "Europe/Berlin", "version": "1", "end_time": "12:00"}
    asked = await tina.post(f"bookings/{one.id}/move", **form)
    assert "Move “Class”? Now: Tuesday 24 November, 09:00–11:00. Then: Tuesday 24 November, 09:00–12:00 (3 h). It holds 12 GPU-hours then." in plain(asked)  # fmt: skip  # noqa: E501
    assert (await booked(site))[0].period.length == 2 * HOUR
    assert (await tina.post(f"bookings/{one.id}/move", **form, confirmed="yes")).code == 303
    assert (await booked(site))[0].period.length == 3 * HOUR
    stale = await tina.post(f"bookings/{one.id}/move", **{**form, "end_time": "13:00"}, confirmed="yes")
    assert stale.code == 409
    assert "was changed meanwhile" in plain(stale)


async def test_a_move_to_where_it_is_full_stays_and_offers_the_nearest_times(site: Site) -> None:
    (one,) = await site.book("tina", "Class", TUESDAY, need=Need("a100", 1, 4))
    await site.book("alice", "Theirs", TUESDAY + 4 * HOUR, 2, need=Need("a100", 1, 5))
    tina = await tina_at(site, f"bookings/{one.id}")
    form = {**FORM, "version": "1", "start_time": "13:00", "end_time": "15:00"}
    answer = await tina.post(f"bookings/{one.id}/move", **form)
    assert answer.code == 409
    assert "These GPUs are not free then. The booking was not changed." in plain(answer)
    take = re.search(r'name="take"\s+value="(time:[^"]+)"', answer.body.decode())
    assert take is not None
    asked = await tina.post(f"bookings/{one.id}/move", **form, take=take[1])
    assert "Move “Class”?" in plain(asked)
    done = await tina.post(f"bookings/{one.id}/move", **hidden(asked))
    assert done.code == 303
    assert (await booked(site))[0].period.start == int(take[1].split(":")[1])


async def test_one_time_of_a_series_is_cancelled_or_all_of_them(site: Site) -> None:
    start = datetime.fromisoformat("2026-11-24T09:00")
    rule = Recurrence("Europe/Berlin", start, start + timedelta(hours=2), "FREQ=WEEKLY;COUNT=3")
    first, _, _ = await site.book("tina", "Class", TUESDAY, recurrence=rule)
    tina = await tina_at(site, f"bookings/{first.id}")
    asked = await tina.post(f"bookings/{first.id}/cancel", series="one")
    assert "Cancel “Class”?" in plain(asked)
    assert "This cancels only this one." in plain(asked)
    assert (await booked(site))[0].state is State.CONFIRMED
    await tina.post(f"bookings/{first.id}/cancel", series="one", confirmed="yes")
    states = [each.state for each in await booked(site)]
    assert states == [State.CANCELLED, State.CONFIRMED, State.CONFIRMED]
    second = (await booked(site))[1]
    await tina.post(f"bookings/{second.id}/cancel", series="all", confirmed="yes")
    assert {each.state for each in await booked(site)} == {State.CANCELLED}
    assert "“Class” is cancelled at 2 times." in await tina.text("mine")


async def test_what_is_not_needed_any_more_is_given_back(site: Site) -> None:
    (one,) = await site.book("tina", "Class", NOW, 4)
    site.now = NOW + HOUR
    tina = await tina_at(site, f"bookings/{one.id}")
    asked = await tina.post(f"bookings/{one.id}/release")
    assert "Give back “Class”? It is yours until today at 17:00." in plain(asked)
    assert (await tina.post(f"bookings/{one.id}/release", confirmed="yes")).code == 303
    found = (await booked(site))[0]
    assert (found.state, found.ended) == (State.RELEASED, NOW + HOUR)


async def test_what_belongs_to_others_cannot_be_changed_and_is_not_told_of(site: Site) -> None:
    (one,) = await site.book("alice", "Theirs", TUESDAY)
    await site.book("tina", "Class", TUESDAY + DAY, group="ml-course")
    tina = await tina_at(site)
    for what in ("cancel", "release", "move"):
        answer = await tina.post(f"bookings/{one.id}/{what}", **FORM, version="1", confirmed="yes")
        assert answer.code == 404
        assert "Theirs" not in plain(answer)
    alice = await tina_at(site, name="alice")  # she is in the group, and may look
    theirs = (await booked(site))[0]
    assert (await alice.post(f"bookings/{theirs.id}/cancel", confirmed="yes")).code == 409
    assert {each.state for each in await booked(site)} == {State.CONFIRMED}


async def test_no_form_is_taken_from_elsewhere_and_nothing_is_written_by_looking(site: Site) -> None:
    (one,) = await site.book("tina", "Class", TUESDAY)
    tina = await tina_at(site)
    root = await tina_at(site, "administration", "root")
    for path in ("book", "zone", "mine/feed", f"bookings/{one.id}/cancel", f"bookings/{one.id}/move"):
        for forged in ({}, {"_xsrf": "forged"}, {"_xsrf": "2|x|y|z"}):
            answer = await tina.raw(path, {**FORM, "step": "book", "what": "make", "confirmed": "yes", **forged})
            assert answer.code == 403, path
    for path in ("administration/maintenance", f"administration/decide/{one.id}"):
        assert (await root.raw(path, {"decision": "deny", "reason": "x", "confirmed": "yes"})).code == 403
    for path in (f"bookings/{one.id}/cancel", f"bookings/{one.id}/release", f"administration/decide/{one.id}", "zone"):
        assert (await root.get(f"{path}?confirmed=yes")).code == 405
    period = Period(int(NOW), int(NOW + 30 * DAY))
    assert len(await site.service.bookings.between(site.booker("root"), period)) == 1


async def test_a_token_for_reading_sends_no_form(site: Site) -> None:
    reader = await tina_at(site, "", "reader")
    answer = await reader.post("book", **FORM, step="book")
    assert answer.code == 403
    assert "It needs the scope custom:carme:reservation:write" in plain(answer)


async def test_what_people_type_is_shown_as_text(site: Site) -> None:
    tina = await tina_at(site)
    form = {**FORM, "title": "<script>alert(1)</script>", "users": '"><img src=x>', "whom": "users"}
    for step in ("look", "change"):
        body = (await tina.post("book", **form, step=step)).body.decode()
        assert "<script>alert(1)" not in body
        assert "<img src=x" not in body
