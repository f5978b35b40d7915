"""The story of the calendar: a class by dragging, a conflict and its alternative, a student's slot, an unused slot."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from rig.hub import Hub, wait_for
from rig.rest import Rest, clear_calendar, wait_for_calendar
from windows import DESK, PHONE, SCREENSHOTS, assert_fits, ready, screenshots

SERVICE = "/services/reservations/"
DAY, MINUTE = 86_400, 60
#: Milliseconds for what the hub, Slurm or the keeper have to do first, on a machine that does other things too.
SLOW = 120_000
#: Days from now that the class begins, and its time; a week of the calendar begins with today.
AHEAD, HOURS = 3, (10, 12)
CLASS, TODAY, UNUSED = "Deep learning, exercises", "Deep learning, first steps", "A demonstration"
#: All users of the sandbox; the account excludes users who are not in it.
GROUP = "carme-users"


class CalendarApi:
    """The calendar by REST, as three users see it."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        # The student is first: whom the hub does not know is in no class.
        self.people = {user: Rest(hub, user, f"{SERVICE}api/v1/") for user in ("alice", "tina", "ada")}

    def book(self, who: str, title: str, start: float, end: float, **more: object) -> dict[str, Any]:
        """Book all a100 of one node, or of more."""
        body = {"title": title, "gpu_type": "a100", "gpus": 4, "start": int(start), "end": int(end), **more}
        answer = self.people[who].send("bookings", body)
        assert answer.status == 200, answer
        return dict(answer.body["bookings"][0])

    def one(self, booking: dict[str, Any]) -> dict[str, Any]:
        return dict(self.people["ada"].get(f"bookings/{booking['id']}"))

    def in_slurm(self) -> dict[str, set[str]]:
        """Return the users of each reservation in Slurm, by name."""
        text = self.hub.cluster.run("scontrol", "show", "reservation", "--oneliner").stdout
        return {
            name: set(users.split(",")) for name, users in re.findall(r"ReservationName=(\S+) .* Users=(\S+)", text)
        }

    def is_for(self, booking: dict[str, Any], user: str) -> bool:
        """Return whether Slurm has all of a booking, and lets a user in."""
        there = self.in_slurm()
        return all(user in there.get(name, ()) for name in booking["slurm"])


@pytest.fixture
def calendar_api(hub: Hub) -> Iterator[CalendarApi]:
    wait_for_calendar(hub)
    clear_calendar(hub)
    yield CalendarApi(hub)
    hub.stop_all()
    clear_calendar(hub)


def booking_body(hub: Hub, query: str, booking: dict[str, Any]) -> list[tuple[Any, ...]]:
    database = sqlite3.connect(f"file:{hub.demo.folder / 'carme-hub.sqlite'}?mode=ro", uri=True)
    try:
        return database.execute(query, (booking["id"],)).fetchall()
    finally:
        database.close()


def held(hub: Hub, booking: dict[str, Any]) -> int:
    """Return the ledger's hold for a booking, in milli-GPU-seconds."""
    query = "select -coalesce(sum(amount), 0) from ledger where session = ? and kind in ('hold', 'release')"
    return int(booking_body(hub, query, booking)[0][0])


def held_at_first(hub: Hub, booking: dict[str, Any]) -> int:
    """Return the ledger's first hold for a booking, before any release."""
    return int(
        booking_body(hub, "select -amount from ledger where session = ? and kind = 'hold' order by id", booking)[0][0]
    )


def today(page: Page) -> float:
    """Return the start of this day in the zone in which the browser shows times."""
    return float(page.evaluate("new Date().setHours(0, 0, 0, 0) / 1000"))


