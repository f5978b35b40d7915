"""The authenticator and the doctor on real parts: PAM on real system users, accounts from a real slurmdbd."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
from rig.hub import Hub

from carme_hub.cli.doctor.findings import Level
from carme_hub.cli.doctor.slurm import check, read_facts
from carme_hub.sandbox import Cluster

GUEST, PASSWORD = "carme-guest", "correct horse 7"


@pytest.fixture
def guest() -> Iterator[str]:
    """A separate system user, in the group that may log in."""
    subprocess.run(["userdel", GUEST], capture_output=True)
    subprocess.run(["useradd", "--no-create-home", "--groups", "carme-users", GUEST], check=True)
    subprocess.run(["chpasswd"], input=f"{GUEST}:{PASSWORD}\n", text=True, check=True)
    yield GUEST
    subprocess.run(["userdel", GUEST], check=True)


def groups_of(hub: Hub, user: str) -> set[str]:
    return set(hub.api("GET", f"/users/{user}").body["groups"])


def test_groups_and_accounts_are_those_of_the_system_and_of_slurm(hub: Hub) -> None:
    hub.login("alice")
    assert {"carme-users", "account:physics", "account:teaching"} <= groups_of(hub, "alice")
    hub.login("bob")
    assert {group for group in groups_of(hub, "bob") if ":" in group} == {"account:physics"}


def test_teacher_and_administrator_get_their_roles_by_groups(hub: Hub) -> None:
    hub.login("tina")
    assert "teacher" in groups_with(hub, "tina", "role:")
    hub.login("ada")
    assert hub.api("GET", "/users/ada").body["admin"] is True
    assert hub.api("GET", "/users/tina").body["admin"] is False


def groups_with(hub: Hub, user: str, prefix: str) -> set[str]:
    return {group.removeprefix(prefix) for group in groups_of(hub, user) if group.startswith(prefix)}


def test_a_closed_account_can_start_nothing_from_the_next_click_on(hub: Hub, guest: str) -> None:
    hub.login(guest, PASSWORD)
    assert hub.api("GET", f"/users/{guest}").status == 200
    subprocess.run(["usermod", "--lock", "--expiredate", "1", guest], check=True)
    try:
        answer = hub.api("POST", f"/users/{guest}/server", {})
        assert answer.status == 403
        assert hub.server(guest) is None
    finally:
        hub.api("DELETE", f"/users/{guest}")


def test_the_doctor_finds_only_the_virtual_hardware_unsafe(cluster: Cluster) -> None:
    environ = {"PATH": os.environ["PATH"], "SLURM_CONF": str(cluster.hub_slurm_conf)}
    findings = list(check(read_facts(str(cluster.bin), environ)))
    assert [f.setting for f in findings if f.level is Level.UNSAFE] == ["TaskPlugin"]
    assert [f.setting for f in findings if f.level is Level.UNKNOWN] == []
