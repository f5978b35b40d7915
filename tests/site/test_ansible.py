"""A hub by the Ansible collection: nothing fails in check mode, once is enough, and an upgrade disturbs no session."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from ansible_site import ANSWERS, AnsibleSite
from machines import only_one
from second_site import NAME
from trees import OUR_WHEEL, say

import carme_hub

pytestmark = pytest.mark.nightly
USER, OTHER = "alice", "pierre"
#: Seconds from machines without a hub to one that has started a session on each partition.
MOST = 15 * 60


@pytest.fixture(scope="module")
def site() -> Iterator[AnsibleSite]:
    """Return the site without a hub; everything is gone afterwards."""
    if os.geteuid() != 0:
        raise pytest.UsageError("tests/site boots machines: run it as root")
    with only_one():
        site = AnsibleSite()
        try:
            site.build()
            site.url = f"https://{NAME}"
            yield site
        finally:
            site.tear_down()
            for what, seconds in site.seconds.items():
                say(f"{seconds:6.1f} s  {what}")


@pytest.fixture(scope="module")
def installed(site: AnsibleSite) -> AnsibleSite:
    """Return the site with a hub by Ansible."""
    site.play("check mode, before anything is there", "--check")
    assert site.hub.try_run(f"test -e /opt/carme-hub-{carme_hub.__version__}").returncode != 0
    site.play("installation")
    return site


def changed(recap: dict[str, dict[str, int]]) -> dict[str, int]:
    return {host: counts["changed"] for host, counts in recap.items()}


def test_a_hub_is_installed_in_time_and_setup_has_tried_it(installed: AnsibleSite) -> None:
    assert installed.seconds["ansible: installation"] < MOST
    assert "ready after s" in installed.last, installed.last
    assert installed.hub.run("systemctl is-active carme-hub carme-hub-proxy nginx").split() == ["active"] * 3
    assert installed.hub.run("readlink /opt/carme-hub").strip().startswith("/opt/carme-hub-")


def test_a_second_run_and_check_mode_change_nothing(installed: AnsibleSite) -> None:
    nothing = dict.fromkeys(installed.machines, 0)
    assert changed(installed.play("second run")) == nothing, installed.last
    assert changed(installed.play("check mode", "--check", "--diff")) == nothing, installed.last


def test_check_mode_shows_what_setup_would_change_and_changes_nothing(installed: AnsibleSite) -> None:
    recap = installed.play("check mode of another answer", "--check", hub_answers={**ANSWERS, "memory_max": "3G"})
    assert changed(recap)["portal"] == 1, installed.last
    assert "+MemoryMax=3G" in installed.last
    assert "MemoryMax=4G" in installed.hub.run("cat /etc/systemd/system/carme-hub.service")


def test_slurm_has_what_is_recommended(installed: AnsibleSite) -> None:
    conf = installed.controller.run("scontrol show config")
    for name, value in (("SlurmdTimeout", "900 sec"), ("JobSubmitPlugins", "lua"), ("JobRequeue", "0")):
        assert any(line.split("=")[0].strip() == name and value in line for line in conf.splitlines()), name
    level = installed.controller.run("sacctmgr -n -P show user name=carme-hub format=AdminLevel").strip()
    assert level == "Operator"
    assert installed.nodes_are_idle()


def test_an_upgrade_leaves_sessions_alone(installed: AnsibleSite) -> None:
    token = installed.token(USER)
    installed.visit("start", USER, json.dumps({"profile": "gpu", "gpus": 1}), token=token)
    before = installed.controller.run("squeue -h -o %A").split()
    wheel = installed.hub.run(f"ls {OUR_WHEEL}/*.whl").strip()
    proxy = installed.hub.run("systemctl show -p MainPID --value carme-hub-proxy")
    installed.play("upgrade", hub_version="next", hub_package=wheel)
    assert installed.hub.run("readlink /opt/carme-hub").strip() == "/opt/carme-hub-next"
    running = installed.hub.run("cat /proc/$(systemctl show -p MainPID --value carme-hub)/cmdline | tr '\\0' ' '")
    assert "/opt/carme-hub-next/bin/" in running
    assert installed.hub.run("systemctl show -p MainPID --value carme-hub-proxy") == proxy
    installed.wait_for_page()
    assert json.loads(installed.visit("cell", USER, "print(6 * 7)", token=token)).strip() == "42"
    assert installed.controller.run("squeue -h -o %A").split() == before
    installed.visit("stop", USER, token=token)


def test_a_user_outside_the_group_may_not_log_in(installed: AnsibleSite) -> None:
    assert json.loads(installed.visit("token", OTHER))["status"] == 403
