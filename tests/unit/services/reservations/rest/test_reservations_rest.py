"""REST of the calendar: what is booked, by whom, what others see of it, and what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from forged_calendar_pages import HOUR, NOW, Site, running
from icalendar import Calendar
from tornado.httpclient import HTTPResponse

from carme_hub.booking.messages import NO_MEMORY
from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.reservations import State
from carme_hub.services.reservations.rest.operations import ROUTES, openapi_document

START = int(NOW) + 24 * HOUR
FOUR = {"title": "ML class", "gpu_type": "a100", "gpus": 1, "seats": 4, "start": START, "end": START + 2 * HOUR}


@pytest_asyncio.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch, book_length=7 * 86_400, approval_above=100) as site:
        yield site


async def get(site: Site, who: str, path: str, status: int = 200) -> Any:
    answer = await site.api(who, "GET", f"api/v1/{path}")
    assert answer.code == status, (answer.code, answer.body)
    return json.loads(answer.body)


async def send(
    site: Site, who: str, path: str, body: Any, status: int = 200, key: str = "", method: str = "POST"
) -> Any:
    send.number = getattr(send, "number", 0) + 1  # type: ignore[attr-defined]
    headers = {"Idempotency-Key": key or f"k{send.number}"}  # type: ignore[attr-defined]
    answer = await site.api(who, method, f"api/v1/{path}", json.dumps(body), **headers)
    assert answer.code == status, (answer.code, answer.body)
    return json.loads(answer.body)


async def book(site: Site, who: str = "tina", **more: Any) -> dict[str, Any]:
    (one,) = (await send(site, who, "bookings", {**FOUR, **more}))["bookings"]
    return dict(one)


async def test_what_is_booked_is_confirmed_and_has_its_places(site: Site) -> None:
    one = await book(site, users=["alice"], zone="Europe/Berlin")
    assert (one["state"], one["owner"], one["account"], one["total"]) == ("confirmed", "tina", "teaching", 4)
    assert sum(place["gpus"] for place in one["places"]) == 4
    assert (one["start"], one["end"], one["zone"], one["version"]) == (START, START + 2 * HOUR, "Europe/Berlin", 1)
    assert one["may"] == ["move", "cancel"]
    assert one["amount"] == 4 * 2 * HOUR * 1000
    assert one["slurm"]
    assert await get(site, "tina", f"bookings/{one['id']}") == one
    (mine,) = (await get(site, "tina", "bookings?mine=true"))["bookings"]
    assert mine == one


async def test_others_see_that_gpus_are_taken_and_by_whom_only_where_it_concerns_them(site: Site) -> None:
    one = await book(site, users=["alice"])
    (invited,) = (await get(site, "alice", "bookings"))["bookings"]
    assert (invited["title"], invited["invited"], invited["mine"], invited["may"]) == ("ML class", True, False, [])
    (other,) = (await get(site, "bob", "bookings"))["bookings"]
    assert (other["hidden"], other["id"], other["title"], other["owner"]) == (True, "", "", "")
    assert (other["total"], other["gpu_type"], other["start"]) == (4, "a100", START)
    assert "tina" not in json.dumps(other)
    assert (await get(site, "bob", f"bookings/{one['id']}", 404))["error"] == "unknown"
    assert (await get(site, "bob", "bookings?mine=true"))["bookings"] == []
    (all_of_it,) = (await get(site, "root", "bookings"))["bookings"]
    assert (all_of_it["title"], all_of_it["may"]) == ("ML class", ["move", "cancel"])


async def test_what_is_taken_is_a_conflict_with_alternatives_and_nothing_is_booked(site: Site) -> None:
    await book(site, gpus=1, seats=8)
    refused = await send(site, "alice", "bookings", {**FOUR, "seats": 2}, 409)
    assert refused["error"] == "slot-taken"
    (conflict,) = refused["conflicts"]
    assert (conflict["start"], conflict["end"]) == (START, START + 2 * HOUR)
    assert {"start": START + 2 * HOUR, "end": START + 4 * HOUR} in conflict["times"]
    assert (conflict["seats"], conflict["types"]) == (0, ["h100"])
    checked = await send(site, "alice", "check", {**FOUR, "seats": 2})
    assert (checked["granted"], checked["refusal"], checked["conflicts"]) == (False, "", refused["conflicts"])
    assert len((await get(site, "root", "bookings"))["bookings"]) == 1


async def test_a_check_says_price_times_and_approval_and_writes_nothing(site: Site) -> None:
    weekly = {**FOUR, "zone": "Europe/Berlin", "start": "2027-03-14T02:30", "end": "2027-03-14T04:30"}
    weekly["rule"] = "FREQ=WEEKLY;COUNT=3"
    site.now = 1_804_000_000.0  # in March 2027, before the clocks change
    checked = await send(site, "tina", "check", weekly)
    assert checked["granted"], checked
    assert (checked["needs_approval"], checked["total"]) == (False, 4)
    assert [time["occurrence"] for time in checked["times"]] == [f"2027-03-{day}T02:30:00" for day in (14, 21, 28)]
    assert "Clocks skip 02:30 on that day" in checked["times"][2]["note"]
    assert [time["note"] for time in checked["times"][:2]] == ["", ""]
    assert checked["amount"] == sum(4 * (time["end"] - time["start"]) * 1000 for time in checked["times"])
    long = await send(site, "tina", "check", {**FOUR, "start": START, "end": START + 40 * HOUR, "seats": 3})
    assert long["refusal"]
    assert long["reason"] == "not-allowed" or long["reason"] == "bad-booking"
    assert (await get(site, "root", "bookings"))["bookings"] == []


async def test_a_booking_that_comes_again_is_booked_whole_without_the_times_that_are_left_out(site: Site) -> None:
    body = {**FOUR, "start": "2026-11-24T09:00", "end": "2026-11-24T11:00", "zone": "Europe/Berlin"}
    body |= {"rule": "FREQ=WEEKLY;BYDAY=TU;COUNT=3", "without": ["2026-12-01T09:00"]}
    done = (await send(site, "tina", "bookings", body))["bookings"]
    assert [one["occurrence"] for one in done] == ["2026-11-24T09:00:00", "2026-12-08T09:00:00"]
    assert len({one["series"] for one in done}) == 1
    assert done[0]["series"]
    gone = await send(site, "tina", f"bookings/{done[0]['id']}/cancel", {"series": "all", "reason": "No term"})
    assert [one["state"] for one in gone["bookings"]] == ["cancelled", "cancelled"]


async def test_the_same_key_books_once_and_another_request_under_it_is_refused(site: Site) -> None:
    first = await send(site, "tina", "bookings", FOUR, key="same")
    assert await send(site, "tina", "bookings", FOUR, key="same") == first
    assert (await send(site, "tina", "bookings", {**FOUR, "seats": 1}, 422, key="same"))["error"] == "key-used"
    assert len((await get(site, "tina", "bookings?mine=true"))["bookings"]) == 1
    answer = await site.api("tina", "POST", "api/v1/bookings", json.dumps(FOUR))
    assert (answer.code, json.loads(answer.body)["error"]) == (400, "bad-request")


async def test_a_move_needs_the_version_that_was_looked_at(site: Site) -> None:
    one = await book(site)
    later = {"version": 1, "start": START + HOUR, "end": START + 3 * HOUR}
    path = f"bookings/{one['id']}"
    (moved,) = (await send(site, "tina", path, later, method="PATCH"))["bookings"]
    assert (moved["start"], moved["version"]) == (START + HOUR, 2)
    assert (await send(site, "tina", path, later, 409, method="PATCH"))["error"] == "changed-meanwhile"
    wall = {"version": 2, "start": "2026-11-22T09:00", "end": "2026-11-22T10:00", "zone": "Europe/Berlin", "seats": 2}
    (moved,) = (await send(site, "tina", path, {**wall, "title": " New "}, method="PATCH"))["bookings"]
    assert (moved["start"], moved["seats"], moved["title"]) == (1_795_334_400, 2, "New")
    for nothing in ({"version": 3}, {"version": 3, "start": START}):
        assert (await send(site, "tina", path, nothing, 409, method="PATCH"))["error"] == "no-sense"
    assert (await send(site, "alice", path, later, 404, method="PATCH"))["error"] == "unknown"


async def test_only_the_owner_and_administrators_take_it_back(site: Site) -> None:
    one = await book(site, users=["alice"])
    path = f"bookings/{one['id']}/cancel"
    assert (await send(site, "alice", path, {}, 403))["error"] == "not-yours"
    (gone,) = (await send(site, "root", path, {"reason": "Power cut"}))["bookings"]
    assert (gone["state"], gone["actor"], gone["reason"]) == ("cancelled", "root", "Power cut")
    assert (await send(site, "tina", path, {}, 409))["error"] == "not-possible"


async def test_a_booking_that_has_begun_is_released(site: Site) -> None:
    one = await book(site)
    path = f"bookings/{one['id']}/release"
    assert (await send(site, "tina", path, {}, 409))["error"] == "not-possible"
    site.now = START + 60.0
    (done,) = (await send(site, "tina", path, {"reason": "Done early"}))["bookings"]
    assert (done["state"], done["ended"]) == ("released", START + 60)
    assert (await site.service.balances(["teaching"]))["teaching"].held == 0


async def test_what_is_large_waits_for_an_administrator(site: Site) -> None:
    one = await book(site, start=START, end=START + 24 * HOUR, seats=8)
    assert one["state"] == "pending"
    path = f"bookings/{one['id']}/decision"
    assert (await get(site, "root", "bookings?state=pending"))["bookings"][0]["may"] == ["move", "cancel", "decide"]
    for who in ("tina", "reader"):
        await send(site, who, path, {"decision": "approve"}, 403)
    (done,) = (await send(site, "root", path, {"decision": "approve", "reason": "Fine"}))["bookings"]
    assert (done["state"], done["actor"]) == ("confirmed", "root")
    assert (await send(site, "root", path, {"decision": "deny"}, 409))["error"] == "not-possible"


async def test_maintenance_takes_nodes_and_tells_what_it_changed(site: Site) -> None:
    one = await book(site, seats=8)
    asked = {"nodes": ["gpu1"], "start": START, "end": START + HOUR, "title": "New disks"}
    await send(site, "tina", "maintenance", asked, 403)
    done = await send(site, "root", "maintenance", asked)
    assert (done["maintenance"]["kind"], done["maintenance"]["places"][0]["node"]) == ("maintenance", "gpu1")
    assert [each["id"] for each in done["changed"]] == [one["id"]]
    assert "Maintenance of gpu1" in done["changed"][0]["problem"]
    (seen,) = [each for each in (await get(site, "bob", "bookings"))["bookings"] if each["kind"] == "maintenance"]
    assert seen["title"] == "New disks", "everybody may know of it"
    unknown = {**asked, "nodes": ["gpu9"]}
    assert (await send(site, "root", "maintenance", unknown, 409))["error"]


async def test_what_is_free_is_a_band_over_time(site: Site) -> None:
    await book(site)
    found = await get(site, "bob", f"free?from={START - HOUR}&to={START + 3 * HOUR}&type=a100")
    (band,) = found["types"]
    assert (band["gpu_type"], band["total"]) == ("a100", 8)
    assert [(part["start"] - START, part["end"] - START, part["free"]) for part in band["parts"]] == [
        (-HOUR, 0, 8),
        (0, 2 * HOUR, 4),
        (2 * HOUR, 3 * HOUR, 8),
    ]
    assert len((await get(site, "bob", "free"))["types"]) == 2
    assert (await get(site, "bob", "free?type=v100", 409))["error"] == "no-sense"
    assert (await get(site, "bob", f"free?from={START}&to={START}", 409))["error"] == "no-sense"
    assert (await get(site, "bob", f"free?from={START}&to={START + 500 * 86400}", 409))["error"] == "no-sense"
    assert (await get(site, "bob", "free?until=5", 400))["error"] == "bad-request"


async def test_supply_says_what_there_is_and_whether_one_may_book(site: Site) -> None:
    found = await get(site, "tina", "supply")
    assert (found["known"], found["keeps"], found["notes"]) == (True, "gpus", [NO_MEMORY])
    assert [(each["gpu_type"], each["total"], each["largest"]) for each in found["types"]] == [
        ("a100", 8, 4),
        ("h100", 4, 4),
    ]
    assert [each["name"] for each in found["nodes"]] == ["gpu1", "gpu2", "gpu3"]
    assert (found["may_book"], found["accounts"]) == (True, ["teaching"])
    assert (await get(site, "root", "supply"))["may_book"] is False, "without an account there is nobody to pay"


async def test_the_next_day_in_words(site: Site) -> None:
    site.now = START - 3600.0
    await book(site)
    told = " ".join((await get(site, "tina", "words?zone=Europe/Berlin"))["sentences"])
    assert "a100: 8 of 8 are free now; 4 of 8 today at 13:00" in told
    assert "“ML class” has 4 a100 from 13:00 to 15:00." in told
    other = " ".join((await get(site, "bob", "words"))["sentences"])
    assert "Others have 1 booking." in other
    assert "ML class" not in other
    assert (await get(site, "bob", "words?zone=Mars/Base", 409))["error"] == "no-sense"


async def test_a_feed_has_a_secret_address_that_can_be_made_anew_and_revoked(site: Site) -> None:
    one = await book(site, users=["alice"])
    assert (await get(site, "alice", "feed"))["made"] == 0
    first = await _feed(site, "POST")
    assert (await get(site, "alice", "feed")) == {"made": int(NOW), "address": ""}
    calendar = Calendar.from_ical((await _open(site, first["address"])).body)
    (event,) = calendar.walk("VEVENT")
    assert (str(event["summary"]), str(event["uid"])) == ("ML class", f"{one['id']}@carme-hub")
    second = await _feed(site, "POST")
    assert second["address"] != first["address"]
    assert (await _open(site, first["address"])).code == 404
    assert (await _open(site, second["address"])).code == 200
    stored = (site.service._engine or site.service.calendar.store._ledger._engine).url.database
    secret = second["address"].rpartition("/")[2].removesuffix(".ics")
    assert secret.encode() not in Path(str(stored)).read_bytes(), "only its digest is kept"
    await _feed(site, "DELETE")
    assert (await _open(site, second["address"])).code == 404
    assert (await get(site, "alice", "feed"))["made"] == 0


async def test_who_has_left_the_hub_has_no_feed_any_more(site: Site) -> None:
    made = await _feed(site, "POST")
    del site.service.hub_users.people["alice"]
    assert (await _open(site, made["address"])).code == 404
    site.service.hub_users.people.clear()
    silent = await _open(site, made["address"])
    assert (silent.code, silent.headers["Retry-After"]) == (503, "60"), "nobody knows who is who now"


async def _feed(site: Site, method: str) -> dict[str, Any]:
    answer = await site.api("alice", method, "api/v1/feed", "{}" if method == "POST" else None)
    assert answer.code == 200, answer.body
    return dict(json.loads(answer.body))


async def _open(site: Site, address: str) -> HTTPResponse:
    return await site.ask(address.partition("/services/reservations/")[2])


async def test_one_booking_as_ical_is_utc_and_names_its_state(site: Site) -> None:
    one = await book(site, title="Umlaute, Kommas; äöü", zone="Europe/Berlin")
    answer = await site.api("tina", "GET", f"api/v1/bookings/{one['id']}.ics")
    assert answer.code == 200
    assert answer.headers["Content-Type"] == "text/calendar; charset=utf-8"
    text = answer.body.decode()
    assert "DTSTART:20261121T120000Z" in text
    assert "STATUS:CONFIRMED" in text
    assert text.endswith("END:VCALENDAR\r\n")
    assert all(len(line.encode()) <= 75 for line in text.split("\r\n")), "RFC 5545, 3.1"
    (event,) = Calendar.from_ical(answer.body).walk("VEVENT")
    assert str(event["summary"]) == "Umlaute, Kommas; äöü"
    assert (await site.api("bob", "GET", f"api/v1/bookings/{one['id']}.ics")).code == 404


async def test_the_waitlist_is_for_what_is_taken(site: Site) -> None:
    await book(site, seats=8)
    waits = await book(site, "alice", wait=True)
    assert (waits["state"], waits["waits"], waits["total"], waits["places"]) == ("draft", True, 0, [])
    assert (await get(site, "bob", "bookings"))["bookings"][0]["owner"] == ""
    assert len((await get(site, "bob", "bookings"))["bookings"]) == 1, "a draft takes nothing"


async def test_only_an_administrator_books_for_somebody_else(site: Site) -> None:
    assert (await send(site, "tina", "bookings", {**FOUR, "owner": "alice"}, 403))["error"] == "not-yours"
    await site.service.associations.refresh()
    one = await book(site, "root", owner="alice")
    assert (one["owner"], one["account"], one["actor"], one["mine"]) == ("alice", "physics", "root", False)


@pytest.mark.parametrize(
    ("who", "method", "path", "status"),
    [
        ("reader", "POST", "bookings", 403),
        ("stranger", "GET", "bookings", 403),
        ("", "GET", "bookings", 401),
        ("tina", "GET", "metrics", 403),
        ("tina", "PUT", "bookings", 405),
        ("tina", "GET", "bookings/nonsense", 404),
        ("tina", "GET", "feed/nonsense.ics", 404),
    ],
)
async def test_who_may_not_is_told_so(site: Site, who: str, method: str, path: str, status: int) -> None:
    headers = {"Authorization": f"token {who}"} if who else {}
    body = json.dumps(FOUR) if method != "GET" else None
    answer = await site.ask(f"api/v1/{path}", method, body, {**headers, "Content-Type": "application/json"})
    assert answer.code == status, answer.body
    assert json.loads(answer.body)["message"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": START + 3 * HOUR},
        {"zone": "Mars/Base"},
        {"start": "2027-02-30T09:00", "end": "2027-02-30T10:00"},
        {"rule": "FREQ=WEEKLY"},
        {"account": "physics"},
        {"gpu_type": "v100"},
        {"start": START - 48 * HOUR, "end": START - 40 * HOUR},
    ],
)
async def test_what_makes_no_sense_is_refused_with_a_sentence(site: Site, wrong: dict[str, Any]) -> None:
    refused = await send(site, "tina", "bookings", {**FOUR, **wrong}, 409)
    assert refused["message"].endswith((".", "?")), refused


@pytest.mark.parametrize(
    "wrong", [{"title": ""}, {"title": "\n"}, {"gpus": -1}, {"seats": 0}, {"more": 1}, {"users": ["a b"]}, {"start": 1}]
)
async def test_what_is_no_booking_is_a_bad_request(site: Site, wrong: dict[str, Any]) -> None:
    assert (await send(site, "tina", "bookings", {**FOUR, **wrong}, 400))["error"] == "bad-request"


async def test_while_slurm_has_never_answered_nothing_is_promised(site: Site) -> None:
    site.service.slurm_view.at = 0.0
    assert (await get(site, "tina", "supply"))["known"] is False
    refused = await send(site, "tina", "bookings", FOUR, 503)
    assert refused["error"] == "slurm"


async def test_metrics_count_bookings_and_refusals(site: Site) -> None:
    await book(site)
    await send(site, "tina", "bookings", {**FOUR, "seats": 8}, 409)
    answer = await site.api("root", "GET", "api/v1/metrics")
    text = answer.body.decode()
    assert 'carme_reservations_bookings{state="confirmed"} 1.0' in text
    assert 'carme_reservations_refusals_total{reason="slot-taken"} 1.0' in text
    assert "carme_reservations_broken_promises 0.0" in text


async def test_health_is_public_and_says_whether_slurm_is_kept_equal(site: Site) -> None:
    answer = await site.ask("api/v1/health")
    assert json.loads(answer.body) == {"keeping": False, "age": None, "equal": False, "faults": []}


async def test_states_that_are_over_are_shown_where_they_are_asked_for(site: Site) -> None:
    (one,) = await site.book("tina", "Old", START, need=Need("a100", 2))
    await site.service.bookings.cancel(site.booker("tina"), one.id)
    assert (await get(site, "tina", "bookings"))["bookings"] == []
    (gone,) = (await get(site, "tina", "bookings?state=cancelled"))["bookings"]
    assert gone["state"] == State.CANCELLED.value
    assert [each["state"] for each in (await get(site, "tina", "bookings?mine=true"))["bookings"]] == ["cancelled"]


def test_the_document_has_every_route_and_each_operation_a_name_of_its_own() -> None:
    found = openapi_document("/services/reservations/")
    operations = [operation for path in found["paths"].values() for operation in path.values()]
    assert len({each["operationId"] for each in operations}) == len(operations) == len(ROUTES)
    assert found["components"]["schemas"]["TakenOut"]["properties"]["conflicts"]
