"""What nobody types who looks at a page, and what is sent twice, is answered with a sentence and done once."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from forged_calendar_pages import HOUR, NOW, Site, running
from forged_login import forged_association, plain
from tornado.httpclient import HTTPResponse

from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.reservations import Kind, Reservation, State
from carme_hub.errors import Refused
from carme_hub.services.reservations.rest import write

FORM = {
    "title": "Class", "gpu_type": "a100", "seats": "1", "gpus": "1", "account": "teaching", "zone": "Europe/Berlin",
    "start_date": "2026-11-24", "start_time": "09:00", "end_date": "2026-11-24", "end_time": "11:00", "whom": "me",
}  # fmt: skip


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch) as found:
        yield found


def fields(answer: HTTPResponse, *names: str) -> dict[str, str]:
    """Return the fields of these names, and the hidden ones where none is named."""
    found = dict(re.findall(r'name="(\w+)"[^>]*?value="([^"]*)"', answer.body.decode(), re.DOTALL))
    return {name: found[name] for name in names} if names else found


async def everything(site: Site) -> list[Reservation]:
    return site.service._read(lambda reads: reads.in_states(set(State)))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"take": "time:1795262400:1795269600", "zone": "Mars/Olympus"}, "not understood"),
        ({"take": "time:1795262400:1795269600", "zone": "Europe"}, "not understood"),
        ({"take": "time:9999999999999999:1"}, "not understood"),
        ({"start_date": "9999-12-31", "end_date": "", "end_time": "08:00"}, "The day of the start: write a day like"),
        ({"start_date": "2026-11-24", "end_date": "9999-12-31"}, "The day of the end: write a day like"),
        ({"start_date": "0001-01-01", "end_date": "0001-01-02"}, "The day of the start: write a day like"),
        ({"start_date": "8999-12-30", "end_date": "8999-12-30"}, "Nothing can be booked more than 3 years ahead"),
        (
            {"start_date": "9999-12-31", "repeats": "weekly", "count": "3", "take": "time:1:9999"},
            "The day of the start",
        ),
        ({"repeats": "weekly", "until": "8999-12-30"}, "It lasts more than"),
    ],
)
async def test_a_form_with_odd_fields_is_shown_again_with_a_sentence(
    site: Site, more: dict[str, str], words: str
) -> None:
    tina = site.visitor("tina")
    await tina.get("book")
    answer = await tina.post("book", **{**FORM, **more})
    assert answer.code in (200, 409)
    assert words in plain(answer)


async def test_what_is_moved_or_maintained_comes_once_whatever_else_is_sent(site: Site) -> None:
    (one,) = await site.book("tina", "Class", NOW + 24 * HOUR)
    tina, root = site.visitor("tina"), site.visitor("root")
    when = fields(await tina.get(f"bookings/{one.id}"), "start_date", "start_time", "end_date", "end_time", "version")
    odd = {**when, "zone": "Europe/Berlin", "without": f"{when['start_date']}T{when['start_time']}:00"}
    answer = await tina.post(f"bookings/{one.id}/move", **odd)
    assert (answer.code, "It has this time already" in plain(answer)) == (409, True)
    await root.get("administration/maintenance")
    asked = {**FORM, "nodes": "gpu3", "without": "2026-11-24T09:00:00", "repeats": "weekly", "count": "x"}
    answer = await root.post("administration/maintenance", **asked)
    assert (answer.code, "Plan this maintenance?" in plain(answer)) == (200, True)


async def test_what_was_booked_for_now_is_made_longer_and_shorter_on_its_page(site: Site) -> None:
    site.now = NOW + 27
    (one,) = await site.book("tina", "Now", site.now)
    assert one.period.start % 60 == 27
    with site.service.calendar.store.transaction("lab") as writes:
        writes.save(one.in_state(State.ACTIVE, site.now, actor="carme-hub"))
    tina = site.visitor("tina")
    for end, seconds in (("17:00", 0), ("15:00", 0)):
        page = await tina.get(f"bookings/{one.id}")
        when = fields(page, "start_date", "start_time", "end_date", "version")
        moved = {**when, "end_time": end, "zone": "Europe/Berlin"}
        look = await tina.post(f"bookings/{one.id}/move", **moved)
        assert "Move “Now”?" in plain(look)
        assert (await tina.post(f"bookings/{one.id}/move", **moved, confirmed="yes")).code == 303
        (now,) = await everything(site)
        assert (now.period.start, now.period.end % 60) == (one.period.start, seconds)
    when = fields(await tina.get(f"bookings/{one.id}"), "start_date", "start_time", "end_date", "end_time", "version")
    same = await tina.post(f"bookings/{one.id}/move", **when, zone="Europe/Berlin")
    assert "It has this time already" in plain(same)


async def test_what_ends_at_some_second_is_followed_by_what_is_offered(site: Site) -> None:
    site.now = NOW + 27
    await site.book("tina", "Now", site.now, need=Need("a100", 4, 2))
    tina = site.visitor("tina")
    await tina.get("book")
    when = {"start_date": "2026-11-20", "start_time": "15:00", "end_date": "2026-11-20", "end_time": "16:00"}
    look = await tina.post("book", **{**FORM, **when, "gpus": "4"})
    (first, *_) = re.findall(r'value="(time:[0-9:]+)"', look.body.decode())
    answer = await tina.post("book", **{**FORM, **when, "gpus": "4", "take": first})
    assert "not free" not in plain(answer)
    assert "15:01–16:00" in plain(answer)


async def test_who_is_removed_from_all_accounts_books_on_none_of_an_old_login(site: Site) -> None:
    async def others() -> list[Any]:
        return [forged_association("alice", "physics", True, False)]

    asked = {"title": "x", "gpu_type": "h100", "gpus": 1, "start": int(NOW) + HOUR, "end": int(NOW) + 2 * HOUR}
    assert (await site.api("tina", "GET", "api/v1/supply")).code == 200
    site.slurm.associations = others  # type: ignore[method-assign]
    await site.service.associations.refresh(-1.0)
    for account in ({}, {"account": "teaching"}):
        answer = await site.api(
            "tina", "POST", "api/v1/bookings", json_of({**asked, **account}), **{"Idempotency-Key": "k"}
        )
        assert answer.code in (403, 409), answer.body
    assert await everything(site) == []


async def test_maintenance_whose_answer_was_lost_is_planned_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = json_of({"nodes": ["gpu1"], "start": int(NOW) + HOUR, "end": int(NOW) + 2 * HOUR})
    with monkeypatch.context() as lost:
        lost.setattr(write, "viewer_of", _lost)
        await site.api("root", "POST", "api/v1/maintenance", asked, **{"Idempotency-Key": "k"})
    (planned,) = await everything(site)
    answer = await site.api("root", "POST", "api/v1/maintenance", asked, **{"Idempotency-Key": "k"})
    assert (answer.code, planned.id in answer.body.decode()) == (200, True)
    assert await everything(site) == [planned]


async def test_a_second_click_plans_no_second_maintenance(site: Site) -> None:
    root = site.visitor("root")
    await root.get("administration/maintenance")
    look = await root.post("administration/maintenance", **FORM, nodes="gpu1")
    again = fields(look)
    for _ in range(2):
        assert (await root.post("administration/maintenance", **again)).code == 303
    (planned,) = await everything(site)
    assert planned.kind is Kind.MAINTENANCE


async def _lost(_call: object) -> None:
    raise Refused("The answer is lost on its way.")


def json_of(said: object) -> str:
    return json.dumps(said)
