"""The hub's home page says what the calendar means to who looks, and its buttons do what they say, for their owner."""

from __future__ import annotations

import asyncio
import html as text_of
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import jupyterhub.apihandlers
import jupyterhub.handlers
import pytest
from affected_parts import ID, session, window
from booked_parts import HOUR, booking, job
from forged_hub import ForgedHub, SpawnerThatOnlyNotes, forged_hub

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.cluster.jobs import Snapshot
from carme_hub.errors import SlurmUnreachable, StoreError
from carme_hub.spawners.form.cost import RemainingBudget
from carme_hub.spawners.form.slots import CalendarView
from carme_hub.spawners.handlers import maintenance, notices
from carme_hub.spawners.handlers.pages import install_handlers, templates_path
from carme_hub.spawners.maintenance.alternatives import NotAffected, NotMoved

MOVE, MAKE_WAY, RESTART = (f"/carme/sessions/{ID}/{what}" for what in ("move", "make-way", "restart"))


class Calendar:
    """What the hub's look at the calendar gives; ``silent`` is one that never answers."""

    def __init__(self) -> None:
        self.known: tuple[Reservation, ...] = ()
        self.past: tuple[Reservation, ...] = ()
        self.silent = self.broken = False

    async def refresh(self) -> CalendarView:
        if self.silent:
            await asyncio.sleep(3600)
        return CalendarView(self.known, was_read=True)

    async def read(self, question: Any) -> list[Reservation]:
        if self.broken:
            raise StoreError("no such table")
        found = question(SimpleNamespace(of_owner=lambda user, _since: [x for x in self.past if x.owner == user]))
        return list(found)


class Part:
    """What all spawners of the hub share, as far as the home page goes; sam has one session."""

    admission = None

    def __init__(self) -> None:
        now = time.time()
        self.slots: Calendar | None = Calendar()
        self.associations = SimpleNamespace(accounts_of=lambda _user: ("physics",), known=True)
        mine = replace(job(), name=f"carme-{ID}", user="sam", start=now - HOUR, end=now + 3 * HOUR, time_limit=240)
        self.watcher = SimpleNamespace(latest=Snapshot(0.0, 0.0, {1: mine}))
        self.sessions = {ID: session()}
        self.registry = SimpleNamespace(
            open_sessions=lambda: tuple(self.sessions.values()),
            current=self.sessions.get,
        )
        self.log = SimpleNamespace(warning=lambda *_: None, info=lambda *_: None)


class SpawnerWithCalendar(SpawnerThatOnlyNotes):
    """Shares what our spawners share."""

    part: ClassVar[Any] = None

    async def shared(self) -> Any:
        return self.part


@pytest.fixture(scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ForgedHub]:
    before = list(jupyterhub.handlers.default_handlers), list(jupyterhub.apihandlers.default_handlers)
    install_handlers()
    service = {"name": "reservations", "url": "http://127.0.0.1:1", "api_token": "t" * 32}
    roles = [
        {"name": "user", "scopes": ["self", "access:services!service=reservations"]},
        {"name": "helper", "scopes": ["admin:servers", "list:users"], "users": ["root"]},
    ]
    tmp = tmp_path_factory.mktemp("hub")
    more: dict[str, Any] = {"template_paths": [templates_path()], "services": [service], "load_roles": roles}
    try:
        async with forged_hub(str(tmp), SpawnerWithCalendar, **more) as hub:
            yield hub
    finally:
        jupyterhub.handlers.default_handlers[:] = before[0]
        jupyterhub.apihandlers.default_handlers[:] = before[1]


