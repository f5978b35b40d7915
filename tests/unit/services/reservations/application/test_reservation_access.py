"""Who has come into the class since the last comparison gets in at once; a calendar that fails keeps nobody out."""

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
import pytest_asyncio
from forged_calendar_pages import HOUR, NOW, PREFIX, Site, running
from forged_login import forged_association
from test_reservations_service import keep

from carme_hub.booking.hub_access import SIGNATURE_HEADER, sign
from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.reservations import Reservation
from carme_hub.domain.quotas.group_names import person_in
from carme_hub.services.hub_users import HubUsers
from carme_hub.spawners.hub.reservation_access import request_access

TOKEN = "of-the-service"
log = logging.getLogger("test")


@pytest_asyncio.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch, interval=60.0) as site:
        keep(site)
        may_charge(site, "tina", "alice", "bob")
        yield site
        await site.service.reconciler.stop()


def hub_user(name: str, port: int, token: str = TOKEN) -> Any:
    """Return a user as the hub has one, whose reservations service listens at this port."""
    server = SimpleNamespace(url=f"http://127.0.0.1:{port}{PREFIX}")
    services = {"reservations": SimpleNamespace(server=server, api_token=token)}
    return SimpleNamespace(name=name, settings={"services": services})


def may_charge(site: Site, *users: str) -> None:
    """Have Slurm say that these users are in the account that pays."""

    async def associations() -> Any:
        return [forged_association(user, "teaching", True, False) for user in users]

    site.slurm.associations = associations  # type: ignore[method-assign]


async def class_now(site: Site) -> Reservation:
    """Book a class of a group, and have Slurm know it."""
    (one,) = await site.book("tina", "Class", NOW + HOUR, need=Need("a100", 1, 4), group="ml-course")
    site.service.reconciler.start()
    await site.service.reconciler.look()
    return one


def joins(site: Site, user: str) -> list[int]:
    """Put a user into the group, as the hub knows it; return what notes how often the hub was asked."""
    hub_users, asked = site.service.hub_users, []

    async def ask() -> Any:
        asked.append(1)
        return {**hub_users.people, user: person_in(user, ("ml-course",))}

    hub_users._ask = ask  # type: ignore[method-assign]
    hub_users._answered_at = time.monotonic() - 30  # half a minute ago, which is good enough for a usual pass
    return asked


def users(site: Site) -> set[str]:
    (there,) = site.kept.there.values()  # type: ignore[attr-defined]
    return set(there.users)


async def test_who_joins_the_class_during_it_is_in_slurm_before_their_job_is(site: Site) -> None:
    one = await class_now(site)
    asked = joins(site, "bob")
    await site.service.reconciler.look()
    assert users(site) == {"tina", "alice"}
    assert await request_access(hub_user("bob", site.port), one.id, log)
    assert users(site) == {"tina", "alice", "bob"}
    assert await request_access(hub_user("bob", site.port), one.id, log)
    assert await request_access(hub_user("alice", site.port), one.id, log)
    assert len(asked) == 1, "who is let in already costs nothing"


async def test_who_is_in_the_group_and_not_in_the_account_locks_nobody_out(site: Site) -> None:
    may_charge(site, "tina", "alice")
    one = await class_now(site)
    joins(site, "bob")
    assert not await request_access(hub_user("bob", site.port), one.id, log)
    assert users(site) == {"tina", "alice"}, "Slurm would refuse the whole reservation for one of another account"
    may_charge(site, "tina", "alice", "bob")
    assert await request_access(hub_user("bob", site.port), one.id, log)


async def test_a_whole_class_of_newcomers_is_one_question(site: Site) -> None:
    one = await class_now(site)
    asked = joins(site, "bob")
    everybody = await asyncio.gather(*(request_access(hub_user("bob", site.port), one.id, log) for _ in range(30)))
    assert all(everybody)
    assert len(asked) <= 2


async def test_who_is_not_in_the_class_is_not_let_in(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    one = await class_now(site)
    joins(site, "bob")
    with caplog.at_level(logging.WARNING):
        assert not await request_access(hub_user("mallory", site.port), one.id, log)
    assert "does not let mallory" in caplog.text
    assert "mallory" not in users(site)
    assert not await request_access(hub_user("tina", site.port), "0" * 36, log)


async def test_nobody_but_the_hub_is_answered(site: Site) -> None:
    one = await class_now(site)
    body = json.dumps({"user": "alice", "booking": one.id})
    for headers in (
        {},
        {"Authorization": "token root"},
        {SIGNATURE_HEADER: sign("guessed", body.encode())},
        {SIGNATURE_HEADER: "é"},
    ):
        answer = await site.ask("let-in", "POST", body, headers)
        assert answer.code == 403, headers
    right = {SIGNATURE_HEADER: sign(TOKEN, body.encode())}
    assert (await site.ask("let-in", "POST", body, right)).code == 200
    assert (await site.ask("let-in", "POST", body + " ", right)).code == 403
    assert (await site.ask("let-in", "GET", None, {SIGNATURE_HEADER: sign(TOKEN, b"")})).code == 405
    odd = json.dumps({"user": 7})
    assert (await site.ask("let-in", "POST", odd, {SIGNATURE_HEADER: sign(TOKEN, odd.encode())})).code == 400
    assert not await request_access(hub_user("alice", site.port, "another token"), one.id, log)


async def test_a_service_that_is_away_or_hangs_holds_a_start_up_for_a_moment_only(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    one = await class_now(site)

    async def never(*_: Any) -> bool:
        await asyncio.sleep(60)
        return True

    site.service.ensure_access = never  # type: ignore[method-assign]
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert not await request_access(hub_user("alice", site.port), one.id, log, max_wait=0.2)
        assert not await request_access(hub_user("alice", 9), one.id, log)
        site.service.not_ready = "The service is starting."
        assert not await request_access(hub_user("alice", site.port), one.id, log)
    assert time.monotonic() - began < 5
    assert caplog.text.count("alice") == 3
    nowhere = SimpleNamespace(name="alice", settings={"services": {}})
    assert not await request_access(nowhere, one.id, log)
    assert not await request_access(None, one.id, log)


async def test_a_silent_hub_is_logged_once_however_often_it_is_asked(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub_users = HubUsers(log)

    async def silent() -> Any:
        raise OSError("connection refused")

    monkeypatch.setattr(hub_users, "_ask", silent)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await hub_users.refresh(0)
    assert caplog.text.count("connection refused") == 1
    assert not hub_users.known