def drag(page: Page, days: int, hours: Sequence[int], meanwhile: Callable[[], None]) -> None:
    """Drag over some hours of a day, beside existing bookings; ``meanwhile`` runs before the mouse is released."""
    page.locator(".ec-body .ec-slot", has=page.locator(f'time[datetime$="T{hours[0]:02}:00:00"]')).evaluate(
        "element => element.scrollIntoView({ block: 'center', behavior: 'instant' })"
    )
    box = page.locator(".ec-time-grid .ec-body .ec-day").nth(days).bounding_box()
    assert box is not None
    x, hour = box["x"] + box["width"] * 0.9, box["height"] / 24
    start, end = (box["y"] + each * hour for each in hours)
    page.mouse.move(x, start + 6)
    page.mouse.down()
    page.mouse.move(x, (start + end) / 2, steps=6)
    page.mouse.move(x, end - 6, steps=6)
    meanwhile()
    page.mouse.up()


def calendars(page: Page, name: str) -> None:
    """Take a screenshot of the calendar on a desktop, and of its list on a phone."""
    page.screenshot(path=SCREENSHOTS / f"{name}-{DESK['width']}.png", full_page=True)
    assert_fits(page)
    page.set_viewport_size(PHONE)
    expect(page.locator(".ec-list .ec-event.booking").first).to_be_visible()
    page.screenshot(path=SCREENSHOTS / f"{name}-{PHONE['width']}.png", full_page=True)
    assert_fits(page)
    page.set_viewport_size(DESK)
    expect(page.locator(".ec-time-grid .booking-band", has_text=re.compile(r"of \d+ free")).first).to_be_visible()


def book_the_class(tina: Page) -> None:
    """Drag over a time that is taken in one of three weeks, and choose the alternative."""
    tina.get_by_label("Seats").first.fill("4")
    tina.locator("#wish-type").select_option("a100")
    expect(tina.locator(".booking-band.booking-none").first).to_be_visible()
    calendars(tina, "calendar-story-1-before")

    def picture() -> None:
        expect(tina.locator("#hint")).to_contain_text("4 seats with 1 a100 each: not free")
        tina.screenshot(path=SCREENSHOTS / "calendar-story-2-dragging-1280.png")

    drag(tina, AHEAD, HOURS, picture)
    dialog = tina.get_by_role("dialog", name="Book GPUs")
    expect(dialog.get_by_label("Start, time")).to_have_value(f"{HOURS[0]}:00")
    expect(dialog.get_by_label("End, time")).to_have_value(f"{HOURS[1]}:00")
    dialog.get_by_label("Title").fill(CLASS)
    dialog.get_by_label("Every week").check()
    dialog.get_by_label("How many times").fill("3")
    dialog.get_by_label("A class or group").check()
    dialog.get_by_label("Group of the hub").fill(GROUP)
    dialog.get_by_label("Starts with the profile").select_option("a100")
    check = dialog.locator("#book-check")
    expect(check).to_contain_text("4 seats with 1 a100 each: not free at 1 of 3 times.")
    screenshots(tina, "calendar-story-3-conflict", at=check)
    check.get_by_role("button", name=re.compile("^Take .* every time$")).first.click()
    expect(check).to_contain_text("4 seats with 1 a100 each: free at all 3 times.")
    screenshots(tina, "calendar-story-4-alternative", at=check)
    dialog.get_by_role("button", name="Book", exact=True).click()
    expect(tina.locator("#hint")).to_contain_text(f"“{CLASS}” is booked at 3 times.")
    expect(tina.locator(".ec-event.booking-mine", has_text=CLASS)).to_be_visible()
    calendars(tina, "calendar-story-5-booked")


def start_in(alice: Page, hub: Hub) -> None:
    """Watch the form until the class begins, and press its button."""
    card = alice.locator("section.carme-slot").filter(has=alice.get_by_role("heading", name=f"Class now: {TODAY}"))
    expect(card).to_be_visible(timeout=SLOW)
    expect(card).to_contain_text("charged to teaching")
    screenshots(alice, "calendar-story-6-class-now")
    card.get_by_role("button", name=f"Start in “{TODAY}”").click()
    alice.wait_for_url("**/user/alice/lab**", timeout=SLOW)
    alice.locator(".jp-LauncherCard, .jp-NotebookPanel").first.wait_for(timeout=SLOW)
    alice.screenshot(path=SCREENSHOTS / "calendar-story-7-lab-1280.png")