@pytest.fixture
def part(hub: ForgedHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Part]:
    hub.app.tornado_application.settings.pop("carme_calendar", None)
    monkeypatch.setattr(notices, "PAGE_WAIT", 60)
    found = SpawnerWithCalendar.part = Part()
    monkeypatch.setattr(maintenance, "started_hub", lambda: found)
    yield found
    SpawnerWithCalendar.part = None


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Note what the doors lead to."""
    asked: list[tuple[str, str]] = []

    def note(what: str) -> Any:
        async def do(_handler: Any, _part: Any, user: Any, _session: Any) -> None:
            asked.append((what, user.name))

        return do

    monkeypatch.setattr(maintenance, "move", note("move"))
    monkeypatch.setattr(maintenance, "stop_for_maintenance", note("make-way"))
    monkeypatch.setattr(maintenance, "restart", note("restart"))
    return asked


def at(hours: float, length: float = 1) -> Period:
    now = int(time.time())
    return Period(now + int(hours * HOUR), now + int((hours + length) * HOUR))


def mine(id: str, period: Period, **more: Any) -> Reservation:
    given = {"owner": "sam", "account": "physics", "group": "", "zone": "UTC", "state": State.CONFIRMED, **more}
    return booking(id, **given).replace(period=period)


def words(page: str) -> str:
    return text_of.unescape(" ".join(re.sub(r"<[^>]+>", " ", page).split()))


async def home(hub: ForgedHub, user: str) -> str:
    status, page, _ = await (await hub.browser(user)).get("/hub/home")
    assert status == 200
    return page


# -- notices ----------------------------------------------------------------------------------------------------------


async def test_bookings_after_the_next_day_are_a_list_below_the_sessions(hub: ForgedHub, part: Part) -> None:
    assert part.slots is not None
    part.slots.known = (
        *(mine(f"b{days}", at(24 * days), title=f"Day {days}") for days in (2, 3, 4, 5)),
        mine("b1", at(20), title="Tomorrow"),
        mine("other", at(50), title="Not yours", owner="tina", account="bio"),
        mine("far", at(24 * 31), title="Far away"),
    )
    page = await home(hub, "sam")
    [section] = re.findall(r'<section class="mb-3"\s+id="carme-bookings".*?</section>', page, re.DOTALL)
    assert re.findall("“(.*?)” begins in", text_of.unescape(section)) == ["Day 2", "Day 3", "Day 4"]
    assert 'href="/services/reservations/bookings/b2b2' in section
    assert "“Tomorrow” begins in" in words(page.replace(section, "")), "what is near is a notice"
    part.slots.known = ()
    assert "carme-bookings" not in await home(hub, "sam")


async def test_what_is_left_of_each_account_is_on_the_page(hub: ForgedHub, part: Part) -> None:
    async def cost(user: Any, request: Any) -> Any:
        assert (user.name, request) == ("sam", None)
        return None, {"physics": RemainingBudget("12.5 h left", 1), "bio": RemainingBudget("no limit")}

    part.admission = SimpleNamespace(cost=cost)  # type: ignore[assignment]
    page = words(await home(hub, "sam"))
    assert "Your GPU time bio : no limit physics : 12.5 h left" in page


async def test_a_page_without_gpu_time_has_no_section_of_it(hub: ForgedHub, part: Part) -> None:
    assert "Your GPU time" not in await home(hub, "sam")


async def test_the_gravest_is_first_and_each_leads_to_its_booking(hub: ForgedHub, part: Part) -> None:
    assert part.slots is not None
    broken = mine("1", at(30), title="Paper", problem="Maintenance of n1: this booking cannot be kept there.")
    now, soon = mine("2", at(-0.5), title="Thesis", state=State.ACTIVE), mine("3", at(5), title="Later")
    given_back = mine("4", at(-2, 3), title="Unused", state=State.RELEASED, actor="carme-hub", reason="nobody came")
    part.slots.known = (now, soon, broken)
    part.slots.past = (given_back.replace(ended=time.time() - 60), now)
    page = await home(hub, "sam")
    said = words(page)
    assert "this booking cannot be kept there." in said
    assert re.search("“Unused” from .* was given back. Reason: nobody came.", said)
    assert "“Thesis” is now: 2 × 1 a100, until" in said
    assert said.index("“Paper”") < said.index("“Unused”") < said.index("“Thesis”")
    assert "1 more in GPU calendar" in said, "three are shown"
    assert f'href="/services/reservations/bookings/{broken.id}">The booking</a>' in page
    assert "“" not in words(await home(hub, "bea")), "they are nobody else's"


async def test_what_is_given_back_by_oneself_or_long_ago_is_no_news(hub: ForgedHub, part: Part) -> None:
    assert part.slots is not None
    own = mine("4", at(-2, 3), state=State.RELEASED, actor="sam").replace(ended=time.time() - 60)
    old = mine("5", at(-30, 1), state=State.RELEASED, actor="carme-hub").replace(ended=time.time() - 90_000)
    part.slots.past = (own, old)
    assert "carme-notices" not in await home(hub, "sam")


@pytest.mark.parametrize("what", ["silent", "broken"])
async def test_a_calendar_that_does_not_answer_holds_up_no_page(
    hub: ForgedHub, part: Part, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "PAGE_WAIT", 0.2)
    assert part.slots is not None
    part.slots.known = (mine("2", at(5)), window().replace(period=at(1)))
    setattr(part.slots, what, True)
    page = await home(hub, "sam")
    assert "carme-notices" not in page
    assert "carme-way" not in page.replace("carme-way-choices", "")


async def test_where_nobody_books_the_page_is_as_it_was(hub: ForgedHub, part: Part) -> None:
    part.slots = None
    page = await home(hub, "sam")
    assert "carme-notices" not in page
    assert "make-way" not in page


# -- the ways out -----------------------------------------------------------------------------------------------------


async def test_a_session_in_the_way_is_offered_both_ways_with_what_they_mean(hub: ForgedHub, part: Part) -> None:
    assert part.slots is not None
    part.slots.known = (window().replace(period=at(1), title="<b>Disks</b>"),)
    page = await home(hub, "sam")
    said = words(page)
    assert "Maintenance ahead for your server Maintenance of n1 begins" in said
    assert "<b>Disks" not in page
    assert f'action="/hub{MOVE}"' in page
    assert f'action="/hub{MAKE_WAY}"' in page
    assert "It is stopped, and starts again with the same options, for 2 hours" in said
    assert said.count("Your files stay. Everything in memory is lost") == 2
    assert "Stop now…" in said, "no GPU time is kept here, so none is refunded"
    assert "refund" not in said
    assert "Maintenance" not in words(await home(hub, "bea"))


async def test_each_form_is_done_for_its_owner_with_the_hubs_token_alone(
    hub: ForgedHub, part: Part, done: list[tuple[str, str]]
) -> None:
    sam, bea = await hub.browser("sam"), await hub.browser("bea")
    status, _, headers = await sam.post(f"/hub{MOVE}", {})
    assert (status, headers["Location"]) == (303, "/hub/spawn-pending/sam")
    status, _, headers = await sam.post(f"/hub{MAKE_WAY}", {})
    assert (status, headers["Location"]) == (303, "/hub/home")
    status, _, headers = await sam.post(f"/hub{RESTART}", {})
    assert (status, headers["Location"]) == (303, "/hub/spawn-pending/sam")
    assert done == [("move", "sam"), ("make-way", "sam"), ("restart", "sam")]
    assert (await sam.ask("POST", f"/hub{MOVE}", data={}))[0] == 403, "without the token"
    assert (await sam.get(f"/hub{MOVE}"))[0] == 302, "a link asks for nothing"
    assert (await bea.post(f"/hub{MOVE}", {}))[0] == 404
    part.sessions.clear()
    status, page, _ = await sam.post(f"/hub{MOVE}", {})
    assert (status, "There is no such session, or it is over already." in page) == (404, True)
    assert len(done) == 3


async def test_rest_does_the_same_for_owner_and_administrator(
    hub: ForgedHub, part: Part, done: list[tuple[str, str]]
) -> None:
    sam, bea, root = [await hub.browser(name) for name in ("sam", "bea", "root")]

    async def ask(browser: Any, path: str, **more: Any) -> tuple[int, Any]:
        headers = {"Sec-Fetch-Mode": "cors", "X-XSRFToken": browser.xsrf, "Content-Type": "application/json"}
        status, text, _ = await browser.ask("POST", f"/hub/api{path}", headers=headers, **more)
        return status, json.loads(text)

    assert await ask(sam, MOVE) == (200, {"session": ID, "page": "/hub/spawn-pending/sam"})
    assert (await ask(root, MAKE_WAY))[0] == 200
    assert await ask(sam, RESTART) == (200, {"session": ID, "page": "/hub/spawn-pending/sam"})
    assert done == [("move", "sam"), ("make-way", "sam"), ("restart", "sam")]
    assert (await ask(bea, MOVE))[0] == 404, "she does not learn that there is one"
    assert (await ask(sam, MOVE, data="[1]"))[0] == 400
    assert (await ask(sam, MOVE.replace("0001", "0002")))[0] == 404
    assert len(done) == 3


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (NotAffected("It is not in the way."), 409, "It is not in the way."),
        (NotMoved("It would not start again: <i>no</i>."), 409, "It would not start again: <i>no</i>."),
        (SlurmUnreachable("slurmctld is down"), 503, "nothing was changed"),
        (StoreError("disk full"), 503, "nothing was changed"),
    ],
)
async def test_what_is_refused_is_said_on_the_page_and_to_programs(
    hub: ForgedHub, part: Part, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, said: str
) -> None:
    async def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(maintenance, "move", refuse)
    sam = await hub.browser("sam")
    code, page, _ = await sam.post(f"/hub{MOVE}", {})
    assert code == status
    assert said in text_of.unescape(page)
    assert "<i>" not in page
    assert "JupyterHub home page" in page
    headers = {"Sec-Fetch-Mode": "cors", "X-XSRFToken": sam.xsrf, "Content-Type": "application/json"}
    code, text, _ = await sam.ask("POST", f"/hub/api{MOVE}", headers=headers)
    assert code == status
    assert said in json.loads(text)["message"]
