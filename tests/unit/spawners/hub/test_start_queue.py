"""Starts go in one after the other, after requests of others; one that fails says why, however long it ends."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import aiohttp
import jupyterhub.apihandlers
import jupyterhub.handlers
import pytest
from forged_hub import ForgedHub, SpawnerThatOnlyNotes, forged_hub
from jupyterhub.handlers import BaseHandler
from jupyterhub.spawner import SpawnException
from jupyterhub.user import User
from traitlets.config import Config

from carme_hub.spawners.handlers.pages import install_handlers, refuse_twice
from carme_hub.spawners.hub.start_queue import (
    StartInPieces,
    StartQueue,
    answer_requests_first,
    queue_starts,
    start_queue,
)

WORK = 0.005
PEOPLE = [f"pupil{number:02}" for number in range(12)]


class Turns:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.now = 0
        self.going = True
        self._next()

    def _next(self) -> None:
        self.now += 1
        if self.going:
            asyncio.get_running_loop().call_soon(self._next)


async def turn(queue: StartQueue) -> None:
    async with queue.alone():
        pass


# -- the queue --------------------------------------------------------------------------------------------------------


async def test_each_piece_of_work_has_a_turn_of_the_loop_of_its_own_in_the_order_they_came() -> None:
    queue, turns = StartQueue(), Turns()
    begun: list[tuple[int, int]] = []

    async def start(number: int) -> None:
        await turn(queue)
        begun.append((number, turns.now))
        time.sleep(WORK)

    await asyncio.gather(*(start(number) for number in range(8)))
    turns.going = False
    assert [number for number, _ in begun] == list(range(8))
    when = [turn for _, turn in begun]
    # At least one whole turn in between, in which what has come meanwhile is read and answered.
    assert all(later - earlier >= 2 for earlier, later in itertools.pairwise(when))


async def test_who_is_alone_stays_so_while_it_waits_for_something_and_when_it_fails() -> None:
    queue = StartQueue()
    inside: list[int] = []
    most: list[int] = []

    async def start(number: int) -> None:
        async with queue.alone():
            inside.append(number)
            most.append(len(inside))
            await asyncio.sleep(0.001)
            inside.remove(number)
            if number == 1:
                raise ValueError(number)

    async with asyncio.timeout(10):
        done = await asyncio.gather(*(start(number) for number in range(4)), return_exceptions=True)
    assert most == [1, 1, 1, 1]
    assert [type(each) for each in done] == [type(None), ValueError, type(None), type(None)]


async def test_one_that_waits_for_ever_does_not_hold_up_the_others() -> None:
    queue, never = StartQueue(), asyncio.Event()

    async def start() -> None:
        async with queue.alone():
            await never.wait()

    stuck = asyncio.create_task(start())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await turn(queue)
        await turn(queue)
    assert not stuck.done()
    never.set()
    await stuck
    async with asyncio.timeout(10):
        await turn(queue)


async def test_nobody_waits_where_nobody_else_starts() -> None:
    queue, turns = StartQueue(), Turns()
    before = turns.now
    await turn(queue)
    assert turns.now == before
    turns.going = False


async def test_who_gives_up_does_not_hold_up_the_others() -> None:
    queue = StartQueue()
    await turn(queue)
    waiting = [asyncio.create_task(turn(queue)) for _ in range(4)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[2].cancel()
    async with asyncio.timeout(10):
        done = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in done] == [asyncio.CancelledError, type(None), asyncio.CancelledError, type(None)]


def test_jupyterhub_is_changed_once() -> None:
    queue_starts(User)
    answer_requests_first(BaseHandler)
    first = User.spawn, BaseHandler.prepare
    queue_starts(User)
    answer_requests_first(BaseHandler)
    assert (User.spawn, BaseHandler.prepare) == first


# -- in a hub ---------------------------------------------------------------------------------------------------------


class SpawnerWithLongTurns(SpawnerThatOnlyNotes):
    """Holds the loop as JupyterHub does on a slow machine, and ends slowly after a start that has failed."""

    options_form = ""  # type: ignore[assignment]
    offer = None  # type: ignore[assignment]
    apply_user_options = staticmethod(lambda *_: None)  # type: ignore[assignment]
    turns: ClassVar[Turns | None] = None
    begun: ClassVar[list[int]] = []
    ended: ClassVar[asyncio.Event] = asyncio.Event()

    async def start(self) -> str:
        raise SpawnException("The image has moved. Choose another one.", reason="forged")

    async def poll(self) -> None:  # type: ignore[override]
        return None

    async def stop(self, now: bool = False) -> None:
        await type(self).ended.wait()


class SpawnerInPieces(StartInPieces, SpawnerWithLongTurns):
    """Notes what JupyterHub has not stored yet whenever others are served in between."""

    not_stored: ClassVar[dict[str, list[object]]] = {}

    def _note(self, hook: str) -> None:
        db = self.user.db
        self.not_stored[hook] = [*db.dirty, *db.new]

    async def _get_oauth_client_allowed_scopes(self) -> Any:
        self._note("allowed_scopes")
        return await super()._get_oauth_client_allowed_scopes()

    async def run_auth_state_hook(self, auth_state: Any) -> None:
        self._note("auth_state_hook")
        await super().run_auth_state_hook(auth_state)

    async def apply_group_overrides(self) -> None:
        self._note("group_overrides")
        await super().apply_group_overrides()


def scopes_of(spawner: SpawnerWithLongTurns) -> list[str]:
    """Note in which turn of the loop JupyterHub's own part of the start runs."""
    turns = type(spawner).turns
    if turns is not None:
        spawner.begun.append(turns.now)
        time.sleep(WORK)
    return ["users:activity!user", "access:servers!server"]


