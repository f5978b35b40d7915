"""Configurations with the shapes of five public sites are converted, load in JupyterHub, and their profiles are shown.

They are in ``tests/foreign/sites``, with repository and commit. ``tests/foreign/test_converted_sites.py`` starts them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jupyterhub.app import JupyterHub
from traitlets.config import Config, PyFileConfigLoader

from carme_hub.auth.authenticator import CarmeAuthenticator
from carme_hub.cli.convert.convert import convert_app, convert_config
from carme_hub.cli.convert.findings import Level
from carme_hub.cli.convert.reading.config_file import read_config_file
from carme_hub.cli.convert.site import Site
from carme_hub.cli.convert.writing import write
from carme_hub.domain.sessions.profile_list import parse_profiles
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.spawners.form.form import Offer, render_form
from carme_hub.spawners.slurm.spawner import SlurmContainerSpawner

SITES = Path(__file__).resolve().parents[3] / "foreign" / "sites"
NAMES = ["batchspawner_ssh", "batchspawner_environment", "moss", "profiles_spawner", "ondemand"]


def converted(name: str) -> Site:
    if name == "ondemand":
        return convert_app(SITES / name)
    file = SITES / name / "jupyterhub_config.py"
    return convert_config(file.read_text(), file.name)


def loaded(site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Return the settings of the new file, as the hub reads them."""
    for variable in ("BASE_URL", "HUB_CONNECT_URL", "PREFIX", "FOLDER", "LOGIN", "WRAPPERS"):
        monkeypatch.setenv(f"SITE_{variable}", f"/site/{variable.lower()}")
    monkeypatch.delenv("DEV", raising=False)
    file = folder / "jupyterhub_config.py"
    file.write_text(write(site, str(folder / "state")))
    return PyFileConfigLoader(file.name, str(folder)).load_config()


def findings(site: Site, line: int) -> dict[str, Level]:
    return {finding.setting: finding.level for finding in site.findings if finding.line == line}


@pytest.mark.parametrize("name", NAMES)
def test_the_new_file_loads_and_every_profile_is_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = converted(name)
    config: Any = loaded(site, tmp_path, monkeypatch)
    hub: Any = JupyterHub(config=config)
    assert issubclass(hub.authenticator_class, CarmeAuthenticator)
    assert hub.authenticator_class(config=config).authenticator_class is not CarmeAuthenticator
    assert hub.spawner_class is SlurmContainerSpawner
    assert hub.internal_ssl
    assert not hub.cleanup_servers
    assert {"teacher", "operator"} <= {
        role["name"] for role in hub.load_roles
    }  # configure(c) came after the site's own
    assert CarmeSlurm(config=config).submit_via == "sudo"
    spawner: Any = SlurmContainerSpawner(config=config)
    spawner.check_settings()
    profiles = parse_profiles(spawner.profile_list)
    images = {image.name: image.description for image in spawner.site_images()}
    form = render_form(Offer(profiles, accounts=("physics",), images=images))
    for profile in profiles:
        assert profile.display_name in form
        assert set(profile.images) <= set(images)
    assert len(profiles) == len(site.profiles) >= 1


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ondemand"])
def test_every_setting_of_the_old_file_has_a_finding_at_its_line(name: str) -> None:
    file = read_config_file((SITES / name / "jupyterhub_config.py").read_text(), name)
    last = {(setting.section, setting.name): setting for setting in file.settings if setting.target is not None}
    assert len(last) > 10
    lines = {finding.line for finding in converted(name).findings}
    assert [setting.full_name for setting in last.values() if setting.line not in lines] == []


def test_the_values_of_a_loop_of_additions_are_those_at_the_end() -> None:
    site = converted("batchspawner_ssh")
    assert [profile.data["partition"] for profile in site.profiles] == ["cpu", "gpu"]
    assert site.profiles[0].data["time_minutes"] == {"min": 5, "max": 120, "default": 120}
    assert site.spawner["node_address"] == ("", ".cluster.example.org")
    (module,) = (f for f in site.findings if f.setting.startswith("module load"))
    assert (module.line, module.level) == (42, Level.LOOK)
    assert findings(site, 47) == {"SlurmSpawner.exec_prefix": Level.LOOK}  # it says ssh


def test_the_hub_speaks_tls_and_its_certificate_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = loaded(converted("batchspawner_ssh"), tmp_path, monkeypatch)
    assert config.JupyterHub.trusted_alt_names == ["DNS:hub.cluster.example.org"]
    config = loaded(converted("profiles_spawner"), tmp_path, monkeypatch)
    assert config.JupyterHub.trusted_alt_names == ["IP:10.0.0.30"]
    site = converted("batchspawner_environment")
    config = loaded(site, tmp_path, monkeypatch)
    assert config.JupyterHub.hub_bind_url == "https://:8081"
    assert "trusted_alt_names" not in config.JupyterHub
    assert findings(site, 32) == {"Spawner.hub_connect_url": Level.LOOK}  # only the environment says it


def test_the_login_class_of_the_file_does_the_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = loaded(converted("batchspawner_ssh"), tmp_path, monkeypatch)
    assert config.CarmeAuthenticator.authenticator_class.__name__ == "SiteAuthenticator"
    made: Any = JupyterHub(config=config).authenticator_class(config=config)
    assert type(made).__name__ == "CarmeSiteAuthenticator"


