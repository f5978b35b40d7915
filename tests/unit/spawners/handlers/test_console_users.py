"""REST about one user: who may lock, what a lock ends at once, and that each step of an offboarding is recorded."""

from __future__ import annotations

from typing import Any

import pytest
from forged_hub import ForgedHub
from jupyterhub import orm
from test_console import Site, api, hub, site

from carme_hub.administration.locked_users import LockedUsers
from carme_hub.spawners.handlers.console import rest

__all__ = ["hub", "site"]


@pytest.fixture
def place(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(site.administration, "locked", LockedUsers())
    monkeypatch.setattr(rest, "started_hub", lambda: site)
    return site


async def test_only_who_may_operate_locks_and_everybody_else_learns_nothing(hub: ForgedHub, place: Site) -> None:
    alice, tina = await hub.browser("alice"), await hub.browser("tina")
    for path in ("users/zoe/lock", "users/zoe/unlock", "users/zoe/offboardings"):
        for browser in (alice, tina):
            assert (await api(browser, "POST", path, {"reason": "x"}))[0] == 403, path
    assert (await api(alice, "GET", "locked-users"))[0] == 403
    assert (await api(tina, "GET", "locked-users"))[0] == 200
    assert place.reported == []


async def test_a_lock_ends_the_logins_of_the_user_and_is_listed(hub: ForgedHub, place: Site) -> None:
    ada, zoe = await hub.browser("ada"), await hub.browser("zoe")
    assert (await zoe.get("/hub/home"))[0] == 200
    before = cookie(hub, "zoe")
    status, found = await api(ada, "POST", "users/zoe/lock", {"reason": "Left in May"})
    assert (status, found["user"], found["actor"], found["reason"]) == (200, "zoe", "ada", "Left in May")
    assert cookie(hub, "zoe") != before
    assert (await zoe.get("/hub/home"))[0] == 302
    assert [one["user"] for one in (await api(ada, "GET", "locked-users"))[1]["locked"]] == ["zoe"]
    assert (await api(ada, "POST", "users/zoe/unlock", {"reason": "Back"})) == (200, {"user": "zoe"})
    assert (await api(ada, "POST", "users/zoe/unlock", {"reason": "Back"}))[0] == 404
    assert [act.action for act in place.reported] == ["lock-user", "unlock-user"]


async def test_a_name_that_the_hub_does_not_know_can_be_locked_and_nonsense_cannot(hub: ForgedHub, place: Site) -> None:
    ada = await hub.browser("ada")
    assert (await api(ada, "POST", "users/nobody-yet/lock", {"reason": "x"}))[0] == 200
    for path, reason in (
        ("users/ada/lock", "x"),
        ("users/zoe/lock", ""),
        ("users/%20/lock", "x"),
        ("users/a%0Ab/lock", "x"),
    ):
        assert (await api(ada, "POST", path, {"reason": reason}))[0] == 400, path
    assert [act.target for act in place.reported] == ["nobody-yet"]


async def test_steps_of_an_offboarding_are_recorded(hub: ForgedHub, place: Site) -> None:
    ada = await hub.browser("ada")
    body: dict[str, Any] = {"reason": "Left", "did": "jobs: 1 to be cancelled: job 7"}
    assert (await api(ada, "POST", "users/zoe/offboardings", body))[0] == 201
    assert (await api(ada, "POST", "users/zoe/offboardings", {**body, "outcome": "Slurm does not answer"}))[0] == 201
    assert (await api(ada, "POST", "users/zoe/offboardings", {"reason": "Left", "did": ""}))[0] == 400
    assert [(act.action, act.target, act.outcome) for act in place.reported] == [
        ("offboard-user", "zoe", "done"),
        ("offboard-user", "zoe", "Slurm does not answer"),
    ]


def cookie(hub: ForgedHub, name: str) -> str:
    hub.app.db.expire_all()
    return str(orm.User.find(hub.app.db, name).cookie_id)