@pytest.fixture
async def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ForgedHub]:
    for module in (jupyterhub.handlers, jupyterhub.apihandlers):
        monkeypatch.setattr(module, "default_handlers", list(module.default_handlers))
    monkeypatch.setattr(SpawnerWithLongTurns, "ended", asyncio.Event())
    monkeypatch.setattr(SpawnerWithLongTurns, "begun", [])
    install_handlers()
    config = Config()
    config.Spawner.server_token_scopes = scopes_of
    services = [{"name": "class", "api_token": "a-token-of-the-test", "admin": True}]
    async with forged_hub(str(tmp_path), SpawnerWithLongTurns, config, services=services) as found:
        found.app.tornado_settings["slow_spawn_timeout"] = 0.05
        found.app.tornado_application.settings["slow_spawn_timeout"] = 0.05
        yield found
        SpawnerWithLongTurns.ended.set()
        await asyncio.sleep(0.1)


@pytest.fixture
async def http(hub: ForgedHub) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        f"{hub.base}/", headers={"Authorization": "token a-token-of-the-test"}, timeout=aiohttp.ClientTimeout(30)
    ) as session:
        async with session.post("/hub/api/users", json={"usernames": PEOPLE}) as answer:
            assert answer.status == 201
        yield session


async def test_starts_wait_for_pages_and_answers_and_not_for_other_starts(
    hub: ForgedHub, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    SpawnerWithLongTurns.ended.set()
    begun: list[str] = []
    queue = start_queue(hub.app.tornado_settings)
    monkeypatch.setattr(queue, "request_begins", lambda: begun.append("a request"))
    for path in (f"api/users/{PEOPLE[0]}", "home"):
        await http.get(f"/hub/{path}")
        assert begun
        begun.clear()  # a page may lead to another one
    await http.post(f"/hub/api/users/{PEOPLE[0]}/server")
    await progress(http, PEOPLE[0])
    assert begun == []


async def test_handlers_and_starts_of_a_hub_wait_in_one_queue(hub: ForgedHub) -> None:
    of_handlers, of_users = hub.app.tornado_application.settings, hub.app.tornado_settings
    assert of_handlers is not of_users
    assert start_queue(of_handlers) is start_queue(of_users)


def test_a_spawner_outside_of_a_hub_waits_for_nobody() -> None:
    assert start_queue({}) is not start_queue({})


async def test_of_a_class_that_starts_at_once_never_two_are_let_in_in_one_turn(
    hub: ForgedHub, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    SpawnerWithLongTurns.ended.set()
    turns = Turns()
    monkeypatch.setattr(SpawnerWithLongTurns, "turns", turns)
    await asyncio.gather(*(http.post(f"/hub/api/users/{name}/server") for name in PEOPLE))
    async with asyncio.timeout(20):
        while len(SpawnerWithLongTurns.begun) < len(PEOPLE):
            await asyncio.sleep(0.01)
    turns.going = False
    assert len(set(SpawnerWithLongTurns.begun)) == len(PEOPLE)
    async with asyncio.timeout(20):
        while start_queue(hub.app.tornado_settings).starts:
            await asyncio.sleep(0.01)


async def test_others_are_served_within_a_start_where_everything_is_stored(
    hub: ForgedHub, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(hub.app.tornado_settings, "spawner_class", SpawnerInPieces)
    monkeypatch.setattr(SpawnerInPieces, "not_stored", {})
    SpawnerWithLongTurns.ended.set()
    await http.post(f"/hub/api/users/{PEOPLE[0]}/server", json={"profile": "small"})
    async with asyncio.timeout(20):
        while "group_overrides" not in SpawnerInPieces.not_stored:
            await asyncio.sleep(0.01)
    assert SpawnerInPieces.not_stored == {"allowed_scopes": [], "auth_state_hook": [], "group_overrides": []}


async def progress(http: aiohttp.ClientSession, name: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the status and all events."""
    async with http.get(f"/hub/api/users/{name}/server/progress") as answer:
        lines = (await answer.text()).splitlines()
        return answer.status, [json.loads(line[5:]) for line in lines if line.startswith("data:")]


async def test_a_start_that_has_failed_says_why_while_what_is_left_of_it_is_being_ended(
    hub: ForgedHub, http: aiohttp.ClientSession
) -> None:
    name = PEOPLE[0]
    starting = asyncio.create_task(http.post(f"/hub/api/users/{name}/server"))
    user = hub.app.users[name]
    async with asyncio.timeout(20):
        while "" not in user.spawners or user.spawners[""].pending != "stop":
            await asyncio.sleep(0.01)
    assert (await starting).status < 300  # it goes on
    asked = asyncio.create_task(progress(http, name))
    done, _ = await asyncio.wait([asked], timeout=0.3)
    assert not done
    SpawnerWithLongTurns.ended.set()
    status, events = await asked
    assert status == 200
    assert events[-1]["failed"]
    assert "The image has moved." in events[-1]["message"]


async def test_a_start_that_fails_while_the_hub_waits_for_it_says_why_and_not_that_the_hub_is_at_fault() -> None:
    failing = asyncio.get_running_loop().create_future()
    user = SimpleNamespace(spawners={"": SimpleNamespace(pending="stop", _spawn_future=failing)})

    class Starts:
        async def spawn_single_user(self, user: Any, server_name: str = "") -> None:
            user.spawners[server_name]._spawn_future.exception()  # as JupyterHub 6.1.1 asks

    refuse_twice(Starts)
    asked = asyncio.create_task(Starts().spawn_single_user(user))
    await asyncio.sleep(0)
    assert not asked.done()
    failing.set_exception(SpawnException("The image has moved.", reason="forged"))
    with pytest.raises(SpawnException, match="The image has moved"):
        await asked
    user.spawners[""] = SimpleNamespace(pending="spawn", _spawn_future=asyncio.get_running_loop().create_future())
    with pytest.raises(asyncio.InvalidStateError):  # what is not a failed start stays what it is
        await Starts().spawn_single_user(user)


async def test_a_server_that_just_stops_has_no_start_to_tell_of(hub: ForgedHub, http: aiohttp.ClientSession) -> None:
    SpawnerWithLongTurns.ended.set()
    status, events = await progress(http, PEOPLE[1])
    assert (status, events) == (404, [])