def test_what_only_the_environment_says_stays_code_or_becomes_a_todo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = converted("batchspawner_environment")
    config: Any = loaded(site, tmp_path, monkeypatch)
    assert config.JupyterHub.bind_url == "http://127.0.0.1:8000/site/base_url"
    assert config.Spawner.environment == {"SITE_PREFIX": "/site/prefix", "SITE_NAME": "example"}
    assert "site-admin" in {role["name"] for role in config.JupyterHub.load_roles}
    text = write(site, "/state")
    assert "# TODO (line 48): SiteSlurmSpawner.exec_prefix" in text
    assert "key_file()" in text
    assert "def key_file" not in text  # nothing that is kept needs it
    assert findings(site, 56) == {"SiteSlurmSpawner.batch_script": Level.CHANGED}
    assert list(findings(site, 70).values()) == [Level.LOOK]  # an environment of Python is activated


def test_no_value_of_a_secret_is_in_a_finding() -> None:
    site = converted("batchspawner_environment")
    assert "a secret of the site" not in " ".join(finding.text() for finding in site.findings)
    assert "0600" in next(f.sentence for f in site.findings if f.setting == "DummyAuthenticator.password")


def test_each_partition_is_a_profile_and_each_environment_an_image() -> None:
    site = converted("moss")
    cpu, gpu = (profile.data for profile in site.profiles)
    assert (cpu["partition"], cpu["display_name"], cpu["time_minutes"]["max"]) == ("cpu", "Processors", 720)
    assert gpu["gpus"] == {"types": {"a100": 2}, "min": 0, "default": 0}
    assert gpu["cpus"] == {"min": 1, "max": 8, "default": 1}
    assert list(site.images) == ["2022-default", "2022-rstudio", "shared"] == gpu["images"]
    assert any("TODO: cpus, memory_gib" in comment for comment in site.profiles[0].comments)
    assert site.slurm["cluster"] == "hydra"
    assert site.slurm["slurm_conf"] == "/etc/slurm/slurm.conf"
    assert {f.setting for f in site.findings if f.level is Level.LOOK} >= {"class SiteSpawner", "SiteSpawner.user_env"}
    assert findings(site, 10) == {"class SiteSpawner": Level.LOOK}


def test_what_jupyterhub_moss_asks_slurm_for_is_read_from_a_file() -> None:
    file = SITES / "moss" / "jupyterhub_config.py"
    sinfo = "cpu*|64|257000|2-00:00:00|(null)\ngpu|128+|515000+|1-00:00:00|gpu:a100:4(S:0-1)\nnonsense\n"
    site = convert_config(file.read_text(), file.name, sinfo)
    cpu, gpu = (profile.data for profile in site.profiles)
    assert cpu["cpus"]["max"] == 64
    assert cpu["memory_gib"]["max"] == 250
    assert cpu["time_minutes"]["max"] == 720  # the file's own number is less
    assert gpu["gpus"]["types"] == {"a100": 2}
    assert "TODO" not in " ".join(comment for profile in site.profiles for comment in profile.comments)


def test_each_profile_of_profiles_spawner_is_a_profile() -> None:
    site = converted("profiles_spawner")
    assert [(p.data["slug"], p.data["partition"], p.data["memory_gib"]["max"]) for p in site.profiles] == [
        ("slurm1", "cpu", 3),
        ("slurm3", "cpu", 6),
        ("slurm5", "gpu", 3),
    ]
    assert site.profiles[2].data["time_minutes"]["max"] == 5 * 24 * 60
    assert findings(site, 43)["req_culltime"] is Level.LOOK
    assert list(site.binds) == ["/shared"]  # in which notebooks started


def test_a_hub_of_two_modes_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = converted("profiles_spawner")
    config: Any = loaded(site, tmp_path, monkeypatch)
    assert config.JupyterHub.base_url == "/"
    assert config.LocalAuthenticator.allowed_groups == {"users"}
    assert config.JupyterHub.services[0]["command"][-1] == "--url=http://10.0.0.30:8081//hub/api"
    assert config.JupyterHub.cleanup_servers is False
    assert "JUPYTER_PERSIST" not in write(site, "/state")  # its only setting is left out


def test_an_app_of_open_ondemand_has_its_limits_and_images() -> None:
    site = converted("ondemand")
    (profile,) = site.profiles
    assert profile.data["partition"] == "gpu"
    assert profile.data["cpus"] == {"min": 1, "max": 4, "default": 1}
    assert profile.data["memory_gib"] == {"min": 1, "max": 4, "default": 2}
    assert profile.data["gpus"] == {"types": ["a100"], "min": 0, "max": 2, "default": 0}
    assert profile.data["time_minutes"] == {"min": 5, "max": 480, "default": 60}
    assert profile.data["images"] == ["learning-2021", "physics-latest"]
    assert site.images["physics-latest"]["path"] == "/shared/images/physics/latest.sif"
    assert site.runtime == "apptainer"
    assert list(site.binds) == ["/shared", "/scratch"]
    look = {f.setting for f in site.findings if f.level is Level.LOOK}
    assert {"--bind /etc/slurm", "jupyter_image “survey/r19”", "slurm_partition"} <= look