def test_a_teacher_drags_a_class_a_student_starts_in_it_and_an_unused_slot_is_released(
    hub: Hub, calendar_api: CalendarApi, people: Callable[[str], Page]
) -> None:
    mine = f"{hub.demo.url}{SERVICE}"
    tina, alice = people("tina"), people("alice")

    # A booking that nobody will use begins in a moment; in three days another user has all a100 for two hours.
    now = time.time()
    unused = calendar_api.book("tina", UNUSED, now + 3, now + 3 + 30 * MINUTE, account="teaching")
    assert held_at_first(hub, unused) == 4 * (unused["end"] - unused["start"]) * 1000
    first = today(tina) + AHEAD * DAY
    calendar_api.book(
        "ada", "A run of ada’s", first + HOURS[0] * 3600, first + HOURS[1] * 3600, seats=2, account="physics"
    )

    # A teacher drags over that time, and accepts the alternative.
    tina.goto(mine)
    expect(tina.locator(".ec-event.booking-others").first).to_be_visible()
    book_the_class(tina)

    mine_now = calendar_api.people["tina"].get("bookings?mine=true&state=confirmed")["bookings"]
    weekly = [each for each in mine_now if each["series"]]
    assert len(weekly) == 3
    wait_for(lambda: all(calendar_api.is_for(each, "alice") for each in weekly), 120, "the class to be in Slurm")

    # Another class begins while a student has the form open; its button is all that the student needs.
    now = time.time()
    there = calendar_api.book(
        "tina", TODAY, now + 8, now + 8 + 60 * MINUTE, seats=4, gpus=1, account="teaching", group=GROUP
    )
    alice.goto(f"{hub.demo.url}/hub/spawn/alice")
    start_in(alice, hub)
    (job,) = hub.jobs()
    names = hub.cluster.run("squeue", "-h", "-j", job["id"], "-O", "reservation:200").stdout.strip()
    assert set(names.split(",")) & set(there["slurm"]), "the lab is in Slurm's reservation"
    alice.goto(mine)
    expect(alice.locator(".ec-event.booking-class", has_text=TODAY).first).to_be_visible()
    calendars(alice, "calendar-story-8-students-calendar")

    # She stops; the teacher gives back the rest of that class.
    alice.goto(f"{hub.demo.url}/hub/home")
    ready(alice)
    alice.get_by_role("link", name="Stop My Server").or_(alice.get_by_role("button", name="Stop My Server")).click()
    expect(alice.get_by_text("Start My Server")).to_be_visible(timeout=SLOW)
    wait_for(lambda: calendar_api.one(there)["used"] > 0, 120, "the class to be seen in use")
    tina.goto(f"{mine}bookings/{there['id']}")
    screenshots(tina, "calendar-story-9-class")
    tina.get_by_role("button", name="Give it back now…").click()
    tina.get_by_role("button", name="Give it back").click()
    expect(tina.get_by_text(f"“{TODAY}” is given back.")).to_be_visible()
    wait_for(lambda: held(hub, there) == 0, 60, "the rest of the class's GPU time to come back")

    # The unused booking is released automatically, with its GPU time, and its owner is notified.
    wait_for(lambda: calendar_api.one(unused)["state"] == "released", 240, "the unused booking to be given back")
    assert held(hub, unused) == 0
    tina.goto(f"{mine}mine")
    row = tina.get_by_role("row").filter(has_text=UNUSED).first  # the newest; a database may know others
    expect(row).to_contain_text("Unused for ")
    screenshots(tina, "calendar-story-10-my-bookings")

    # She cancels the class, all of its times.
    tina.goto(mine)
    tina.locator(".ec-event.booking-mine", has_text=CLASS).click()
    tina.locator("#cancel").get_by_role("combobox").select_option("all")
    tina.get_by_role("button", name="Cancel…").click()
    screenshots(tina, "calendar-story-11-cancel")
    tina.get_by_role("button", name="Cancel it").click()
    expect(tina.get_by_text(f"“{CLASS}” is cancelled at 3 times.")).to_be_visible()
