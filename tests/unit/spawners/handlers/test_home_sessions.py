"""The home page has the visitor's sessions, keeps them up to date by its stream, and stops them by a form."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, ClassVar

import jupyterhub.handlers
import pytest
from forged_hub import Browser, ForgedHub, SpawnerThatOnlyNotes, forged_hub
from jupyterhub import orm
from jupyterhub.objects import Server

from carme_hub.domain.cluster.jobs import Snapshot
from carme_hub.domain.cluster.resources import Gpus, Node
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import StoreError
from carme_hub.spawners.handlers.home import news, page, sessions
from carme_hub.spawners.handlers.pages import install_handlers, templates_path

ID = "5f0d8f0e-0000-4000-8000-000000000001"


class SpawnerWithSession(SpawnerThatOnlyNotes):
    """Has what the page reads of a Slurm session."""

    uncertainty, last_end, virtual, companions = "", "", False, ()
    time_left: ClassVar[Any] = None
    part: ClassVar[Any] = None

    async def shared(self) -> Any:
        return self.part


class Part:
    """The hub's context as far as the page goes; ``open`` and ``ended`` are alice's sessions."""

    activity_store = admission = slots = idle = own_jobs = administration = None
    settings = SimpleNamespace(submit_again=True)
    associations = SimpleNamespace(coordinates=lambda _user: ())

    def __init__(self) -> None:
        self.open: list[Session] = []
        self.ended: list[Session] = []
        self.silent = False
        self.registry = SimpleNamespace(
            open_of=lambda user, name: tuple(s for s in self.open if (s.user, s.server_name) == (user, name)),
            open_sessions=lambda: tuple(self.open),
            current=lambda id: next((s for s in self.open if s.id == id), None),
            batch_jobs_of=lambda _user: (),
            ended_of=self._ended_of,
            last_end=lambda user, _name: next((each for each in self.ended if each.user == user), None),
        )
        self.runs = SimpleNamespace(of=lambda _user: (0.0, []))
        self.cluster = Cluster()
        self.cluster_cache = SimpleNamespace(cluster=self._cluster)
        self.watcher = SimpleNamespace(latest=Snapshot(0, 0, {}), health=SimpleNamespace(ok=True, error=""))

    async def _cluster(self) -> Cluster:
        return self.cluster

    async def _ended_of(self, user: str, _since: float, _limit: int) -> list[Session]:
        if self.silent:
            raise StoreError("The database is away.")
        return [each for each in self.ended if each.user == user]


def session(**changes: Any) -> Session:
    request = Request("gpu", "base", Gpus("a100", 1), 2, 4096, 240)
    row = Session(ID, "lab", "alice", "", request, SessionState.RUNNING, 1.0, node="node7", job_id=12)
    return row.replace(**changes)


@pytest.fixture(scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ForgedHub]:
    before = list(jupyterhub.handlers.default_handlers)
    install_handlers()
    try:
        folder = str(tmp_path_factory.mktemp("hub"))
        async with forged_hub(folder, SpawnerWithSession, template_paths=[templates_path()]) as found:
            yield found
    finally:
        jupyterhub.handlers.default_handlers[:] = before


@pytest.fixture
def part(hub: ForgedHub, monkeypatch: pytest.MonkeyPatch) -> Part:
    found = Part()
    settings = hub.app.tornado_application.settings
    for name in ("carme_sessions", "carme_home_streams"):
        settings.pop(name, None)
    monkeypatch.setattr(SpawnerWithSession, "part", found)
    for module in (page, sessions, news):
        if hasattr(module, "started_hub"):
            monkeypatch.setattr(module, "started_hub", lambda: found)
    monkeypatch.setattr(sessions, "LOOK", 0.05)
    monkeypatch.setattr(sessions, "READ", 0.1)
    return found


@pytest.fixture
async def alice(hub: ForgedHub, part: Part) -> AsyncIterator[Browser]:
    """Alice, whose default server runs."""
    browser = await hub.browser("alice")
    spawner = hub.app.users["alice"].spawners[""]
    spawner.server = Server(
        orm_server=orm.Server(proto="http", ip="127.0.0.1", port=9, base_url="/user/alice/", cookie_name="c")
    )
    hub.app.db.commit()  # each request rolls back what is not
    part.open = [session()]
    await browser.get("/hub/home")
    yield browser
    spawner.server = None
    hub.app.db.commit()


async def events(browser: Browser, count: int, after: Any = None) -> list[str]:
    """Return the first events of the stream; ``after`` is called when the first one has come."""
    found: list[str] = []
    async with browser.http.get(f"{browser.base}/hub/carme/home/events") as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream"
        lines: list[str] = []
        async with asyncio.timeout(30):
            async for raw in response.content:
                line = raw.decode().rstrip("\n")
                if line:
                    lines.append(line)
                    continue
                found.append("\n".join(lines))
                lines = []
                if len(found) == count:
                    break
                if after is not None and len(found) == 1:
                    after()
    return found


async def test_the_page_has_the_sessions_without_any_script(alice: Browser, part: Part) -> None:
    part.ended = [session(id="other", state=SessionState.ENDED, ended=2.0, end_reason="A node failed.")]
    status, text, _ = await alice.get("/hub/home")
    assert status == 200
    shown = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    assert "Your server Running It has been running on node7" in shown
    assert "1 × a100" in shown
    assert "A node failed." in shown
    assert "Start it again" not in shown, "its server runs"
    assert f'action="/hub/carme/sessions/{ID}/stop"' in text


async def test_the_page_says_what_is_free_and_that_it_is_not_known_while_slurm_is_silent(
    alice: Browser, part: Part
) -> None:
    def shown(text: str) -> str:
        return " ".join(re.sub(r"<[^>]+>", "", text).split())

    assert "What is free is not known: Slurm does not answer." in shown((await alice.get("/hub/home"))[1])
    part.cluster = Cluster([Node("n1", "mixed", True, gpus={"a100": 4}, gpus_used={"a100": 1})], seen=1.0)
    assert "a100: 3 of 4 free." in shown((await alice.get("/hub/home"))[1])


async def test_the_stream_sends_the_sessions_when_they_change_and_only_then(alice: Browser, part: Part) -> None:
    def stop() -> None:
        part.open = [session(cancel_wanted=1.0)]

    first, second = await events(alice, 2, stop)
    assert first.startswith("event: sessions\ndata: ")
    assert "It has been running on node7" in first
    assert "It is being stopped." in second
    assert "It has been running on node7" not in second


async def test_without_a_change_the_stream_says_that_the_hub_is_alive(
    alice: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "KEEP_ALIVE", 0.2)
    first, *others = await events(alice, 4)
    assert first.startswith("event: sessions")
    assert others == ["event: alive\ndata: nothing has changed"] * 3


async def test_the_stream_ends_after_a_while_so_that_who_has_logged_out_gets_no_more(
    alice: Browser, monkeypatch: pytest.MonkeyPatch, hub: ForgedHub
) -> None:
    monkeypatch.setattr(sessions, "LONGEST", 0.3)
    assert len(await events(alice, 9)) == 1
    assert hub.app.tornado_application.settings["carme_home_streams"]["alice"] == 0


async def test_a_closed_page_ends_its_stream(alice: Browser, hub: ForgedHub, part: Part) -> None:
    await events(alice, 1)
    streams = hub.app.tornado_application.settings["carme_home_streams"]
    async with asyncio.timeout(10):
        while streams["alice"]:
            part.open = [session(node=f"node{time.monotonic_ns()}")]
            await asyncio.sleep(0.05)


async def test_nobody_gets_a_stream_without_login_or_more_than_there_are_pages(
    hub: ForgedHub, alice: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = await hub.browser()
    assert (await stranger.get("/hub/carme/home/events"))[0] == 403
    hub.app.tornado_application.settings["carme_home_streams"] = Counter(alice=sessions.MOST_STREAMS)
    status, _, _ = await alice.get("/hub/carme/home/events")
    assert status == 429


async def test_while_the_database_is_away_the_page_still_has_the_sessions(alice: Browser, part: Part) -> None:
    part.silent = True
    status, text, _ = await alice.get("/hub/home")
    assert status == 200
    assert "It has been running on node7" in text


async def test_other_peoples_sessions_are_not_there(hub: ForgedHub, alice: Browser, part: Part) -> None:
    bob = await hub.browser("bob")
    _, text, _ = await bob.get("/hub/home")
    assert "node7" not in text
    status, _, _ = await bob.post(f"/hub/carme/sessions/{ID}/stop", {})
    assert status == 404


class Stops:
    """Notes what was to be stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []

        async def stop(_handler: Any, user: Any, name: str = "") -> None:
            self.names.append(f"{user.name}/{name}")

        monkeypatch.setattr(sessions.StopFormHandler, "stop_single_user", stop)


