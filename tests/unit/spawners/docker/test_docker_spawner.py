"""A real JupyterHub application with CarmeDockerSpawner, in front of an engine that is forged."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from engine_in_memory import EngineInMemory
from forged_hub import ForgedHub, forged_hub
from jupyterhub import orm
from jupyterhub.httpclient import JupyterHubHTTPClient
from traitlets.config import Config

from carme_hub.spawners.docker import readiness
from carme_hub.spawners.docker.shared import started_reconciler, stop_reconciler
from carme_hub.spawners.docker.spawner import CarmeDockerSpawner

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class SpawnerOfFourGpus(CarmeDockerSpawner):
    """The spawner under a name of its own."""


SETTINGS: dict[str, Any] = {
    "gpus": [{"id": f"GPU-{n}", "type": "a100"} for n in range(4)],
    "images": [
        {"name": "lab", "path": "site/lab:1", "format": "ref", "description": "Python"},
        {"name": "gone", "path": "site/gone:1", "format": "ref"},
    ],
    "profile_list": [
        {
            "slug": "gpu",
            "display_name": "GPU",
            "gpus": {"types": ["a100"], "max": 4},
            "cpus": {"max": 8, "default": 2},
            "memory_gib": 4,
            "time_minutes": {"max": 240, "default": 60},
        },
        {"slug": "class", "display_name": "Course", "groups": ["course"]},
    ],
}


@pytest.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[ForgedHub, EngineInMemory]]:
    tmp: Path = tmp_path_factory.mktemp("box")
    engine = EngineInMemory(tmp)
    settings = {**SETTINGS, "client_kwargs": {"base_url": f"unix://{engine.socket}", "version": "1.41", "timeout": 60}}
    async with forged_hub(str(tmp), SpawnerOfFourGpus, Config({"SpawnerOfFourGpus": settings})) as hub:
        yield hub, engine
        await stop_reconciler()
        await JupyterHubHTTPClient.loop_instance().close()
    engine.end()


@pytest.fixture
async def engine(place: tuple[ForgedHub, EngineInMemory]) -> AsyncIterator[EngineInMemory]:
    """The engine, without containers before and after each test."""
    hub, engine = place
    yield engine
    engine.silent.clear()
    engine.answer, engine.start_refused, engine.ends_at_once, engine.log = None, "", False, ""
    for user in list(hub.app.users.values()):
        for name in list(user.spawners):
            if user.spawners[name].active:
                await user.stop(name)
    engine.containers.clear()
    reconciler = started_reconciler()
    if reconciler is not None:
        await reconciler.refresh()


@pytest.fixture
def hub(place: tuple[ForgedHub, EngineInMemory]) -> ForgedHub:
    return place[0]


async def click(hub: ForgedHub, user: str, **options: str) -> tuple[int, str]:
    """Press Start on the form, and return status and page."""
    browser = await hub.browser(user)
    await browser.get("/hub/spawn")
    status, page, _ = await browser.post("/hub/spawn", {"profile": "gpu", **options})
    return status, page


async def ready(hub: ForgedHub, user: str) -> Any:
    """Return a user's spawner once its server is ready."""
    spawner = hub.app.users[user].spawner
    async with asyncio.timeout(60):
        while not spawner.ready:
            await asyncio.sleep(0.02)
    return spawner


async def told(hub: ForgedHub, user: str) -> list[str]:
    return [event.message for event in hub.app.users[user].spawner._progress._events]


async def test_a_get_shows_the_form_with_what_is_free_and_starts_nothing(
    hub: ForgedHub, engine: EngineInMemory
) -> None:
    browser = await hub.browser("alice")
    for path in ("/hub/spawn", "/hub/spawn?opt-profile=gpu&opt-gpus=2", "/hub/spawn/alice?profile=gpu", "/user/alice/"):
        await browser.get(path)
    _, page, _ = await browser.get("/hub/spawn")
    assert "4 of 4 a100 free; starts now" in page
    assert "Course" not in page
    assert engine.containers == {}


