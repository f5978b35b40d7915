"""A hub by the Ansible collection: nothing fails in check mode, once is enough, and an upgrade disturbs no session."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_site import ANSWERS, AnsibleSite
from machines import only_one, wait_for
from rig.foreign_images import SYSTEM, Entry, layer, write_layout
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


def test_the_programs_of_nodes_are_there_and_report(installed: AnsibleSite) -> None:
    listed = installed.hub.run("systemctl is-active carme-hub-images.timer; stat -c '%U %a' /opt/images /home/folders")
    assert listed.splitlines() == ["active", "root 755", "root 755"]
    for node in installed.nodes:
        node.run("systemctl is-active carme-stage-out.timer carme-node-images.timer")
        node.run("systemctl start carme-stage-out.service carme-node-images.service", limit=60)
        assert "Prolog" in node.run("grep ^Prolog= /etc/slurm/slurm.conf")
    installed.hub.run("systemctl start carme-hub-images.service", limit=60)


def test_an_image_is_added_on_the_hub_and_fetched_by_the_node_of_a_job(installed: AnsibleSite) -> None:
    """By skopeo and umoci, which the role has installed."""
    hub = Path(f"/proc/{installed.hub.leader}/root")
    write_layout(hub / "srv/layout", layer(SYSTEM), layer((Entry("usr/text", b"of the image"),)))
    installed.hub.run("/opt/carme-hub/bin/carme-hub image add tiny oci:/srv/layout --store=/opt/images")
    digest = json.loads(installed.hub.run("cat /opt/images/tiny/image.json"))["digest"]
    there = f"/var/lib/carme-images/{digest.replace(':', '-')}/usr/text"
    job = f"srun -p gpu --mem=50 -w gpu02 --comment='carme-image={digest}' cat {there}"
    assert installed.hub.run(f"cd /; {job}", user=USER).strip() == "of the image"
    installed.nodes[1].run("systemctl start carme-node-images.service", limit=60)
    token = installed.token(USER)
    said = installed.ask("services/images/api/v1/nodes", token)
    assert digest in said, said


def test_a_session_has_a_folder_that_is_shared_and_results_that_are_safe(installed: AnsibleSite) -> None:
    token = installed.token(USER)
    folders = f"/opt/carme-hub/bin/carme-hub folders create genomes --hub {installed.url} --ca /etc/carme-hub/hub.pem"
    installed.hub.run(f"cd /; JUPYTERHUB_API_TOKEN={token} {folders}", user=USER)
    stage = {"out": [{"source": "run", "target": "/home/alice/results"}], "scratch_gib": 1}
    options = {"profile": "gpu", "gpus": 1, "stage": stage, "folders": "genomes:rw"}
    installed.visit("start", USER, json.dumps(options), token=token)
    code = "import os, pathlib; s = pathlib.Path(os.environ['CARME_SCRATCH']); (s / 'run').mkdir(); "
    code += "(s / 'run/model.pt').write_text('checkpoint'); pathlib.Path('/shared/genomes/a').write_text('a'); print(s)"
    scratch = json.loads(installed.visit("cell", USER, code, token=token)).strip()
    assert scratch.startswith("/scratch/")
    installed.visit("stop", USER, token=token)
    wait_for(
        lambda: installed.hub.try_run("cat /home/alice/results/model.pt").stdout == "checkpoint", 90, "the results"
    )
    for node in installed.nodes:
        wait_for(lambda node=node: not node.run("ls -A /scratch").strip(), 60, "an empty scratch")  # type: ignore[misc]
    assert installed.hub.try_run("cat /home/folders/*/data/a", user=USER).stdout == "a"
    assert installed.hub.try_run("cat /home/folders/*/data/a", user=OTHER).returncode != 0
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
