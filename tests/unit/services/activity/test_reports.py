"""A session's reporter writes its own minutes and nothing else; what it cannot have measured changes nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from forged_activity import ONE, OTHER, TWO, Site, running
from sqlalchemy import text

from carme_hub.domain.activity.minutes import GpuMinute, Minute
from carme_hub.domain.sessions.session import SessionState
from carme_hub.node import minutes as client


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch) as found:
        found.session()
        yield found


def minute(ago: int = 2) -> int:
    """Return the beginning of a minute some minutes ago."""
    return int(time.time()) // 60 * 60 - 60 * ago


def body(*minutes: dict[str, Any], **changes: Any) -> bytes:
    """Return a report as carme-report sends it."""
    gpu = {"uuid": "GPU-a", "name": "a100", "memory": 40960}
    sent: dict[str, Any] = {
        **{"version": 1, "session": ONE, "node": "n1", "now": time.time(), "virtual": False},
        **{"memory_limit": 8192, "cpus": 4, "gpus": [gpu], "minutes": list(minutes)},
    }
    return json.dumps(sent | changes).encode()


def full(ago: int = 2, **changes: Any) -> dict[str, Any]:
    gpu = {"utilisation": 50.5, "utilisation_most": 90, "memory": 100, "power": 300.0, "temperature": 60}
    return {
        "at": minute(ago),
        "seconds": 60,
        "cpu": 150.5,
        "memory": 700,
        "read": 1,
        "written": 2,
        "gpus": [gpu],
    } | changes


async def test_minutes_are_stored_when_the_answer_comes(site: Site) -> None:
    answer = await site.report(body(full(3), full(2, gpus=[{"memory": 5}])))
    assert answer.code == 204, answer.body
    stored = site.service.store.minutes([ONE], 0)[ONE]["n1"]
    gpu = GpuMinute(utilisation=50.5, utilisation_most=90, memory=100, power=300.0, temperature=60)
    assert stored[0] == Minute(minute(3), 60, 150.5, 700, 1, 2, (gpu,))
    assert stored[1].gpus == (GpuMinute(memory=5),)
    [use] = site.service.store.jobs([ONE])
    assert (use.about["memory_limit"], use.about["gpus"][0]["uuid"]) == (8192, "GPU-a")


async def test_what_the_program_on_the_node_sends_is_what_the_service_takes(site: Site) -> None:
    address = {"url": f"{site.url}api/v1/sessions/{ONE}/minutes", "token": site.tokens.token(ONE)}
    sent = json.loads(body(full(2)))
    await asyncio.to_thread(client.send, address, sent, 10.0)
    await asyncio.to_thread(client.send, address, sent, 10.0)  # it did not get the answer
    assert len(site.service.store.minutes([ONE], 0)[ONE]["n1"]) == 1
    with pytest.raises(client.Refused, match="This is not the token"):
        await asyncio.to_thread(client.send, {**address, "token": "x"}, sent, 10.0)


@pytest.mark.parametrize(
    ("token", "headers"),
    [("of another", {}), ("", {}), (None, {"Authorization": "token alice"}), (None, {"Authorization": ""})],
)
async def test_only_the_sessions_own_token_writes(site: Site, token: str | None, headers: dict[str, str]) -> None:
    site.session(TWO)
    given = site.tokens.token(TWO) if token == "of another" else token
    answer = await site.report(body(full()), token=given, **headers)
    assert answer.code == 403
    assert json.loads(answer.body)["message"] == "This is not the token of that session."
    assert site.service.store.jobs([ONE]) == []


async def test_a_session_that_is_not_there_is_refused(site: Site) -> None:
    answer = await site.report(body(full(), session=OTHER), session=OTHER)
    assert (answer.code, json.loads(answer.body)["message"]) == (403, "There is no such session.")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"session": TWO}, "of another session than the address"),
        ({"now": time.time() - 365 * 86400}, "s behind the hub's. Set it by NTP"),
        ({"now": float("1e300")}, "now:"),
        ({"minutes": []}, "minutes:"),
        ({"minutes": [full(-30)]}, "in the future"),
        ({"minutes": [full(24 * 60)]}, "before the job's begin"),
        ({"minutes": [full(), full()]}, "twice"),
        ({"minutes": [full(number) for number in range(61)]}, "minutes:"),
        ({"minutes": [full(cpu=-1)]}, "minutes.0.cpu:"),
        ({"minutes": [full(cpu="NaN")]}, "minutes.0.cpu:"),
        ({"minutes": [full(seconds=3600)]}, "minutes.0.seconds:"),
        ({"minutes": [full(gpus=[{"utilisation": 101}])]}, "minutes.0.gpus.0.utilisation:"),
        ({"minutes": [full(gpus=[{"memory": 1 << 60}])]}, "minutes.0.gpus.0.memory:"),
        ({"minutes": [full(gpus=[{"cost": 1}])]}, "is not a field of this request"),
        ({"minutes": [full(gpus=[{}] * 3)]}, "The session has 2 GPUs on a node, and more are reported."),
        ({"gpus": [{"uuid": "x", "name": "y", "memory": 1}] * 3}, "The session has 2 GPUs on a node"),
        ({"node": "../../etc"}, "node:"),
        ({"gpus": [{"uuid": "a\x00b", "name": "y", "memory": 1}]}, "gpus.0.uuid:"),
        ({"version": 2}, "version:"),
        ({"user": "bob"}, "is not a field of this request"),
    ],
)
async def test_what_cannot_have_been_measured_is_refused_and_changes_nothing(
    site: Site, changes: dict[str, Any], said: str
) -> None:
    answer = await site.report(body(**{"minutes": [full()]} | changes))
    assert answer.code == 422, answer.body
    assert said in json.loads(answer.body)["message"]
    assert site.service.store.jobs([ONE]) == []


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"x" * (1 << 20), (413, 422)),
        (b"{", (422,)),
        (b"[1]", (422,)),
        (b'{"minutes": ' + b"[" * 100_000, (422,)),
        (b"\xff\xfe", (422,)),
    ],
)
async def test_a_body_that_is_no_report_is_refused(site: Site, sent: bytes, status: tuple[int, ...]) -> None:
    answer = await site.report(sent)
    assert answer.code in status, answer.body
    assert (await site.report(body(full()))).code == 204, "the service goes on"


async def test_a_body_of_another_type_is_refused(site: Site) -> None:
    answer = await site.report(body(full()), **{"Content-Type": "text/plain"})
    assert answer.code == 415


async def test_the_last_minutes_of_a_session_that_has_ended_are_taken_and_later_ones_are_not(site: Site) -> None:
    site.session(TWO, state=SessionState.ENDED, ended=time.time() - 600)
    assert (await site.report(body(full(11), session=TWO), session=TWO)).code == 204
    answer = await site.report(body(full(2), session=TWO), session=TWO)
    assert answer.code == 422
    assert "after the job's end" in json.loads(answer.body)["message"]


async def test_a_session_that_has_just_begun_is_found_at_its_first_report(site: Site) -> None:
    assert (await site.report(body(full()))).code == 204
    site.session(TWO)
    assert (await site.report(body(full(), session=TWO), session=TWO)).code == 204


async def test_while_the_database_is_away_the_answer_says_to_come_again(site: Site) -> None:
    with site.service.store._engine.begin() as connection:
        connection.execute(text("DROP TABLE activity_hour"))
    answer = await site.report(body(full()))
    assert answer.code == 503
    address = {"url": f"{site.url}api/v1/sessions/{ONE}/minutes", "token": site.tokens.token(ONE)}
    with pytest.raises(OSError, match="503"):
        await asyncio.to_thread(client.send, address, json.loads(body(full())), 10.0)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_nothing_is_written_by_other_methods(site: Site, method: str) -> None:
    answer = await site.ask(method, f"api/v1/sessions/{ONE}/minutes", body(full()) if method == "PUT" else None)
    assert answer.code == 405


async def test_a_session_reports_from_no_more_nodes_than_its_jobs_can_have_had(site: Site) -> None:
    for number in range(8):
        assert (await site.report(body(full(2), node=f"n{number}"))).code == 204
    answer = await site.report(body(full(2), node="n8"))
    assert (answer.code, b"has reported from 8 nodes" in answer.body) == (422, True)
    assert (await site.report(body(full(1), node="n3"))).code == 204
    assert len(site.service.store.jobs([ONE])) == 8
