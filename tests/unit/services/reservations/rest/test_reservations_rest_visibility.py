"""REST of the calendar offers nobody what they may not do, links lead to pages, and a secret is in no log."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import forged_calendar_pages
import pytest
import pytest_asyncio
from forged_calendar_pages import NOW, Site, running
from icalendar import Calendar

from carme_hub.errors import StoreError
from carme_hub.services.reservations.application.feed import Feeds
from carme_hub.services.reservations.pages.routes import PAGES
from carme_hub.services.reservations.scopes import READ, READ_ALL, WRITE

SECRET = f"{'0' * 16}-{'s' * 43}"


@pytest_asyncio.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch) as site:
        yield site


async def test_who_sees_everything_and_decides_nothing_is_offered_nothing_of_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(forged_calendar_pages.SCOPES, "bob", (READ, READ_ALL, WRITE))
    (one,) = await site.book("tina", "Class", NOW + 3600)
    answer = await site.api("bob", "GET", f"api/v1/bookings/{one.id}")
    assert answer.code == 200
    assert b'"title": "Class"' in answer.body
    assert b'"may": []' in answer.body


async def test_the_address_in_a_calendar_file_is_that_of_a_page(site: Site) -> None:
    (one,) = await site.book("tina", "Class", NOW + 3600)
    answer = await site.api("tina", "GET", f"api/v1/bookings/{one.id}.ics")
    (event,) = Calendar.from_ical(answer.body).walk("VEVENT")
    path = str(event["url"]).partition("/services/reservations/")[2]
    assert any(re.fullmatch(pattern, path) for pattern, _ in PAGES), path


async def test_the_secret_of_a_feed_is_in_no_log_while_the_database_is_away(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away(_feeds: Feeds, _secret: str) -> str:
        raise StoreError("the database is away")

    monkeypatch.setattr(Feeds, "user_of", away)
    with caplog.at_level(logging.DEBUG):
        assert (await site.ask(f"api/v1/feed/{SECRET}.ics")).code == 503
    assert SECRET not in "".join(f"{record.getMessage()} {record.exc_text}" for record in caplog.records)