async def test_a_click_starts_a_container_with_what_was_chosen(hub: ForgedHub, engine: EngineInMemory) -> None:
    status, _ = await click(hub, "alice", **{"gpu.gpus": "2", "gpu.cpus": "4", "gpu.time_minutes": "60"})
    assert status == 302
    spawner = await ready(hub, "alice")
    [container] = engine.containers.values()
    asked = container["Create"]
    assert (container["Name"], asked["Image"], asked["User"]) == ("carme-alice", "site/lab:1", "1000:100")
    assert asked["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == ["GPU-0", "GPU-1"]
    assert asked["HostConfig"]["NanoCpus"] == 4 * 10**9
    assert asked["Labels"]["carme.session"] == spawner.orm_spawner.state["session"]
    environ = dict(pair.split("=", 1) for pair in asked["Env"])
    assert environ["JUPYTERHUB_API_TOKEN"] == spawner.api_token
    assert "PATH" not in environ
    assert await told(hub, "alice") == [
        "Request accepted.",
        "Creating the container.",
        "The container runs with 2 × a100; the server is starting.",
        "The server answers.",
    ]
    browser = await hub.browser("bob")
    _, page, _ = await browser.get("/hub/spawn")
    assert "2 of 4 a100 free; starts now" in page


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpu.gpus": "8"}, "“GPU” gives 1 to 4 GPUs; you asked for 8."),
        ({"gpu.gpus": "two"}, "is not a whole number"),
        ({"privileged": "true"}, "The option “privileged” is not known."),
        ({"image": "docker.io/evil"}, "is not an image of this profile. Images: lab, gone."),
        ({"profile": "class"}, "is not offered to you. Offered: gpu."),
        ({"gpu.image": "gone"}, "The image site/gone:1 is not on this machine."),
        ({"gpu.working_folder": "/etc"}, "The working folder /etc is not in your container."),
        ({"account": "physics"}, "No account can be named here"),
    ],
)
async def test_what_may_not_be_is_refused_with_the_reason(
    hub: ForgedHub, engine: EngineInMemory, options: dict[str, str], said: str
) -> None:
    status, page = await click(hub, "alice", **options)
    assert status == 400
    assert said in page
    assert engine.containers == {}


async def test_what_is_not_free_is_refused_and_said_to_be(hub: ForgedHub, engine: EngineInMemory) -> None:
    engine.add(gpus="GPU-0,GPU-1,GPU-2", user="bob", prefix="carme", hub="another", cpus="1", memory_mib="1024")
    status, page = await click(hub, "alice", **{"gpu.gpus": "2"})
    assert status == 400
    assert "2 × a100 cannot be allocated now: 1 of 4 a100 free." in page
    assert len(engine.containers) == 1


async def test_a_refusal_of_the_engine_and_a_server_that_ends_are_said(hub: ForgedHub, engine: EngineInMemory) -> None:
    engine.start_refused = 'could not select device driver "" with capabilities: [[gpu]]'
    _, page = await click(hub, "alice")
    assert "The Docker engine refused the container: could not select device driver" in page
    assert engine.containers == {}
    engine.start_refused, engine.ends_at_once, engine.log = "", True, "ImportError: no module"
    _, page = await click(hub, "alice")
    assert "The server ended before it answered, with exit status 3." in page
    failure = hub.app.users["alice"].spawner._spawn_future.exception()
    assert "ImportError: no module" in failure.message_html
    assert engine.containers == {}


