"""A closed account loses everything within minutes; a directory that is away costs nobody anything."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jupyterhub
import pytest
from auth_hub import DirectoryOfThree, Hub, running
from jupyterhub.spawner import Spawner
from prometheus_client import REGISTRY
from traitlets.config import Config

from carme_hub import metrics
from carme_hub.auth.revocation import Revoker
from carme_hub.auth.system_users import SystemUser


class ServerThatJustIs(Spawner):
    """Forges a server: it runs as soon as it is started, and nothing listens."""

    alive = False

    async def start(self) -> tuple[str, int]:
        self.alive = True
        return "127.0.0.1", 9

    async def poll(self) -> int | None:
        return None if self.alive else 0

    async def stop(self, now: bool = False) -> None:
        self.alive = False


@pytest.fixture
async def with_servers(tmp_path: Path, directory: DirectoryOfThree, monkeypatch: pytest.MonkeyPatch) -> Any:
    directory.users |= {f"u{n}": SystemUser(f"u{n}", 4000 + n, 4000 + n, "/bin/sh", ("gpu-users",)) for n in range(4)}

    def change(c: Config) -> None:
        c.JupyterHub.spawner_class = ServerThatJustIs

    async def answers(self: Any, *args: Any, **kwargs: Any) -> Any:
        return SimpleNamespace(headers={"X-JupyterHub-Version": jupyterhub.__version__})

    monkeypatch.setattr("jupyterhub.objects.Server.wait_up", answers)
    async with running(tmp_path, directory, change) as hub:
        for name in ("u0", "u1", "u2", "u3"):
            await hub.login(name)
            user = hub.app.users[name]
            await user.spawn()
            assert user.active
        yield hub


def active(hub: Hub) -> set[str]:
    return {user.name for user in hub.app.users.values() if user.active}


async def test_a_closed_account_loses_servers_tokens_and_logins_at_once(with_servers: Hub) -> None:
    hub = with_servers
    await hub.login("u1")
    token = hub.app.users["u1"].new_api_token()
    hub.directory.closed["u1"] = "expired"
    assert await hub.authenticator.revoker.check(hub.app) == ["u1"]
    assert active(hub) == {"u0", "u2", "u3"}
    del hub.directory.closed["u1"]  # nothing old is good again when the account is opened
    assert (await hub.fetch("/home")).code == 302
    hub.jar.clear()
    assert (await hub.fetch("/api/user", Authorization=f"token {token}")).code == 403


async def test_a_blocked_user_and_one_out_of_the_group_lose_theirs(with_servers: Hub) -> None:
    hub = with_servers
    hub.authenticator.blocked_users = {"u0"}
    hub.directory.users["u1"] = SystemUser("u1", 4001, 4001, "/bin/sh", ("others",))
    assert sorted(await hub.authenticator.revoker.check(hub.app)) == ["u0", "u1"]
    assert active(hub) == {"u2", "u3"}


async def test_a_missing_name_counts_at_the_third_look(with_servers: Hub) -> None:
    hub = with_servers
    del hub.directory.users["u2"]
    looks = [await hub.authenticator.revoker.check(hub.app) for _ in range(3)]
    assert looks == [[], [], ["u2"]]
    assert active(hub) == {"u0", "u1", "u3"}


async def test_a_name_that_comes_back_keeps_its_server(with_servers: Hub) -> None:
    hub = with_servers
    gone = hub.directory.users.pop("u2")
    for _ in range(2):
        await hub.authenticator.revoker.check(hub.app)
    hub.directory.users["u2"] = gone
    await hub.authenticator.revoker.check(hub.app)
    del hub.directory.users["u2"]
    assert await hub.authenticator.revoker.check(hub.app) == []
    assert "u2" in active(hub)


async def test_a_directory_that_is_away_costs_nobody_a_server(with_servers: Hub) -> None:
    hub = with_servers
    await hub.authenticator.revoker.check(hub.app)
    checked = REGISTRY.get_sample_value("carme_accounts_checked_timestamp_seconds")
    assert checked
    hub.directory.silent = True
    for _ in range(10):
        assert await hub.authenticator.revoker.check(hub.app) == []
    assert REGISTRY.get_sample_value("carme_accounts_checked_timestamp_seconds") == checked, "nobody was checked"
    assert active(hub) == {"u0", "u1", "u2", "u3"}
    assert (await hub.login("u0")).code == 403  # but nobody new gets in meanwhile


async def only_these_have_servers(hub: Hub, *names: str) -> None:
    for user in list(hub.app.users.values()):
        if user.active and user.name not in names:
            await user.stop()
    assert active(hub) == set(names)


async def test_a_directory_that_is_away_costs_the_only_user_of_a_small_hub_nothing(with_servers: Hub) -> None:
    hub = with_servers
    await only_these_have_servers(hub, "u0", "u1")
    hub.directory.silent = True
    for _ in range(10):
        assert await hub.authenticator.revoker.check(hub.app) == []
    await only_these_have_servers(hub, "u0")
    for _ in range(10):
        assert await hub.authenticator.revoker.check(hub.app) == []
    assert active(hub) == {"u0"}


async def test_the_only_user_with_a_server_loses_it_where_the_directory_knows_others(with_servers: Hub) -> None:
    hub = with_servers
    await only_these_have_servers(hub, "u0")
    del hub.directory.users["u0"]
    looks = [await hub.authenticator.revoker.check(hub.app) for _ in range(3)]
    assert looks == [[], [], ["u0"]]
    assert active(hub) == set()


async def test_slurm_losing_every_account_at_once_costs_nobody_a_server(with_servers: Hub) -> None:
    hub = with_servers
    hub.authenticator.allowed_groups = set()
    hub.authenticator.allowed_accounts = {"physics"}
    from carme_hub.slurm.client import Association

    hub.slurm.rows = [Association(f"u{n}", "physics") for n in range(4)]
    assert await hub.authenticator.revoker.check(hub.app) == []
    hub.slurm.rows = []
    assert await hub.authenticator.revoker.check(hub.app) == []
    assert len(active(hub)) == 4


async def test_a_directory_that_has_never_answered_is_seen_by_how_long_nobody_was_checked() -> None:
    async def never(user: Any) -> Any:
        raise AssertionError("nobody is asked in this test")

    metrics.ACCOUNTS_CHECKED.set(0)
    for interval, known in ((0, False), (60, True)):
        revoker = Revoker(never, interval, logging.getLogger(__name__))
        revoker.start(SimpleNamespace())
        checked = REGISTRY.get_sample_value("carme_accounts_checked_timestamp_seconds") or 0.0
        assert (checked > time.time() - 60) is known, "0 is a site that checks nobody, and raises no alert"
        revoker.stop()