async def test_the_form_stops_the_session_and_leads_back(alice: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    stops = Stops(monkeypatch)
    status, _, headers = await alice.post(f"/hub/carme/sessions/{ID}/stop", {})
    assert (status, headers["Location"], stops.names) == (303, "/hub/home", ["alice/"])


async def test_a_get_and_a_form_without_its_token_stop_nothing(alice: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    stops = Stops(monkeypatch)
    assert (await alice.get(f"/hub/carme/sessions/{ID}/stop"))[0] == 302
    alice.xsrf = "wrong"
    assert (await alice.post(f"/hub/carme/sessions/{ID}/stop", {}))[0] == 403
    assert stops.names == []


@pytest.mark.parametrize("pending", ["spawn", "stop"])
async def test_what_is_being_started_or_stopped_is_left_alone_and_the_page_says_so(
    alice: Browser, hub: ForgedHub, monkeypatch: pytest.MonkeyPatch, pending: str
) -> None:
    stops = Stops(monkeypatch)
    spawner = hub.app.users["alice"].spawners[""]
    monkeypatch.setattr(spawner, f"_{pending}_pending", True)
    status, text, _ = await alice.post(f"/hub/carme/sessions/{ID}/stop", {})
    assert (status, stops.names) == (409, [])
    assert "It is being" in text


async def test_a_session_that_has_ended_meanwhile_is_named_as_such(alice: Browser, part: Part) -> None:
    part.open = []
    status, text, _ = await alice.post(f"/hub/carme/sessions/{ID}/stop", {})
    assert status == 404
    assert "There is no such session, or it has ended already." in text


async def test_a_server_gets_a_name_on_its_card_and_loses_it_again(alice: Browser, hub: ForgedHub) -> None:
    name = f"/hub/carme/sessions/{ID}/rename"
    status, _, headers = await alice.post(name, {"title": "  My <b>paper</b>\n"})
    assert (status, headers["Location"]) == (303, "/hub/home")
    _, text, _ = await alice.get("/hub/home")
    assert "My &lt;b&gt;paper&lt;/b&gt;</h2>" in text
    assert hub.app.users["alice"].spawners[""].orm_spawner.display_name == "My <b>paper</b>"
    status, text, _ = await alice.post(name, {"title": "x" * 61})
    assert (status, "at most 60 characters" in text) == (400, True)
    assert (await alice.post(name, {"title": ""}))[0] == 303
    _, text, _ = await alice.get("/hub/home")
    assert "Your server</h2>" in text


async def test_nobody_names_what_is_not_theirs(hub: ForgedHub, alice: Browser) -> None:
    bob = await hub.browser("bob")
    assert (await bob.post(f"/hub/carme/sessions/{ID}/rename", {"title": "mine"}))[0] == 404
    assert (await alice.get(f"/hub/carme/sessions/{ID}/rename"))[0] == 302
    assert not hub.app.users["alice"].spawners[""].orm_spawner.display_name


async def test_how_the_last_session_ended_is_said_once(
    hub: ForgedHub, part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = await hub.browser("bob")
    monkeypatch.setattr(SpawnerWithSession, "last_end", "Your last session ended: an administrator stopped it.")
    status, text, _ = await bob.get("/hub/home")
    assert (status, text.count("an administrator stopped it.")) == (200, 1)
    ended = {"user": "bob", "state": SessionState.ENDED, "ended": time.time() - 60}
    part.ended = [session(end_reason="Its time was over.", **ended)]
    status, text, _ = await bob.get("/hub/home")
    assert (status, "an administrator stopped it." in text, "Its time was over." in text) == (200, False, True)


async def test_an_end_that_is_being_looked_up_is_said_beside_earlier_ones(
    hub: ForgedHub, part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = await hub.browser("bob")
    monkeypatch.setattr(SpawnerWithSession, "last_end", "Your server has ended. The hub is looking up how.")
    ended = {"user": "bob", "state": SessionState.ENDED, "ended": time.time() - 60}
    part.ended = [session(id="earlier", end_reason="Its time was over.", **ended)]
    part.open = [*part.open, session(id="leaving", user="bob")]
    status, text, _ = await bob.get("/hub/home")
    assert (status, "The hub is looking up how." in text, "Its time was over." in text) == (200, True, True)
