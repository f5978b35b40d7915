"""The files of a site: compared with kept texts, and read by the programs that they are for.

nginx and logrotate, which are not here, read theirs on the machines of tests/site.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from forged_setup import answers, facts, sources
from traitlets.config import PyFileConfigLoader

from carme_hub.cli.setup.offers import profiles, smallest_session
from carme_hub.cli.setup.plan import File, offered, site_files
from carme_hub.domain.images.scopes import NODES
from carme_hub.domain.sessions.profile_list import parse_profiles
from carme_hub.paths import share_folder

GOLDEN = Path(__file__).with_name("golden")
SITES = {
    "sudo": answers(),
    "rest": answers(
        site="hub2",
        submit_via="rest",
        rest_url="unix:///run/slurmrestd/slurmrestd.sock",
        web_server="caddy",
        hub_address="hub1.ib.example.org",
        state_folder="/srv/hub2",
        image="/opt/images/pytorch.sif",
        quotas="yes",
        activity="yes",
        image_store="/srv/images",
        node_images="/var/lib/carme-images",
        folders="/srv/folders",
        local_passwords="yes",
    ),
}


def files(site: str) -> dict[str, File]:
    return {file.path: file for file in site_files(facts(), SITES[site], sources())}


@pytest.mark.parametrize("site", SITES)
def test_the_files_of_a_site_are_those_that_were_looked_at(site: str) -> None:
    """After a wanted change: CARME_GOLDEN=1 writes the texts again; then look at the diff."""
    found = [file for file in files(site).values() if "helper, as" not in file.purpose]
    text = "\n".join(f"==> {file.path} {file.mode:04o} {file.owner}\n{file.text}" for file in found)
    golden = GOLDEN / f"{site}.txt"
    if os.environ.get("CARME_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_scratch_folders_of_nodes_are_a_setting_where_an_answer_names_them() -> None:
    path = "/etc/carme-hub/jupyterhub_config.py"
    found = {file.path: file.text for file in site_files(facts(), answers(scratch="/local/scratch"), sources())}
    assert "c.CarmeStaging.root = '/local/scratch'" in found[path].replace('"', "'")
    assert "CarmeStaging" not in files("sudo")[path].text


def test_images_that_nodes_fetch_are_named_in_a_comment_that_the_helper_lets_through() -> None:
    store = {"image_store": "/srv/images"}
    found = {file.path: file.text for file in site_files(facts(), answers(**store), sources())}
    assert json.loads(found["/usr/local/etc/carme-submit.json"])["extra"] == []
    assert "node_store" not in found["/etc/carme-hub/jupyterhub_config.py"]
    of_nodes = answers(**store, node_images="/var/lib/carme-images")
    found = {file.path: file.text for file in site_files(facts(), of_nodes, sources())}
    assert json.loads(found["/usr/local/etc/carme-submit.json"])["extra"] == ["comment"]


def test_nodes_may_say_what_they_have_where_they_have_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jupyterhub_config.py").write_text(files("rest")["/etc/hub2/jupyterhub_config.py"].text)
    (tmp_path / "site.py").write_text("")

    def load() -> Any:
        return PyFileConfigLoader("jupyterhub_config.py", str(tmp_path)).load_config()

    assert "image-nodes" not in {service["name"] for service in load().JupyterHub.services}
    monkeypatch.setenv("CARME_NODE_IMAGES_TOKEN", "of-the-nodes")
    hub = load().JupyterHub
    (service,) = [each for each in hub.services if each["name"] == "image-nodes"]
    assert service == {"name": "image-nodes", "api_token": "of-the-nodes"}
    (role,) = [each for each in hub.load_roles if each["name"] == "image-nodes"]
    assert set(role["scopes"]) == {"access:services!service=images", NODES}, "and nothing else"


@pytest.mark.parametrize("name", ["carme-hub.service", "carme-hub-proxy.service"])
def test_the_units_to_copy_by_hand_are_those_that_setup_writes(name: str) -> None:
    """They come with the package for docs/howto/real-site.md, with port 443. CARME_GOLDEN=1, as above."""
    by_hand = site_files(facts(), replace(answers(), public_port=443), sources())
    (text,) = [file.text for file in by_hand if file.path == f"/etc/systemd/system/{name}"]
    kept = share_folder() / "systemd" / name
    if os.environ.get("CARME_GOLDEN"):
        kept.write_text(text)
    assert text == kept.read_text()


def test_a_proxy_has_the_right_to_a_low_port_only_where_it_uses_one() -> None:
    assert "CAP_NET_BIND_SERVICE" not in files("sudo")["/etc/systemd/system/carme-hub-proxy.service"].text
    low = (share_folder() / "systemd/carme-hub-proxy.service").read_text()
    assert "\nAmbientCapabilities=CAP_NET_BIND_SERVICE\nCapabilityBoundingSet=CAP_NET_BIND_SERVICE\n" in low


def test_a_state_folder_in_a_home_is_not_hidden_from_the_proxy() -> None:
    found = site_files(facts(), answers(state_folder="/home/hub"), sources())
    (text,) = [file.text for file in found if file.path.endswith("-proxy.service")]
    assert "\nProtectHome=read-only\n" in text
    assert "\nReadWritePaths=/home/hub\n" in text


@pytest.mark.parametrize("site", SITES)
def test_the_configuration_is_python_with_settings_that_exist(site: str, tmp_path: Path) -> None:
    file = tmp_path / "jupyterhub_config.py"
    file.write_text(files(site)[f"{SITES[site].config_folder}/jupyterhub_config.py"].text)
    (tmp_path / "site.py").write_text(
        "c.CarmeSlurm.cluster = 'mine'\nc.JupyterHub.load_roles.append({'name': 'mine'})\n"
    )
    config: Any = PyFileConfigLoader(file.name, str(tmp_path)).load_config()
    assert config.JupyterHub.spawner_class == "carme-slurm"
    assert config.CarmeSlurm.cluster == "mine", "site.py counts more"
    assert {"teacher", "mine"} <= {role["name"] for role in config.JupyterHub.load_roles}, "and adds to lists"
    assert len(parse_profiles(config.SlurmContainerSpawner.profile_list)) == 2


def test_each_partition_is_a_profile_with_the_sizes_of_its_nodes_and_its_own_rules() -> None:
    cpu, gpu = profiles([each for each in facts().partitions if not each.reserved])
    assert (cpu["default"], cpu["time_minutes"]) == (True, {"min": 5, "max": 120, "default": 120})
    assert cpu["memory_gib"]["max"] == 118, "the system needs some of the node's memory"
    assert gpu["gpus"] == {"types": {"a100": 4, "h100": 8}, "min": 1, "max": 8, "default": 1}
    assert (gpu["accounts"], gpu["qos"], gpu["cpus"]["max"]) == (["physics", "chemistry"], "long", 96)
    assert "default" not in gpu
    assert smallest_session(gpu) == {
        "profile": "gpu",
        "cpus": 1,
        "memory_gib": 1,
        "time_minutes": 5,
        "gpu_type": "a100",
        "gpus": 1,
    }


def test_partitions_whose_names_become_the_same_slug_stay_apart() -> None:
    (one, *_) = facts().partitions
    found = profiles([replace(one, name="GPU.a"), replace(one, name="gpu_a"), replace(one, name='q"x')])
    assert [each["slug"] for each in found] == ["gpu-a", "gpu-a-2", "q-x"]
    assert [each["display_name"] for each in found] == ["GPU.a", "gpu_a", 'q"x']


def test_only_what_was_chosen_is_offered_in_that_order() -> None:
    assert [each["slug"] for each in offered(facts(), answers(partitions="all,cpu"))] == ["all", "cpu"]


@pytest.mark.parametrize("site", SITES)
def test_sudo_takes_the_rules(site: str) -> None:
    rules = files(site)[f"/etc/sudoers.d/{SITES[site].site}"]
    assert rules.mode == 0o440
    done = subprocess.run(["/usr/sbin/visudo", "-c", "-f", "-"], input=rules.text, capture_output=True, text=True)
    assert done.returncode == 0, done


@pytest.mark.parametrize("site", SITES)
def test_systemd_takes_the_units(site: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        return
    units = [file for path, file in files(site).items() if path.endswith((".service", ".timer"))]
    assert len(units) == (4 if SITES[site].image_store else 2)
    for unit in units:
        # The programs are not installed here, and the units of others neither.
        text = unit.text.replace("/opt/carme-hub/bin/", f"{tmp_path}/")
        (tmp_path / Path(unit.path).name).write_text(text)
    for name in ("jupyterhub", "carme-hub"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    argv = ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / Path(unit.path).name) for unit in units)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line or SITES[site].site in line]
    assert complaints == [], done.stderr


def test_the_unit_of_a_hub_that_calls_sudo_has_nothing_that_forbids_it() -> None:
    """systemd.exec(5), NoNewPrivileges: these imply it for a unit with User=."""
    implies = (
        "NoNewPrivileges",
        "DynamicUser",
        "LockPersonality",
        "MemoryDenyWriteExecute",
        "PrivateDevices",
        "Restrict",
    )
    implies += ("ProtectClock", "ProtectHostname", "ProtectKernel", "SystemCall")
    for site in SITES:
        text = files(site)[f"/etc/systemd/system/{SITES[site].site}.service"].text
        set_ = [line for line in text.splitlines() if line.startswith(implies)]
        assert set_ == []
        assert "MemoryMax=4G" in text
        assert "\nKillMode=mixed\n" in text
        assert "\nWatchdogSec=180\n" in text


def test_only_a_hub_that_writes_homes_may_write_homes() -> None:
    assert "ProtectSystem=full\n" in files("sudo")["/etc/systemd/system/carme-hub.service"].text
    rest = files("rest")["/etc/systemd/system/hub2.service"].text
    assert "ProtectSystem=strict\nProtectHome=read-only\n" in rest
    assert "ReadWritePaths=/srv/hub2\n" in rest, "systemd makes folders below /var/lib only"


def test_the_helpers_are_the_packages_and_their_settings_what_they_read() -> None:
    found = files("sudo")
    assert found["/usr/local/libexec/carme-submit"].text == sources().helpers["carme-submit"]
    assert found["/usr/local/libexec/carme-submit"].mode == 0o755
    settings = json.loads(found["/usr/local/etc/carme-submit.json"].text)
    assert settings == {"sbatch": "/usr/bin/sbatch", "slurm_conf": "", "group": "gpu-users", "roots": [], "extra": []}
    assert "/usr/local/libexec/carme-token" not in found
    rest = files("rest")
    assert "/usr/local/libexec/carme-submit" not in rest
    assert json.loads(rest["/usr/local/etc/carme-token.json"].text)["jwt_key"] == "/var/spool/slurm/jwt_hs256.key"


def test_prometheus_reads_what_the_site_has() -> None:
    jobs = yaml.safe_load(files("rest")["/etc/hub2/prometheus.yml"].text)["scrape_configs"]
    assert [job["metrics_path"] for job in jobs] == [
        "/hub/metrics",
        "/services/quotas/api/v1/metrics",
        "/services/activity/api/v1/metrics",
    ]
    assert len({job["job_name"] for job in jobs}) == 3
