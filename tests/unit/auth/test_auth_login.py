"""Who gets in, as what, through a real JupyterHub."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from auth_hub import DirectoryOfThree, Hub, LoginThatChecks, running
from jupyterhub.utils import utcnow
from traitlets.config import Config

from carme_hub.auth import authenticator
from carme_hub.auth.authenticator import CarmeAuthenticator
from carme_hub.auth.system_users import SystemUser
from carme_hub.errors import ConfigError, SlurmUnreachable
from carme_hub.slurm.client import Association


async def test_a_member_of_an_allowed_group_gets_in_with_groups_and_accounts(hub: Hub) -> None:
    response = await hub.login("alice")
    assert response.code == 302
    assert hub.groups_of("alice") == {"alice", "gpu-users", "account:physics", "account:chem"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bob", "may not use this hub yet"),  # in no allowed group
        ("mallory", "not a user of this cluster"),
        ("daemon", "system account"),
        ("nobody", "system account"),
        ("carol", "not a user of this cluster"),  # there is a Carol: names are exact
        ("alice/../bob", "not a user of this cluster"),
        ("alice\x00", ""),
    ],
)
async def test_everybody_else_is_refused_with_a_reason(hub: Hub, name: str, words: str) -> None:
    response = await hub.login(name)
    assert response.code in (400, 403)
    assert words in response.body.decode()
    assert "jupyterhub-hub-login" not in hub.jar


async def test_a_wrong_password_is_told_from_a_closed_door(hub: Hub) -> None:
    response = await hub.login("alice", "wrong")
    assert response.code == 403
    assert "Invalid username or password" in response.body.decode()


async def test_capitals_in_system_names_are_kept(hub: Hub) -> None:
    assert (await hub.login("Carol")).code == 302
    assert hub.app.users["Carol"].name == "Carol"


@pytest.mark.parametrize("reason", ["locked", "expired"])
async def test_a_closed_account_is_refused_even_with_the_right_password(hub: Hub, reason: str) -> None:
    hub.directory.closed["alice"] = reason
    response = await hub.login("alice")
    assert response.code == 403
    assert f"The account alice is {reason}" in response.body.decode()


async def test_without_any_allow_setting_nobody_gets_in(tmp_path: Path, directory: DirectoryOfThree) -> None:
    def change(c: Config) -> None:
        c.CarmeAuthenticator.allowed_groups = set()

    async with running(tmp_path, directory, change) as hub:
        assert (await hub.login("alice")).code == 403


async def test_an_account_can_let_in_and_silence_of_slurm_is_said(tmp_path: Path, directory: DirectoryOfThree) -> None:
    def change(c: Config) -> None:
        c.CarmeAuthenticator.allowed_groups = set()
        c.CarmeAuthenticator.allowed_accounts = {"chem"}

    async with running(tmp_path, directory, change) as hub:
        hub.slurm.silent = True
        response = await hub.login("bob")
        assert response.code == 503
        assert "Slurm does not answer" in response.body.decode()
        hub.slurm.silent = False
        assert (await hub.login("bob")).code == 302
        hub.slurm.silent = True
        assert (await hub.login("bob")).code == 302  # what was known stays
        assert "account:chem" in hub.groups_of("bob")


async def test_roles_follow_groups_and_carry_scopes(tmp_path: Path, directory: DirectoryOfThree) -> None:
    from carme_hub.config import ROLES

    def change(c: Config) -> None:
        c.JupyterHub.load_roles = [dict(role) for role in ROLES]
        c.CarmeAuthenticator.role_groups = {"operator": {"hub-admins"}, "teacher": ["account:physics"]}

    async with running(tmp_path, directory, change) as hub:
        await hub.login("Carol")
        scopes = await scopes_of(hub, "Carol")
        assert "delete:servers" in scopes
        assert "access:servers" not in scopes
        await hub.login("alice")
        scopes = await scopes_of(hub, "alice")
        assert "list:groups" in scopes
        assert "delete:servers" not in scopes
        directory.users["Carol"] = SystemUser("Carol", 2003, 2003, "/bin/bash", ("Carol", "gpu-users"))
        await hub.login("Carol")
        assert "delete:servers" not in await scopes_of(hub, "Carol")


async def test_an_administrator_is_one_while_in_the_group(tmp_path: Path, directory: DirectoryOfThree) -> None:
    def change(c: Config) -> None:
        c.CarmeAuthenticator.role_groups = {"admin": {"hub-admins"}}

    async with running(tmp_path, directory, change) as hub:
        await hub.login("Carol")
        assert "admin:users" in await scopes_of(hub, "Carol")
        directory.users["Carol"] = SystemUser("Carol", 2003, 2003, "/bin/bash", ("Carol", "gpu-users"))
        age(hub, "Carol")
        assert (await hub.fetch("/home")).code == 200
        assert "admin:users" not in await scopes_of(hub, "Carol")


async def scopes_of(hub: Hub, name: str) -> set[str]:
    from jupyterhub.scopes import get_scopes_for

    hub.app.db.expire_all()
    return set(get_scopes_for(hub.app.users[name].orm_user))


@pytest.mark.parametrize("counted", [False, True])
async def test_groups_of_the_login_count_where_asked_and_never_forge_ours(
    tmp_path: Path, directory: DirectoryOfThree, monkeypatch: pytest.MonkeyPatch, counted: bool
) -> None:
    async def giving(self: Any, handler: Any, data: dict[str, str]) -> dict[str, Any]:
        return {"name": data["username"], "groups": ["lab", "account:rich", "role:admin"]}

    def change(c: Config) -> None:
        c.CarmeAuthenticator.login_groups = counted

    monkeypatch.setattr(LoginThatChecks, "authenticate", giving)
    async with running(tmp_path, directory, change) as hub:
        await hub.login("alice")
        expected = {"alice", "gpu-users", "account:physics", "account:chem"} | ({"lab"} if counted else set())
        assert hub.groups_of("alice") == expected
        age(hub, "alice")
        await hub.fetch("/home")  # a look without a login keeps what the login gave
        assert hub.groups_of("alice") == expected


async def test_a_closed_account_is_out_at_the_next_look(hub: Hub) -> None:
    await hub.login("alice")
    token = hub.app.users["alice"].new_api_token()
    assert (await hub.fetch("/home")).code == 200
    hub.directory.closed["alice"] = "locked"
    age(hub, "alice")
    assert (await hub.fetch("/home")).code == 302  # to the login page
    hub.jar.clear()
    assert (await hub.fetch("/api/user", Authorization=f"token {token}")).code == 403
    # A start is refused at once, however young the last look.
    hub.app.users["alice"]._auth_refreshed = utcnow().timestamp() * 2
    admin = hub.app.users.add(hub.app.db.merge(_admin(hub))).new_api_token()
    hub.directory.users["root2"] = SystemUser("root2", 3000, 3000, "/bin/sh", ("gpu-users",))
    start = await hub.fetch("/api/users/alice/server", "POST", "{}", Authorization=f"token {admin}")
    assert start.code in (403, 500)
    assert not hub.app.users["alice"].active


def _admin(hub: Hub) -> Any:
    from jupyterhub import orm, roles

    user = orm.User(name="root2", admin=True)
    hub.app.db.add(user)
    hub.app.db.commit()
    roles.assign_default_roles(hub.app.db, entity=user)
    return user


def age(hub: Hub, name: str) -> None:
    """Let the last look at a user be long ago."""
    hub.app.users[name]._auth_refreshed = 0


async def test_groups_change_at_the_next_look(hub: Hub) -> None:
    await hub.login("alice")
    hub.slurm.rows = [Association("alice", "biology", default=True)]
    age(hub, "alice")
    await hub.fetch("/home")
    assert hub.groups_of("alice") == {"alice", "gpu-users", "account:biology"}


async def test_silence_takes_nothing_from_anybody(tmp_path: Path, directory: DirectoryOfThree) -> None:
    async with running(tmp_path, directory) as hub:
        await hub.login("alice")
    async with running(tmp_path, directory) as hub:  # a hub that has restarted and never heard Slurm
        hub.slurm.silent = True
        assert (await hub.login("alice")).code == 302
        assert {"account:physics", "account:chem"} <= hub.groups_of("alice")


async def test_a_slurm_that_hangs_keeps_no_page_waiting(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    await hub.login("alice")

    answers = asyncio.Event()

    async def hang() -> tuple[Association, ...]:
        await answers.wait()
        raise SlurmUnreachable("forged")

    monkeypatch.setattr(hub.slurm, "associations", hang)
    monkeypatch.setattr(authenticator, "WAIT_FOR_UPDATE", 0.3)
    age(hub, "alice")
    assert hub.authenticator.associations is not None
    hub.authenticator.associations.time_limit = 600
    assert (await hub.fetch("/home")).code == 200
    assert "account:physics" in hub.groups_of("alice")
    answers.set()
    await hub.authenticator.associations.refresh(0)  # the question that was left behind ends too


async def test_only_one_question_for_many_looks(hub: Hub) -> None:
    hub.authenticator.accounts_age = 60
    for name in ("alice", "Carol", "alice"):
        await hub.login(name)
    assert hub.slurm.asked == 1


async def test_a_user_unknown_to_the_system_cannot_be_added_by_an_administrator(hub: Hub) -> None:
    hub.directory.users["root2"] = SystemUser("root2", 3000, 3000, "/bin/sh", ("gpu-users",))
    token = hub.app.users.add(hub.app.db.merge(_admin(hub))).new_api_token()
    response = await hub.fetch("/api/users/mallory", "POST", "{}", Authorization=f"token {token}")
    assert response.code == 400
    assert (await hub.fetch("/api/users/mallory", Authorization=f"token {token}")).code == 404


def test_our_own_class_cannot_be_its_own_login() -> None:
    c = Config()
    c.CarmeAuthenticator.authenticator_class = CarmeAuthenticator
    with pytest.raises(ConfigError, match="names CarmeAuthenticator itself"):
        CarmeAuthenticator(config=c)


def test_settings_of_the_login_class_keep_working() -> None:
    c = Config()
    c.CarmeAuthenticator.authenticator_class = "pam"
    c.PAMAuthenticator.service = "carme"
    c.Authenticator.username_map = {"ally": "alice"}
    authenticator = CarmeAuthenticator(config=c)
    assert authenticator.service == "carme"
    assert authenticator.normalize_username("Ally") == "alice"
    assert timedelta(seconds=authenticator.auth_refresh_age) <= timedelta(seconds=60)
