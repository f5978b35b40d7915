"""The status page: what works now and incidents; who may read it, and that it names nobody."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import threading
import time
from typing import Any

import pytest
from forged_hub import Browser, ForgedHub
from test_console import ROOT, Site, api, hub, plain, site

from carme_hub.domain.administration.acts import Act
from carme_hub.spawners.handlers import status
from carme_hub.spawners.hub.monitoring.readiness import SETTING, Readiness
from carme_hub.spawners.hub.monitoring.status import SERVICES

__all__ = ["hub", "site"]
PAGE, API = "/hub/carme/status", "/hub/api/carme/status"


class Answers:
    """What each part says; "" = it works."""

    def __init__(self) -> None:
        self.said = dict.fromkeys(("hub-database", "database", "slurm", "proxy", "calendar", "accounting"), "")

    def readiness(self, *names: str) -> Readiness:
        async def ask(name: str) -> str:
            return self.said[name]

        moments = itertools.count(0, 10)  # nobody shares an answer
        return Readiness({name: lambda name=name: ask(name) for name in names}, lambda: float(next(moments)))


@pytest.fixture
def answers(hub: ForgedHub, site: Site, monkeypatch: pytest.MonkeyPatch) -> Answers:
    found = Answers()
    settings = hub.app.tornado_application.settings
    settings[SETTING] = found.readiness("hub-database", "database", "slurm", "proxy")
    settings[SERVICES] = found.readiness("calendar", "accounting")
    monkeypatch.setattr(status, "started_hub", lambda: site)
    hub.app.config.CarmeStatus.public = False
    return found


async def parts(browser: Browser) -> dict[str, str]:
    _, text, _ = await browser.get(API)
    return {part["name"]: part["problem"] for part in json.loads(text)["parts"]}


async def test_who_has_not_logged_in_is_asked_to_unless_the_site_shows_it_to_everybody(
    hub: ForgedHub, answers: Answers
) -> None:
    nobody = await hub.browser()
    code, _, headers = await nobody.get(PAGE)
    assert (code, headers["Location"]) == (302, "/hub/login?next=%2Fhub%2Fcarme%2Fstatus")
    assert (await nobody.get(API))[0] == 403
    hub.app.config.CarmeStatus.public = True
    code, text, _ = await nobody.get(PAGE)
    assert code == 200
    assert text.count(">works<") == 5
    assert (await nobody.get(API))[0] == 200
    assert (await nobody.post(PAGE, {}))[0] in (403, 405)


async def test_who_reads_the_page_elsewhere_learns_whose_time_it_has(
    hub: ForgedHub, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await hub.browser("alice")
    try:
        with monkeypatch.context() as changed:
            changed.setenv("TZ", "Asia/Tokyo")
            time.tzset()
            page = plain((await alice.get(PAGE))[1])
    finally:
        time.tzset()
    assert re.search(r"At \d\d:\d\d \(JST, as all times here\)", page)


async def test_everything_works(hub: ForgedHub, answers: Answers) -> None:
    alice = await hub.browser("alice")
    assert await parts(alice) == dict.fromkeys(("hub", "starts", "slurm", "calendar", "accounting"), "")
    assert "None in the last 30 days." in (await alice.get(PAGE))[1]


async def test_while_slurm_is_silent_starts_wait_and_nothing_is_said_to_have_ended(
    hub: ForgedHub, answers: Answers
) -> None:
    answers.said["slurm"] = "It has not answered for 60 s."
    found = await parts(await hub.browser("alice"))
    assert found["slurm"].startswith("Slurm does not answer. What runs goes on")
    assert found["starts"] == "New starts wait until Slurm answers."
    assert (found["hub"], found["calendar"]) == ("", "")


@pytest.mark.parametrize("part", ["hub-database", "database", "proxy"])
async def test_while_a_database_or_the_proxy_is_silent_nobody_reads_that_starts_work(
    hub: ForgedHub, answers: Answers, part: str
) -> None:
    answers.said |= {part: "It does not answer.", "slurm": "It has not answered for 60 s."}
    found = await parts(await hub.browser("alice"))
    assert found["starts"] == "New starts may fail: a database or the proxy does not answer."


async def test_each_part_that_does_not_work_says_what_that_means(hub: ForgedHub, site: Site, answers: Answers) -> None:
    answers.said |= {"database": "It does not answer.", "calendar": "x", "accounting": "x"}
    ada = await hub.browser("ada")
    await ada.post(f"{ROOT}/stop-starts", {"reason": "A secret reason"})
    _, text, _ = await ada.get(PAGE)
    assert text.count(">disturbed<") == 4
    found = await parts(ada)
    assert found["starts"].startswith("New starts are stopped")
    assert "secret" not in text, "the reason is on the form, which needs a login"
    assert "does not answer" in found["hub"]
    assert found["calendar"].startswith("Bookings stay")


async def test_an_incident_has_updates_and_an_end_and_each_is_in_the_audit_log(
    hub: ForgedHub, site: Site, answers: Answers
) -> None:
    ada, alice = await hub.browser("ada"), await hub.browser("alice")
    assert (await alice.get(f"{ROOT}/incident"))[0] == 403
    assert (await alice.post(f"{ROOT}/incident", {"text": "x"}))[0] == 403
    assert (await ada.get(f"{ROOT}/incident"))[0] == 200
    assert site.administration.announcements() == [], "a GET reports nothing"
    code, text, _ = await ada.post(f"{ROOT}/incident", {"text": ""})
    assert (code, "Write a text." in text) == (400, True)
    _, text, _ = await ada.post(f"{ROOT}/incident", {"text": "Disks are slow <b>now</b>."})
    assert "The incident is reported." in text
    [one] = site.administration.announcements()
    assert "Disks are slow" in (await alice.get("/hub/home"))[1], "it is on everybody's page, too"
    await ada.post(f"{ROOT}/incident-update", {"id": one.id, "text": "A server is being replaced."})
    page = plain((await alice.get(PAGE))[1])
    assert "Disks are slow &lt;b&gt;now&lt;/b&gt;." in page
    assert "it goes on" in page
    assert page.index("Disks are slow") < page.index("A server is being replaced.")
    _, text, _ = await ada.post(f"{ROOT}/incident-update", {"id": one.id, "text": "All is well.", "over": "1"})
    assert "The incident is over." in text
    page = plain((await alice.get(PAGE))[1])
    assert "All is well." in page
    assert "it goes on" not in page
    assert site.administration.announcements() == []
    code, text, _ = await ada.post(f"{ROOT}/incident-update", {"id": one.id, "text": "Again."})
    assert (code, "over already" in text) == (409, True)
    acts: list[Act] = site.reported
    assert [act.action for act in acts] == ["announce", "update-incident", "end-incident"]
    assert {act.actor.name for act in acts} == {"ada"}
    assert "ada" not in page.split("<main")[1], "users do not read who wrote it"


async def test_incidents_can_be_written_by_programs_and_those_taken_back_are_gone(
    hub: ForgedHub, site: Site, answers: Answers
) -> None:
    tina, alice = await hub.browser("tina"), await hub.browser("alice")
    code, one = await api(tina, "POST", "incidents", {"text": "No logins."})
    assert (code, one["kind"]) == (201, "incident")
    code, changed = await api(tina, "POST", f"incidents/{one['id']}/updates", {"text": "Fixed.", "over": True})
    assert code == 201
    assert changed["ends"] <= time.time()
    assert (await api(tina, "POST", f"incidents/{one['id']}/updates", {"text": "x"}))[0] == 404
    assert (await api(tina, "POST", f"incidents/{one['id']}/updates", {"text": "x", "over": "yes"}))[0] == 400
    [listed] = (await api(tina, "GET", "incidents"))[1]["incidents"]
    assert [each["text"] for each in listed["updates"]] == ["Fixed."]
    assert (await api(alice, "GET", "incidents"))[0] == 403
    assert (await api(alice, "POST", "incidents", {"text": "x"}))[0] == 403
    [shown] = json.loads((await alice.get(API))[1])["incidents"]
    assert set(shown) == {"id", "began", "over", "text", "updates"}
    _, wrong = await api(tina, "POST", "incidents", {"text": "Wrong."})
    await api(tina, "POST", f"messages/{wrong['id']}/withdraw", {"reason": "a mistake"})
    texts = [each["text"] for each in json.loads((await alice.get(API))[1])["incidents"]]
    assert texts == ["No logins."]


async def test_incidents_outlast_a_restart_and_a_month(
    hub: ForgedHub, site: Site, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    tina = await hub.browser("tina")
    _, one = await api(tina, "POST", "incidents", {"text": "Slow."})
    site.administration._messages.clear()
    await site.administration.load()
    assert [each.id for each in site.administration.announcements()] == [one["id"]]
    await api(tina, "POST", f"incidents/{one['id']}/updates", {"text": "Over.", "over": True})
    later = time.time() + 29 * 86_400
    monkeypatch.setattr(site.administration, "_clock", lambda: later)
    assert len(await site.administration.incidents()) == 1
    monkeypatch.setattr(site.administration, "_clock", lambda: later + 2 * 86_400)
    assert await site.administration.incidents() == []


async def test_without_a_database_the_page_says_what_works_and_that_incidents_are_missing(
    hub: ForgedHub, site: Site, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> Any:
        raise status.StoreError("connection to db.internal refused")

    monkeypatch.setattr(site.administration, "incidents", fail)
    _, text, _ = await (await hub.browser("alice")).get(PAGE)
    assert "The database does not answer, so incidents cannot be shown." in text
    assert "internal" not in text.split("<main")[1]


async def test_lines_and_long_words_of_an_incident_are_shown_as_lines_that_fit(
    hub: ForgedHub, site: Site, answers: Answers
) -> None:
    tina = await hub.browser("tina")
    await api(tina, "POST", "incidents", {"text": "Slow.\nSee https://a.long.address/of/a/ticket"})
    _, page, _ = await tina.get(PAGE)
    assert '<div class="carme-text">Slow.\nSee https' in page
    found = [await tina.get(path) for path in re.findall(r'href="(/hub/carme/static/[^"]+\.css[^"]*)"', page)]
    [rule] = re.findall(r"^\.carme-text \{(.*)\}$", "\n".join(text for _, text, _ in found), re.MULTILINE)
    assert "white-space: pre-line" in rule
    assert "overflow-wrap: anywhere" in rule


async def test_whoever_asks_for_the_page_again_and_again_costs_the_database_one_question(
    hub: ForgedHub, site: Site, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    tina, nobody = await hub.browser("tina"), await hub.browser()
    hub.app.config.CarmeStatus.public = True
    asked, incidents = 0, site.administration.store.incidents

    def counted(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return incidents(*args)

    monkeypatch.setattr(site.administration.store, "incidents", counted)
    _, one = await api(tina, "POST", "incidents", {"text": "Slow."})
    for _ in range(5):
        assert "Slow." in (await nobody.get(PAGE))[1]
        assert "Slow." in (await nobody.get(API))[1]
    assert asked == 1
    await api(tina, "POST", f"incidents/{one['id']}/updates", {"text": "Over.", "over": True})
    assert "Over." in (await nobody.get(PAGE))[1]
    assert asked == 2


async def test_a_database_that_hangs_holds_the_page_up_for_a_moment_and_is_asked_once(
    hub: ForgedHub, site: Site, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await hub.browser("alice")
    asked, thawed, incidents = 0, threading.Event(), site.administration.store.incidents

    def frozen(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        thawed.wait(20)
        return incidents(*args)

    monkeypatch.setattr(site.administration.store, "incidents", frozen)
    monkeypatch.setattr(status, "TIMEOUT", 0.05)
    began = time.monotonic()
    try:
        pages = await asyncio.gather(*(alice.get(PAGE) for _ in range(20)))
        assert {json.loads((await alice.get(API))[1])["incidents"] is None for _ in range(3)} == {True}
        assert time.monotonic() - began < 15
    finally:
        thawed.set()
    assert all("incidents cannot be shown" in page for _, page, _ in pages)
    assert asked == 1, "one thread waits for it, and the others do other work"
    monkeypatch.setattr(status, "TIMEOUT", 5.0)
    assert "None in the last 30 days." in (await alice.get(PAGE))[1]
