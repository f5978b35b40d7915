"""Everybody reads what their own sessions use, and those with the scope what all do."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from forged_activity import ONE, OTHER, TWO, Site, running

from carme_hub.domain.activity.minutes import GpuMinute, Minute
from carme_hub.services.activity.app import ActivityService
from carme_hub.services.activity.rest.operations import openapi_document
from carme_hub.store.activity import Report

ABOUT = {
    **{"virtual": True, "memory_limit": 8192, "cpus": 4},
    "gpus": [{"uuid": "GPU-a", "name": "a100", "memory": 40960}],
}


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch) as found:
        found.session()
        found.session(TWO, user="bob", gpus=1)
        yield found


def at(ago: int) -> int:
    return int(time.time()) // 60 * 60 - 60 * ago


def store(site: Site, session: str, *agos: int, **gpu: Any) -> None:
    minutes = tuple(Minute(at(ago), 60, 150.0, 700, gpus=(GpuMinute(**gpu),)) for ago in agos)
    site.service.store.record([Report(session, "n1", minutes, ABOUT)])


async def get(site: Site, name: str, path: str, status: int = 200) -> Any:
    answer = await site.get(name, path)
    assert answer.code == status, answer.body
    return json.loads(answer.body)


async def test_the_list_has_ones_own_open_sessions_with_the_last_hour(site: Site) -> None:
    store(site, ONE, 200, 3, 2, utilisation=40.0, utilisation_most=60, power=200.0)
    store(site, TWO, 2, memory=5)
    [session] = (await get(site, "alice", "sessions"))["sessions"]
    assert (session["session"], session["user"], session["state"]) == (ONE, "alice", "running")
    [node] = session["nodes"]
    assert (node["node"], node["virtual"], node["memory_limit"], node["cpus"]) == ("n1", True, 8192, 4)
    assert node["gpus"] == [{"uuid": "GPU-a", "name": "a100", "memory": 40960}]
    assert [point["at"] for point in node["points"]] == [at(3), at(2)]
    assert node["points"][0]["gpus"][0]["utilisation"] == 40.0
    assert (node["points"][0]["cpus"], node["points"][0]["gpus"][0]["power"]) == (1.5, 200.0)
    assert node["total"]["seconds"] == 180


async def test_what_is_unknown_is_null_and_a_session_that_reports_nothing_has_no_nodes(site: Site) -> None:
    store(site, TWO, 2, memory=5)
    [session] = (await get(site, "bob", "sessions"))["sessions"]
    [gpu] = session["nodes"][0]["points"][0]["gpus"]
    assert (gpu["utilisation"], gpu["memory"], gpu["power"], gpu["xids"]) == (None, 5, None, {})
    assert (await get(site, "alice", "sessions"))["sessions"][0]["nodes"] == []


async def test_other_peoples_sessions_need_the_scope(site: Site) -> None:
    store(site, ONE, 2)
    for path in ("sessions?user=alice", "sessions?everybody=true"):
        assert (await get(site, "bob", path, 403))["error"] == "not-yours"
        assert ONE in [each["session"] for each in (await get(site, "root", path))["sessions"]]
    assert len((await get(site, "root", "sessions?everybody=true"))["sessions"]) == 2
    refused = await get(site, "bob", f"sessions/{ONE}", 404)
    assert refused == await get(site, "bob", f"sessions/{OTHER}", 404), "nobody learns which sessions there are"
    assert (await get(site, "root", f"sessions/{ONE}"))["user"] == "alice"
    await get(site, "stranger", "sessions", 403)
    assert (await site.ask("GET", "api/v1/sessions")).code == 401


async def test_a_session_has_its_minutes_and_its_hours_where_minutes_are_kept_no_more(site: Site) -> None:
    agos = (400, 399, 2)
    store(site, ONE, *agos, utilisation=40.0)
    site.service.store.prune(time.time() - 7200, 0)
    found = await get(site, "alice", f"sessions/{ONE}?since=1")
    points = found["nodes"][0]["points"]
    assert [point["seconds"] for point in points] in ([120, 60], [60, 60, 60])
    assert points[-1]["at"] == at(2)
    assert points[0]["at"] % 3600 == 0
    assert [point["at"] for point in (await get(site, "alice", f"sessions/{ONE}"))["nodes"][0]["points"]] == [at(2)]


async def test_metrics_are_by_partition_and_type_and_name_nobody(site: Site) -> None:
    store(site, ONE, 2, utilisation=40.0, memory=100, power=200.0)
    store(site, TWO, 2, memory=5)
    site.session(OTHER, user="carla")
    answer = await site.get("root", "metrics")
    text = answer.body.decode()
    labels = '{gpu_type="a100",partition="gpu"}'
    for line in (
        f"carme_activity_sessions{labels} 3.0",
        f"carme_activity_sessions_silent{labels} 1.0",
        f"carme_activity_gpus{labels} 2.0",
        f"carme_activity_gpus_unknown{labels} 1.0",
        f"carme_activity_gpu_utilisation_percent{labels} 40.0",
        f"carme_activity_gpu_memory_mib{labels} 105.0",
        f"carme_activity_gpu_power_watts{labels} 200.0",
    ):
        assert line in text
    for name in ("alice", "bob", ONE):
        assert name not in text
    assert (await site.get("alice", "metrics")).code == 403


async def test_the_document_describes_what_there_is(site: Site) -> None:
    document = await get(site, "alice", "openapi.json")
    assert document == openapi_document(site.service.prefix)
    assert set(document["paths"]) == {
        f"/api/v1/{path}" for path in ("sessions", "sessions/{id}", "jobs", "unused", "metrics", "openapi.json")
    }


async def test_the_service_opens_its_database_and_deletes_what_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch, keep_minutes=0.1, keep_hours=1.0) as site:
        site.session()
        store(site, ONE, 5 * 60, 2)
        service = ActivityService(config=site.service.config)
        await service.get_ready()
        try:
            assert service.tokens.key == (await _ready_again(service)).tokens.key
            for _ in range(100):
                if len(service.store.minutes([ONE], 0)[ONE]["n1"]) == 1:
                    break
                await asyncio.sleep(0.05)
            assert len(service.store.minutes([ONE], 0)[ONE]["n1"]) == 1
            assert service.store.jobs([ONE])[0].total.seconds == 120
        finally:
            await service.finish()


async def _ready_again(service: ActivityService) -> ActivityService:
    other = ActivityService(config=service.config)
    await other.get_ready()
    await other.finish()
    return other
