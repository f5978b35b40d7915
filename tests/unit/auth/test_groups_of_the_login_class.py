"""A login class that means something else by ``allowed_groups``, as LDAP's does (DNs), gets its own and not ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from auth_hub import DirectoryOfThree, running
from jupyterhub.auth import Authenticator
from traitlets import Set, Unicode
from traitlets.config import Config

from carme_hub.auth.authenticator import CarmeAuthenticator


class LoginThatLooksUpNames(Authenticator):
    """Forges LDAPAuthenticator: it looks up each of its groups, and fails at one that is no DN."""

    allowed_groups = Set(Unicode()).tag(config=True)

    async def authenticate(self, handler: Any, data: dict[str, str]) -> dict[str, Any]:
        wrong = [group for group in self.allowed_groups if "=" not in group]
        if wrong:
            raise ValueError(f"{wrong} are no DNs")
        return {"name": data["username"], "auth_state": {"found": sorted(self.allowed_groups)}}

    async def check_allowed(self, username: str, authentication: dict[str, Any] | None = None) -> bool:
        return username == "bob" and ((authentication or {}).get("auth_state") or {}).get("found") == ["cn=staff"]


def login(c: Config) -> None:
    c.CarmeAuthenticator.authenticator_class = LoginThatLooksUpNames


async def test_groups_of_the_system_allow_and_are_not_looked_up_elsewhere(
    tmp_path: Path, directory: DirectoryOfThree
) -> None:
    tmp_path.chmod(0o700)
    async with running(tmp_path, directory, login) as hub:
        assert (await hub.login("alice")).code == 302
        assert (await hub.login("bob")).code == 403, "he is in no group of either kind"


async def test_groups_of_the_login_allow_beside_them(tmp_path: Path, directory: DirectoryOfThree) -> None:
    def both(c: Config) -> None:
        login(c)
        c.LoginThatLooksUpNames.allowed_groups = {"cn=staff"}

    tmp_path.chmod(0o700)
    async with running(tmp_path, directory, both) as hub:
        assert hub.authenticator.allowed_groups == {"cn=staff"}
        assert (await hub.login("alice")).code == 302
        assert (await hub.login("bob")).code == 302


@pytest.mark.parametrize(
    ("section", "somebody"), [("CarmeAuthenticator", True), ("LoginThatLooksUpNames", True), ("", False)]
)
def test_whether_anybody_is_allowed_counts_both(section: str, somebody: bool) -> None:
    c = Config()
    login(c)
    if section:
        c[section].allowed_groups = {"cn=staff"}
    assert CarmeAuthenticator(config=c).any_allow_config is somebody


class LoginWithNews(Authenticator):
    """Forges single sign-on that is asked again: what it says of groups is set by the test."""

    groups: tuple[str, ...] = ("gpu-team",)

    async def authenticate(self, handler: Any, data: dict[str, str]) -> dict[str, Any]:
        return {"name": data["username"], "groups": list(self.groups)}

    async def refresh_user(self, user: Any, handler: Any = None, **_: Any) -> dict[str, Any]:
        return {"name": user.name, "groups": list(self.groups)}


async def test_who_has_lost_a_group_of_the_login_is_refused_and_stays_refused(
    tmp_path: Path, directory: DirectoryOfThree
) -> None:
    def staff(c: Config) -> None:
        c.CarmeAuthenticator.authenticator_class = LoginWithNews
        c.CarmeAuthenticator.update(login_groups=True, allowed_groups={"gpu-team"})

    tmp_path.chmod(0o700)
    async with running(tmp_path, directory, staff) as hub:
        assert (await hub.login("bob")).code == 302
        bob: Any = hub.app.users["bob"]
        assert (await hub.authenticator.account_status(bob)).is_allowed
        hub.authenticator.groups = ("choir",)
        assert await hub.authenticator.refresh_user(bob) is False
        # The revoker asks without the login: it ends servers by what the login said last.
        status = await hub.authenticator.account_status(bob)
        assert (status.is_allowed, status.proof) == (False, True)
        assert {"choir", "bob"} <= hub.groups_of("bob")
        hub.authenticator.groups = ("gpu-team",)
        assert (await hub.login("bob")).code == 302
