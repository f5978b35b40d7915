"""The page shows the class that is now, its button starts it, and a forged or late one starts nothing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import jupyterhub.apihandlers
import jupyterhub.handlers
import pytest
from booked_parts import booking, place
from forged_hub import ForgedHub, SpawnerThatOnlyNotes, forged_hub

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation
from carme_hub.spawners.form.form import Offer
from carme_hub.spawners.form.offers import refusal
from carme_hub.spawners.form.options import checked_options
from carme_hub.spawners.form.slots import Bookings, CalendarView
from carme_hub.spawners.handlers.pages import install_handlers, templates_path


class SpawnerWithBookings(SpawnerThatOnlyNotes):
    """Knows one class of everybody's account, which the test sets."""

    known: tuple[Reservation, ...] = ()

    async def offer(self) -> Offer:
        plain = await super().offer()
        look = CalendarView(self.known, was_read=True)
        bookings = Bookings(self.user.name, frozenset(), plain.accounts, look, plain.cluster, time.time())
        return Offer(plain.profiles, plain.accounts, plain.images, cluster=plain.cluster, bookings=bookings)

    async def apply_user_options(self, _spawner: Any, user_options: dict[str, Any]) -> None:
        try:
            (await self.offer()).choose(checked_options(user_options))
        except Exception as error:
            raise refusal(error) from error  # type: ignore[arg-type]


@pytest.fixture(scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ForgedHub]:
    before = list(jupyterhub.handlers.default_handlers), list(jupyterhub.apihandlers.default_handlers)
    install_handlers()
    tmp = tmp_path_factory.mktemp("hub")
    try:
        async with forged_hub(str(tmp), SpawnerWithBookings, template_paths=[templates_path()]) as hub:
            yield hub
    finally:
        jupyterhub.handlers.default_handlers[:] = before[0]
        jupyterhub.apihandlers.default_handlers[:] = before[1]


@pytest.fixture(autouse=True)
def nothing_started() -> None:
    SpawnerThatOnlyNotes.started.clear()
    SpawnerWithBookings.known = ()


def class_now() -> Reservation:
    now = int(time.time())
    known = booking(account="physics", everybody=True, places=(place(count=2, cpus=32),))
    return known.replace(period=Period(now - 600, now + 3600))


def fields(page: str) -> dict[str, str]:
    (card,) = re.findall(r'<section class="card carme-slot.*?</section>', page, re.DOTALL)
    return {name: value for name, value in re.findall(r'name="([^"]+)" value="([^"]*)"', card) if name != "_xsrf"}


async def test_the_button_of_the_card_starts_in_the_class(hub: ForgedHub) -> None:
    SpawnerWithBookings.known = (class_now(),)
    browser = await hub.browser("ada")
    _, page, _ = await browser.get("/hub/spawn?next=/hub/home")
    assert "Class now: Physics" in page
    assert page.index("carme-slot") < page.index('id="spawn_form"')
    sent = fields(page)
    assert sent["reservation"] == f"booking:{class_now().id}"
    await browser.post("/hub/spawn", sent)
    [(who, options)] = SpawnerThatOnlyNotes.started
    assert (who, options["reservation"], options["gpus"]) == ("ada/", sent["reservation"], 1)


async def test_a_card_that_is_too_old_starts_nothing_and_says_so(hub: ForgedHub) -> None:
    SpawnerWithBookings.known = (class_now(),)
    browser = await hub.browser("bea")
    _, page, _ = await browser.get("/hub/spawn")
    sent = fields(page)
    SpawnerWithBookings.known = ()
    status, page, _ = await browser.post("/hub/spawn", sent)
    assert status == 400
    assert "That booking is not yours, or it is not its time now. Choose again." in page
    assert SpawnerThatOnlyNotes.started == []


async def test_an_open_page_learns_that_the_class_has_begun(hub: ForgedHub) -> None:
    browser = await hub.browser("cleo")
    _, page, _ = await browser.get("/hub/spawn")
    assert '<div id="carme-slots" aria-live="polite"></div>' in page
    headers = {"Sec-Fetch-Mode": "cors", "X-XSRFToken": browser.xsrf}
    _, text, _ = await browser.get("/hub/api/carme/availability?profile=cpu", headers=headers)
    assert json.loads(text)["slots"] == ""
    SpawnerWithBookings.known = (class_now(),)
    _, text, _ = await browser.get("/hub/api/carme/availability?profile=cpu", headers=headers)
    assert "Class now: Physics" in json.loads(text)["slots"]


async def test_where_nobody_books_the_page_is_as_it_was(hub: ForgedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpawnerWithBookings, "offer", SpawnerThatOnlyNotes.offer)
    browser = await hub.browser("dora")
    _, page, _ = await browser.get("/hub/spawn")
    assert "carme-slot" not in page
    headers = {"Sec-Fetch-Mode": "cors", "X-XSRFToken": browser.xsrf}
    _, text, _ = await browser.get("/hub/api/carme/availability?profile=cpu", headers=headers)
    assert "slots" not in json.loads(text)
