"""The machines of a cluster in the cloud make themselves at their first boot: Slurm, a hub, and a session on a node."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from cloud_site import CONTROLLER, HUB, NODE, USER, cloud_site, password_hash, wait_until_idle
from machines import Machine, only_one

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Machine]]:
    """Return the machines, by name."""
    if os.geteuid() != 0:
        raise pytest.UsageError("tests/site boots machines: run it as root")
    with only_one(), cloud_site(tmp_path_factory.mktemp("cloud"), password_hash("correct horse")) as machines:
        yield machines


def test_slurm_runs_with_the_users_and_rights_of_the_description(site: dict[str, Machine]) -> None:
    wait_until_idle(site)
    said = site[CONTROLLER].run("sacctmgr -n -P show user format=User,AdminLevel,DefaultAccount").split()
    assert {"carme-hub|Operator|root", f"{USER}|None|users"} <= set(said)
    ids = {
        machine.run(f"id -u {USER}; id -Gn {USER}; id -u carme-hub || true")
        for machine in (site[HUB], site[CONTROLLER])
    }
    assert len(ids) == 1
    assert site[NODE].run(f"id -u {USER}").strip() == "10001"


def test_secrets_are_where_they_belong(site: dict[str, Machine]) -> None:
    for machine in site.values():
        assert machine.run("stat -c '%U %a' /etc/munge/munge.key").strip() == "munge 400"
        assert "169.254.169.254" in machine.run("nft list ruleset")
    assert site[CONTROLLER].run("stat -c '%U %a' /etc/slurm/slurmdbd.conf").strip() == "slurm 600"
    assert site[HUB].run(f"getent shadow {USER}").split(":")[1].startswith("$6$")
    assert site[NODE].run(f"getent shadow {USER}").split(":")[1] == "!"


def test_the_hub_starts_a_session_on_a_node(site: dict[str, Machine]) -> None:
    wait_until_idle(site)
    hub = site[HUB]
    assert hub.run("systemctl is-active carme-hub carme-hub-proxy nginx").split() == ["active"] * 3
    setup = "/opt/carme-hub/bin/carme-hub setup --answers /etc/carme/answers.yaml --no-input --yes --test"
    said = hub.run(f"{setup} --test-user {USER}", limit=300)
    assert "ready after s" in said, said
    assert "failed" not in said, said


def test_a_first_boot_that_is_run_again_repairs_and_changes_nothing(site: dict[str, Machine]) -> None:
    for name in (CONTROLLER, NODE, HUB):
        said = site[name].run("/usr/local/sbin/carme-first-boot", limit=300)
        assert "is ready" in said.splitlines()[-1], said
    wait_until_idle(site)