async def test_a_silent_engine_is_named_and_ends_nothing(
    hub: ForgedHub, engine: EngineInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await click(hub, "alice")
    spawner = await ready(hub, "alice")
    engine.answer = (503, {"message": "starting"})
    reconciler = started_reconciler()
    assert reconciler is not None
    await reconciler.refresh()
    reconciler._refreshed_at -= 1000
    assert await spawner.poll() is None
    browser = await hub.browser("bob")
    _, page, _ = await browser.get("/hub/spawn")
    assert "<strong>The Docker engine does not answer</strong>" in page
    assert "3 of 4 a100 were free at" in page
    monkeypatch.setattr(readiness, "RETRY_INTERVAL", 1.0)
    monkeypatch.setattr(SpawnerOfFourGpus, "start_timeout", 4.0)
    _, page = await click(hub, "bob")
    assert "The Docker engine of this machine does not answer. Nothing was started" in page
    assert (await told(hub, "bob"))[-1].startswith("The Docker engine answered 503: starting.")
    engine.answer = None
    assert await spawner.poll() is None
    assert len(engine.live()) == 1


async def test_a_stop_that_the_engine_does_not_hear_is_made_good(hub: ForgedHub, engine: EngineInMemory) -> None:
    await click(hub, "alice")
    spawner = await ready(hub, "alice")
    token = spawner.api_token
    engine.answer = (503, {"message": "starting"})
    await hub.app.users["alice"].stop()
    assert orm.APIToken.find(hub.app.db, token) is None
    assert not hub.app.users["alice"].spawner.active
    engine.answer = None
    assert len(engine.live()) == 1
    reconciler = started_reconciler()
    assert reconciler is not None
    await reconciler.refresh()
    for id in reconciler._suspects:
        reconciler._suspects[id] -= 1000
    await reconciler.refresh()
    async with asyncio.timeout(60):
        while engine.containers:
            await asyncio.sleep(0.02)


async def test_a_hub_that_starts_again_takes_its_servers_back(hub: ForgedHub, engine: EngineInMemory) -> None:
    await click(hub, "alice", **{"gpu.gpus": "3"})
    spawner = await ready(hub, "alice")
    state = dict(spawner.orm_spawner.state)
    await stop_reconciler()
    dict.pop(hub.app.users, hub.app.users["alice"].id)
    again = hub.app.users["alice"].spawner
    assert again is not spawner
    assert again._session_id == state["session"]
    assert await again.poll() is None
    again._check_pending = True
    again.server.port = 0
    assert await again.get_url() == f"http://127.0.0.1:{engine.web.server_address[1]}/user/alice/"
    again._check_pending = False
    _, page = await click(hub, "bob", **{"gpu.gpus": "2"})
    assert "1 of 4 a100 free" in page
    again._revoke()
    assert orm.APIToken.find(hub.app.db, spawner.api_token) is None


async def test_a_container_runs_as_the_system_user_when_asked(
    hub: ForgedHub, engine: EngineInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SpawnerOfFourGpus, "system_users", True)
    _, page = await click(hub, "nobody-knows-me")
    assert "There is no system user &#39;nobody-knows-me&#39;" in page
    _, page = await click(hub, "daemon")
    assert "is a system account and gets no session" in page
    alice = pwd.struct_passwd(("alice", "x", 2001, 2001, "", "/home/alice", "/bin/zsh"))
    monkeypatch.setattr(pwd, "getpwnam", lambda _name: alice)
    monkeypatch.setattr(os, "getgrouplist", lambda _name, gid: [gid, 27, 999, 3000])  # sudo, docker and a project
    await click(hub, "alice", **{"gpu.working_folder": "work"})
    await ready(hub, "alice")
    [container] = engine.containers.values()
    asked = container["Create"]
    assert asked["User"] == "2001:2001"
    assert asked["HostConfig"]["GroupAdd"] == ["3000"]
    [home] = asked["HostConfig"]["Mounts"]
    assert (home["Type"], home["Source"], home["Target"]) == ("bind", "/home/alice", "/home/alice")
    environ = dict(pair.split("=", 1) for pair in asked["Env"])
    assert (environ["HOME"], environ["USER"], environ["SHELL"]) == ("/home/alice", "alice", "/bin/zsh")
    assert environ["JUPYTERHUB_ROOT_DIR"] == "/home/alice/work"


async def test_options_of_the_api_pass_the_same_check(hub: ForgedHub, engine: EngineInMemory) -> None:
    token = hub.app.users["alice"].new_api_token()
    browser = await hub.browser()
    headers = {"Authorization": f"token {token}"}
    body = json.dumps({"user_options": {"profile": "gpu", "gpus": 9}})
    status, text, _ = await browser.ask("POST", "/hub/api/users/alice/server", data=body, headers=headers)
    assert status == 400
    assert json.loads(text)["message"] == "“GPU” gives 1 to 4 GPUs; you asked for 9."
    assert engine.containers == {}
