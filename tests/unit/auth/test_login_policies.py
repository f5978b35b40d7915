"""A login policy of an installed package denies and lets in, at the login and afterwards, and lets nobody else in."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from auth_hub import DirectoryOfThree, running
from rig.extension import extension, installed_extension
from traitlets.config import Config

from carme_hub.auth import login_policies
from carme_hub.auth.authenticator import CarmeAuthenticator
from carme_hub.auth.login_policies import Login
from carme_hub.entry_points import call
from carme_hub.errors import ConfigError, Refused

__all__ = ["extension", "installed_extension"]


@pytest.mark.parametrize("allow_all", [False, True])
async def test_who_has_not_signed_is_denied_and_who_has_is_let_in(
    extension: Path, tmp_path: Path, directory: DirectoryOfThree, allow_all: bool
) -> None:
    signed = tmp_path / "signed"
    signed.write_text("Carol\nbob\n")

    def change(c: Config) -> None:
        c.CarmeAuthenticator.allow_all = allow_all
        c.CarmeAuthenticator.login_policies = ["signed-rules"]
        c.SignedRules.file = str(signed)

    async with running(tmp_path, directory, change) as hub:
        denied = await hub.login("alice")
        assert denied.code == 403
        assert "Sign the rules of use first" in denied.body.decode()
        assert "jupyterhub-hub-login" not in hub.jar
        # A policy takes away and never gives: bob has signed, and is in no allowed group.
        assert (await hub.login("bob")).code == (302 if allow_all else 403)
        assert (await hub.login("Carol", "wrong")).code == 403
        assert (await hub.login("Carol")).code == 302
        carol = hub.app.users["Carol"]
        assert (await hub.authenticator.account_status(carol)).is_allowed
        assert await hub.authenticator.refresh_user(carol)
        signed.write_text("")
        status = await hub.authenticator.account_status(carol)
        assert (status.is_allowed, status.proof) == (False, True)
        assert await hub.authenticator.refresh_user(carol) is False


async def test_a_policy_that_fails_lets_nobody_in_and_puts_nobody_out(
    tmp_path: Path, directory: DirectoryOfThree, caplog: pytest.LogCaptureFixture
) -> None:
    broken, asked = [False], []

    async def policy(login: Login) -> None:
        await asyncio.sleep(0)
        asked.append(login)
        if broken[0]:
            raise ConnectionError("the register does not answer")

    def change(c: Config) -> None:
        c.CarmeAuthenticator.login_policies = [policy]

    async with running(tmp_path, directory, change) as hub:
        assert (await hub.login("alice")).code == 302
        assert asked[0] == Login("alice", frozenset({"alice", "gpu-users", "account:physics", "account:chem"}))
        broken[0] = True
        assert (await hub.authenticator.account_status(hub.app.users["alice"])).is_allowed
        denied = await hub.login("Carol")
        assert denied.code == 503
        assert "could not be checked" in denied.body.decode()
        assert "the register does not answer" not in denied.body.decode()
    assert "The login policy policy failed for Carol" in caplog.text


async def test_a_plain_policy_that_waits_does_not_block_the_event_loop(
    tmp_path: Path, directory: DirectoryOfThree
) -> None:
    entered, leave, released = threading.Event(), threading.Event(), []

    def policy(_login: Login) -> None:
        entered.set()
        released.append(leave.wait(5))

    def change(c: Config) -> None:
        c.CarmeAuthenticator.login_policies = [policy]

    async with running(tmp_path, directory, change) as hub:
        login = asyncio.ensure_future(hub.login("alice"))
        while not entered.is_set():
            await asyncio.sleep(0.01)
        leave.set()
        assert (await login).code == 302
    assert released == [True], "the event loop ran while the policy waited"


async def test_a_policy_that_takes_too_long_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def policy(_login: Login) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(login_policies, "call", functools.partial(call, timeout=0.05))
    with pytest.raises(login_policies.PolicyFailed, match="could not be checked"):
        await login_policies.check({"slow": policy}, Login("alice", frozenset()), logging.getLogger("carme"))


async def test_a_policy_is_asked_while_slurm_has_not_said_who_may_be_here(
    tmp_path: Path, directory: DirectoryOfThree
) -> None:
    denies = [False]

    def policy(_login: Any) -> None:
        if denies[0]:
            raise Refused("Not any more.")

    def change(c: Config) -> None:
        c.CarmeAuthenticator.allowed_groups = set()
        c.CarmeAuthenticator.allowed_accounts = {"chem"}
        c.CarmeAuthenticator.login_policies = [policy]

    async with running(tmp_path, directory, change) as hub:
        assert (await hub.login("alice")).code == 302
        alice = hub.app.users["alice"]
        hub.slurm.silent = True
        hub.authenticator._associations = hub.authenticator.make_book()  # nobody knows any account
        assert (await hub.authenticator.account_status(alice)).is_allowed
        denies[0] = True
        assert not (await hub.authenticator.account_status(alice)).is_allowed


def test_a_policy_that_no_package_has_stops_the_hub() -> None:
    with pytest.raises(ConfigError, match=r"c\.CarmeAuthenticator\.login_policies names 'signed'"):
        CarmeAuthenticator(login_policies=["signed"])
