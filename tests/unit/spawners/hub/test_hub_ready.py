"""Whether the hub is ready: who asks learns which part does not answer, and nothing else; nobody waits for long."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forged_hub import ForgedHub, forged_hub
from jupyterhub import orm

from carme_hub.errors import StoreError
from carme_hub.slurm.watcher import Health
from carme_hub.spawners.hub.monitoring import install, readiness
from carme_hub.spawners.hub.monitoring.readiness import Readiness, parts_of


class Parts:
    """Parts that answer as the test wants, and how often each was asked."""

    def __init__(self) -> None:
        self.asked = {"database": 0, "slurm": 0}
        self.said = ""
        self.hangs = asyncio.Event()
        self.hangs.set()

    async def database(self) -> str:
        self.asked["database"] += 1
        await self.hangs.wait()
        return ""

    async def slurm(self) -> str:
        self.asked["slurm"] += 1
        if self.said == "raise":
            raise StoreError("connection to db.internal:5432 as user carme failed")
        return self.said


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def parts(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Parts, Readiness]]:
    monkeypatch.setattr(readiness, "TIMEOUT", 0.05)
    forged = Parts()
    ready = Readiness({"database": forged.database, "slurm": forged.slurm}, clock)
    yield forged, ready
    await ready.stop()


async def test_callers_of_two_seconds_share_one_check(parts: tuple[Parts, Readiness], clock: Clock) -> None:
    forged, ready = parts
    assert await ready.check() == {"database": "", "slurm": ""}
    for _ in range(3):
        await asyncio.gather(*(ready.check() for _ in range(20)))
    assert forged.asked == {"database": 1, "slurm": 1}
    clock.now += 2.1
    await asyncio.gather(*(ready.check() for _ in range(20)))
    assert forged.asked == {"database": 2, "slurm": 2}


async def test_a_part_that_hangs_is_not_asked_again_and_its_silence_is_counted(
    parts: tuple[Parts, Readiness], clock: Clock
) -> None:
    forged, ready = parts
    forged.hangs.clear()
    assert (await ready.check())["database"] == "It has not answered for 0 s."
    clock.now += 60
    assert await ready.check() == {"database": "It has not answered for 60 s.", "slurm": ""}
    assert forged.asked == {"database": 1, "slurm": 2}, "a thread is lost once, and not at each check"
    forged.hangs.set()
    await asyncio.sleep(0.01)
    clock.now += 60
    assert await ready.check() == {"database": "", "slurm": ""}


async def test_an_error_says_nothing_of_where_things_are(
    parts: tuple[Parts, Readiness], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    forged, ready = parts
    forged.said = "raise"
    with caplog.at_level(logging.INFO):
        assert (await ready.check())["slurm"] == "It does not answer."
        clock.now += 10
        await ready.check()
        forged.said = ""
        clock.now += 10
        await ready.check()
    assert [record.getMessage() for record in caplog.records] == [
        "The hub's slurm: It does not answer.",
        "The hub's slurm: answers again",
    ]


async def test_slurm_is_ready_when_it_has_answered_and_its_silence_has_a_length() -> None:
    watcher = SimpleNamespace(health=Health(True, time.monotonic()), latest=None)
    hub: Any = SimpleNamespace(watcher=watcher)
    ask = parts_of(SimpleNamespace(), hub)["slurm"]
    assert "has not answered" in await ask(), "the hub has just started"
    watcher.latest = object()
    assert await ask() == ""
    watcher.health = Health(False, time.monotonic() - 42, "slurm_load_jobs error: controller.internal", 3)
    assert await ask() == "It has not answered for 42 s."


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[ForgedHub]:
    async with forged_hub(str(tmp_path)) as hub:
        yield hub


async def test_the_address_needs_no_login_and_changes_nothing(hub: ForgedHub) -> None:
    ready = install.watch(hub.app)
    browser = await hub.browser()
    before = hub.app.db.query(orm.User).count(), hub.app.db.query(orm.APIToken).count()
    status, text, headers = await browser.get("/hub/ready")
    assert (status, headers["Cache-Control"]) == (200, "no-store")
    assert json.loads(text) == {"ready": True, "parts": {"hub-database": {"ready": True}, "proxy": {"ready": True}}}
    assert "Set-Cookie" not in headers
    assert (hub.app.db.query(orm.User).count(), hub.app.db.query(orm.APIToken).count()) == before
    status, text, _ = await browser.ask("HEAD", "/hub/ready")
    assert (status, text) == (200, "")
    assert (await browser.post("/hub/ready", {}))[0] in (403, 405)
    status, _, headers = await browser.get("/ready")
    assert (status, headers["Location"]) == (302, "/hub/ready"), "as /health leads to the hub's"
    await ready.stop()


async def test_a_proxy_that_does_not_answer_is_named_and_the_answer_is_503(
    hub: ForgedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise OSError("Cannot connect to host proxy.internal:8001")

    monkeypatch.setattr(hub.app.proxy, "get_all_routes", fail)
    ready = install.watch(hub.app)
    browser = await hub.browser("alice")
    status, text, _ = await browser.get("/hub/ready")
    assert (status, json.loads(text)["ready"]) == (503, False)
    assert json.loads(text)["parts"]["proxy"] == {"ready": False, "message": "It does not answer."}
    assert "internal" not in text
    assert "alice" not in text
    [family] = [each for each in install.COLLECTOR.collect() if each.name == "carme_ready"]
    assert {sample.labels["part"]: sample.value for sample in family.samples} == {"hub-database": 1.0, "proxy": 0.0}
    await ready.stop()
