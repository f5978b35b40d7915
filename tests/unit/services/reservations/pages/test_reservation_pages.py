"""The calendar's pages: what each shows of much and of nothing, and what it does not tell strangers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from forged_calendar_pages import HOUR, NOW, Site, running
from forged_login import plain

from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.recurrence import Recurrence
from carme_hub.domain.calendar.reservations import Kind, State
from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.services.reservations.pages import admin

DAY = 86_400
#: Monday 23 November 2026, 09:00 in Berlin.
MONDAY = NOW + 2 * DAY + 20 * HOUR
POLICY = """
zone: Europe/Berlin
quotas:
  - {id: granted, account: teaching, needs_grant: true}
  - {id: physics, account: physics, booking: {approval_above: 20}}
"""
PAGES = ("", "book", "mine")
ADMINISTRATION = ("administration", "administration/bookings", "administration/maintenance")


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch, POLICY) as found:
        await found.service.ledger.grant("teaching", 400 * GPU_HOUR, key="g", actor="root", reason="term")
        yield found


def weekly(count: int = 4) -> Recurrence:
    """Mondays from nine to eleven."""
    start = datetime.fromisoformat("2026-11-23T09:00")
    return Recurrence("Europe/Berlin", start, start + timedelta(hours=2), f"FREQ=WEEKLY;BYDAY=MO;COUNT={count}")


async def change(site: Site, id: str, **changes: Any) -> None:
    """Change one as the keeper does."""
    with site.service.calendar.store.transaction("lab") as writes:
        one = writes.get(id)
        assert one is not None
        writes.save(one.replace(version=one.version + 1, **changes))


@pytest.mark.parametrize("path", PAGES)
async def test_each_page_speaks_of_an_empty_calendar(site: Site, path: str) -> None:
    page = await site.visitor("tina").text(path)
    said = {
        "": "a100: 8 of 8 are free now, and stay so. ",
        "book": "See what would be booked",
        "mine": "You have no current or future bookings.",
    }
    assert said[path] in page
    assert "You have no booking in this time." in await site.visitor("tina").text("")


async def test_administration_speaks_of_an_empty_calendar(site: Site) -> None:
    root = site.visitor("root")
    assert "No booking waits for an approval." in await root.text("administration")
    assert "There are no bookings in this time." in await root.text("administration/bookings")
    assert "No maintenance is planned." in await root.text("administration/maintenance")


async def test_the_pages_of_administration_are_not_for_everybody(site: Site) -> None:
    for path in ADMINISTRATION:
        assert (await site.visitor("tina").get(path)).code == 403
    assert "Administration" not in await site.visitor("tina").text("")


async def test_while_slurm_has_never_answered_each_page_says_what_is_not_known(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.service.slurm_view, "at", 0.0)
    monkeypatch.setattr(site.service.slurm_view, "silent", "slurm_load_node error: secret words")
    page = await site.visitor("tina").text("")
    assert "Slurm does not answer just now" in page
    assert "secret words" not in page
    assert "Slurm does not answer" in await site.visitor("tina").text("book")
    assert "Slurm does not answer" in await site.visitor("root").text("administration/maintenance")


async def test_what_slurm_cannot_keep_is_said_before_anything_is_booked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch, by_node=True) as site:
        assert "reserves whole nodes: a booking of some GPUs of a node takes" in await site.visitor("tina").text("")


async def test_the_next_hours_are_in_words_with_my_bookings_and_what_is_free(site: Site) -> None:
    await site.book("alice", "Ablation", NOW + HOUR, 3, need=Need("a100", 2))
    page = await site.visitor("alice").text("")
    assert "a100: 8 of 8 are free now; 6 of 8 today at 14:00" in page
    assert "“Ablation” has 2 a100 from 14:00 to 17:00." in page


async def test_titles_and_people_of_others_are_not_in_the_page(site: Site) -> None:
    await site.book("bob", "Project Xanadu", NOW + HOUR, 4, need=Need("a100", 2))
    (one,) = await site.book("bob", "Other Xanadu", NOW + 2 * DAY, 4)
    for who in ("alice", "tina", "reader"):
        for path in (*PAGES, f"bookings/{one.id}"):
            answer = await site.visitor(who).get(path)
            assert b"Xanadu" not in answer.body, (who, path)
            assert b">bob<" not in answer.body
        assert answer.code == 404
    assert "Xanadu" in await site.visitor("root").text("administration/bookings")


async def test_a_booking_for_a_group_is_seen_by_its_members(site: Site) -> None:
    (one, *_) = await site.book(
        "tina", "Class", MONDAY, need=Need("a100", 1, 4), recurrence=weekly(), group="ml-course", profile="pytorch"
    )
    page = await site.visitor("alice").text("mine")
    assert "For me Class" in page
    assert "4 seats with 1 a100 each, account teaching, for tina and the members of the group ml-course" in page
    assert "Monday 23 November, 09:00–11:00 and 3 more times" in page
    assert "Cancel" not in page
    assert "Class" in await site.visitor("alice").text(f"bookings/{one.id}")
    assert (await site.visitor("bob").get(f"bookings/{one.id}")).code == 404


async def test_mine_shows_states_in_words_and_a_problem_first(site: Site) -> None:
    await site.book("alice", "Soon", NOW + DAY)
    (broken,) = await site.book("alice", "Broken", NOW + 3 * DAY)
    await site.book("alice", "Large", NOW + 4 * DAY, 10, need=Need("a100", 4))
    await change(site, broken.id, problem="Node gpu1 is down.")
    (over,) = await site.book("alice", "Gone", NOW + 60, 1)
    await change(site, over.id, state=State.RELEASED, ended=NOW + 900, actor="carme-hub", reason="nobody used it")
    page = await site.visitor("alice").text("mine")
    assert "This booking cannot be kept as it is. Node gpu1 is down." in page
    assert page.index("Broken") < page.index("Soon"), "a problem is on top"
    assert "It waits for an administrator’s approval. Its GPUs are kept meanwhile." in page
    assert "Given back today at 13:15 by carme-hub. Nobody used it." in page
    assert "It begins on Saturday 21 November at 13:00." in page


async def test_one_booking_says_where_it_is_and_how_batch_jobs_use_it(site: Site) -> None:
    (one,) = await site.book("alice", "Train", NOW + DAY, 3, need=Need("a100", 2))
    page = await site.visitor("alice").text(f"bookings/{one.id}")
    assert "Saturday 21 November, 13:00–16:00 (3 h)" in page
    assert "Where gpu1 (2 a100)" in page
    assert f"--reservation={one.names()[0]}" in page
    assert "--account=physics" in page
    assert "--gres=gpu:a100:2" in page
    assert "Booked by alice." in page
    assert "Costs at most 6 GPU-hours" in page
    assert f"/api/v1/bookings/{one.id}.ics" in (await site.visitor("alice").get(f"bookings/{one.id}")).body.decode()


async def test_the_feeds_address_is_told_once_works_and_ends_when_it_is_revoked(site: Site) -> None:
    await site.book("tina", "Lecture", MONDAY)
    tina = site.visitor("tina")
    await tina.get("mine")
    answer = await tina.post("mine/feed", what="make")
    address = answer.body.decode().split("api/v1/feed/")[1].split('"')[0]
    feed = await site.ask(f"api/v1/feed/{address}")
    assert feed.code == 200
    assert b"Lecture" in feed.body
    again = await tina.get("mine")
    assert address not in again.body.decode()
    assert "You have an address. It is not shown again" in plain(again)
    assert (await tina.post("mine/feed", what="revoke")).code == 303
    assert "The address is revoked." in await tina.text("mine")
    assert (await site.ask(f"api/v1/feed/{address}")).code == 404


async def test_times_are_in_the_zone_that_was_chosen_and_the_page_says_which(site: Site) -> None:
    (one,) = await site.book("alice", "Soon", NOW + DAY)
    alice = site.visitor("alice")
    assert "Times are in Europe/Berlin." in await alice.text("mine")
    assert (await alice.post("zone", zone="Nowhere/City")).code == 409
    assert (await alice.post("zone", zone="America/New_York")).code == 303
    assert "Saturday 21 November, 07:00–09:00" in await alice.text("mine")
    assert "in America/New_York" in await alice.text(f"bookings/{one.id}")


async def test_an_address_that_is_no_zone_in_the_cookie_is_the_sites_zone(site: Site) -> None:
    alice = site.visitor("alice")
    for cookie in ("../../etc/passwd", "Nowhere", "%00", "Europe"):
        alice._cookies["carme-zone"] = cookie
        assert "Times are in Europe/Berlin." in await alice.text("mine")


async def test_teachers_are_offered_all_groups_and_others_their_own(site: Site) -> None:
    for who, offered in (("tina", True), ("alice", True), ("bob", False)):
        body = (await site.visitor(who).get("book")).body.decode()
        assert ('<option value="ml-course">' in body) is offered, who
        assert "account:" not in body


async def test_who_may_not_book_can_look_and_reads_why(site: Site) -> None:
    page = await site.visitor("reader").text("")
    assert "You have no Slurm account to charge" in page
    assert "To book, drag over a time." not in page
    assert (await site.visitor("stranger").get("")).code == 403
    assert (await site.visitor("").get("")).code == 302


async def test_the_queue_shows_price_and_what_is_in_the_way(site: Site) -> None:
    (one,) = await site.book("alice", "Large", NOW + DAY, 10, need=Need("a100", 4))
    await change(site, one.id, problem="Node gpu1 is down.")
    page = await site.visitor("root").text("administration")
    assert "alice asks for 4 a100, for alice alone, account physics 40 GPU-hours" in page
    assert "Node gpu1 is down." in page


async def test_a_long_queue_asks_the_desk_no_more_than_a_page_may(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "MAX_CHECKED", 3)
    bookings, asked = site.service.bookings, []
    check = bookings.check

    async def counted(*args: Any, **more: Any) -> Any:
        asked.append(more["instead_of"])
        return await check(*args, **more)

    monkeypatch.setattr(bookings, "check", counted)
    for number in range(5):
        (last,) = await site.book("alice", f"Large {number}", NOW + (1 + number) * DAY, 10, need=Need("a100", 4))
    await change(site, last.id, problem="Node gpu1 is down.")
    page = await site.visitor("root").text("administration")
    assert len(asked) == 2, "of three times that may be looked at, one has a problem that is known"
    assert "only the first times were checked" in page
    assert "Node gpu1 is down." in page, "what the calendar knows is said of all"


async def test_the_form_begins_with_the_gpus_of_the_last_booking_else_with_those_of_which_there_are_most(
    site: Site,
) -> None:
    for path in ("book", ""):
        body = (await site.visitor("alice").get(path)).body.decode()
        assert re.search(r'<option value="a100"\s+selected', body), path
    await site.book("alice", "Large", NOW + DAY, 2, need=Need("a100", 4))
    site.now += 60
    await site.book("alice", "Larger", NOW + DAY, 2, need=Need("h100", 1))
    for path, who, type in (("book", "alice", "h100"), ("", "alice", "h100"), ("book", "tina", "a100")):
        body = (await site.visitor(who).get(path)).body.decode()
        assert re.search(rf'<option value="{type}"\s+selected', body), (path, who)
    body = (await site.visitor("alice").get("book?gpu_type=a100")).body.decode()
    assert re.search(r'<option value="a100"\s+selected', body), "the address says which"


async def test_maintenance_lists_whom_it_meets_before_it_is_planned(site: Site) -> None:
    (one,) = await site.book("alice", "Train", NOW + DAY, 4, need=Need("h100", 2))
    running_job = Job(7, "carme-x", "bob", "RUNNING", Phase.ACTIVE, nodes=("gpu3",), end=NOW + 2 * DAY)
    again = replace(running_job, id=8, name="carme-y", user="alice", end=0)
    early, by_hand = replace(again, id=9, end=NOW + 60), replace(running_job, id=10, name="train", user="tina")
    site.slurm.running = (running_job, again, early, by_hand)
    site.service.slurm_view.jobs = await site.slurm.snapshot()
    root = site.visitor("root")
    await root.get("administration/maintenance")
    form = {
        "title": "New driver", "nodes": "gpu3", "zone": "Europe/Berlin",
        "start_date": "2026-11-21", "start_time": "12:00", "end_date": "2026-11-21", "end_time": "20:00",
    }  # fmt: skip
    asked = plain(await root.post("administration/maintenance", **form))
    assert "Booked there: “Train” of alice, 2 h100, Saturday 21 November, 13:00–17:00." in asked
    assert "Affected: 2 sessions of alice and bob. They are notified from a week before" in asked
    assert "of bob, at the latest until Sunday 22 November at 13:00. It may run into the maintenance." in asked
    assert "A session of alice, without a time limit. It may run into the maintenance." in asked
    assert asked.count("It may run into the maintenance.") == 3, "one session is over by then"
    planned = await site.service.bookings.between(site.booker("root"), Period(int(NOW), int(NOW + 5 * DAY)))
    assert [each.kind for each in planned] == [Kind.BOOKING], "nothing is planned before it is confirmed"
    answer = await root.post("administration/maintenance", **form, confirmed="yes")
    assert answer.code == 303
    page = await root.text("administration/maintenance")
    assert "1 booking has a problem now, and their owners are notified. Affected: 2 sessions of alice and bob." in page
    planned_there = page[page.index("Planned") :]
    assert "Affected: 2 sessions of alice and bob." in planned_there
    assert "alice on gpu3, without a time limit" in planned_there
    assert "bob on gpu3, at the latest until Sunday 22 November at 13:00" in planned_there
    assert "tina" not in planned_there, "a job by hand is no session"
    assert "New driver Announced" in page
    assert "This booking cannot be kept as it is." in await site.visitor("alice").text(f"bookings/{one.id}")
