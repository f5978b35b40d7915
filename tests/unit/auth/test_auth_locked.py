"""A user whom an administrator has locked cannot log in, nor go on by an old login, a token or a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from auth_hub import Hub

from carme_hub.administration.locked_users import LOCKED
from carme_hub.domain.administration.acts import LOCK_USER, Act, Actor


@pytest.fixture
def locked() -> Iterator[None]:
    yield
    LOCKED.replace(())


def lock(name: str) -> None:
    LOCKED.add(Act(1.0, Actor("ada", "rest"), LOCK_USER, name, "Left"))


async def test_a_locked_user_is_refused_at_each_door(hub: Hub, locked: None) -> None:
    assert (await hub.login("alice")).code == 302
    token = hub.app.users["alice"].new_api_token()
    user = hub.app.users["alice"]
    assert await hub.authenticator.refresh_user(user)
    lock("alice")
    answer = await hub.login("alice")
    assert answer.code == 403
    assert "alice is locked on this hub" in answer.body.decode()
    assert "Left" not in answer.body.decode(), "the reason is for administrators"
    assert await hub.authenticator.refresh_user(user) is False
    status = await hub.authenticator.account_status(user)
    assert (status.is_allowed, status.proof) == (False, True), "so the revoker ends servers and tokens at once"
    user._auth_refreshed = 0
    hub.jar.clear()
    assert (await hub.fetch("/api/user", Authorization=f"token {token}")).code == 403
    LOCKED.remove("alice")
    assert (await hub.login("alice")).code == 302


async def test_others_are_not_concerned(hub: Hub, locked: None) -> None:
    lock("carol")  # names are exact
    assert (await hub.login("Carol")).code == 302
    assert (await hub.login("alice")).code == 302
