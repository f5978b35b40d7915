"""What an administrator sets for a box: the example loads, and what cannot be is refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Config, PyFileConfigLoader

import carme_hub
from carme_hub.errors import ConfigError
from carme_hub.spawners.docker.container import Arguments
from carme_hub.spawners.docker.settings import with_site_settings
from carme_hub.spawners.docker.spawner import CarmeDockerSpawner

EXAMPLE = Path(__file__).parents[4] / "examples/one-gpu-box/jupyterhub_config.py"
GOOD: dict[str, Any] = {
    "images": [{"name": "lab", "path": "site/lab:1", "format": "ref"}],
    "profile_list": [{"slug": "gpu", "display_name": "GPU", "gpus": {"types": ["a100"], "max": 4}}],
}


def spawner(**settings: Any) -> CarmeDockerSpawner:
    config = Config()
    config.CarmeDockerSpawner.update({**GOOD, **settings})
    return CarmeDockerSpawner(config=config)


def profile(**more: Any) -> list[dict[str, Any]]:
    return [{"slug": "gpu", "display_name": "GPU", **more}]


def test_the_example_is_a_site_that_starts() -> None:
    config = PyFileConfigLoader(EXAMPLE.name, path=str(EXAMPLE.parent)).load_config()
    assert config.JupyterHub.spawner_class == "carme-docker"
    assert config.JupyterHub.internal_ssl is False
    assert config.CarmeAuthenticator.accounts_from_slurm is False
    box = CarmeDockerSpawner(config=config)
    box.check_settings()
    types = {type for p in box.profile_list for type in p.get("gpus", {}).get("types", [])}
    assert types == {gpu.type for gpu in box.box_gpus()}


def test_one_line_takes_this_spawner() -> None:
    config = Config()
    carme_hub.configure(config, slurm=False)
    assert config.JupyterHub.spawner_class == "carme-docker"


def test_the_defaults_are_the_safe_ones() -> None:
    box = spawner()
    box.check_settings()
    assert box.container_root == "ro"
    assert box.pull_policy == "never"
    assert box.remove
    assert not box.will_resume
    assert box.container_ids() == (1000, 100)
    assert box.env_keep == []
    assert box.host_ip == "127.0.0.1"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"images": []}, "images is empty"),
        ({"images": [{"name": "lab", "path": "/images/lab", "format": "dir"}]}, "'lab' must be ref"),
        ({"images": [{"name": "lab", "path": "--privileged", "format": "ref"}]}, "not a reference"),
        ({"profile_list": []}, "profile_list is empty"),
        ({"profile_list": profile(partition="gpu")}, r"partition work with Slurm only"),
        ({"profile_list": profile(accounts=["physics"])}, "accounts .* use groups to offer a profile to some users"),
        ({"profile_list": profile(slurm_override={"qos": "high"})}, "qos work"),
        ({"container_user": "0:0"}, "neither of them 0"),
        ({"container_user": "jovyan"}, "uid:gid in numbers"),
        ({"container_user": "1000:0"}, "neither of them 0"),
        ({"container_binds": [("/var/run/docker.sock", "/x", "rw")]}, "never bound"),
        ({"container_binds": [("/", "/host", "rw")]}, "never bound"),
        ({"container_environment": {"LD_PRELOAD": "/x.so"}}, "LD_PRELOAD may not be set"),
        ({"allowed_images": "*"}, r"allowed_images is not used here; set instead: c\.CarmeDockerSpawner\.images"),
        ({"mem_limit": "8G"}, "mem_limit is not used here; set instead: memory_gib"),
        ({"remove": False}, "remove is not used here"),
        ({"gpus": [{"id": "0"}]}, "gpus: "),
    ],
)
def test_what_cannot_be_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spawner(**settings).check_settings()


def test_settings_of_dockerspawner_count_wherever_they_are_written() -> None:
    config = Config()
    config.CarmeDockerSpawner.update(GOOD)
    config.DockerSpawner.image = "anything"
    with pytest.raises(ConfigError, match=r"c\.DockerSpawner\.image is not used here"):
        CarmeDockerSpawner(config=config).check_settings()
    config = Config({"CarmeDockerSpawner": GOOD, "JupyterHub": {"internal_ssl": True}})
    with pytest.raises(ConfigError, match="internal_ssl"):
        CarmeDockerSpawner(config=config).check_settings()


async def test_a_list_made_anew_for_each_user_may_not_name_accounts_either() -> None:
    box = spawner(profile_list=lambda _spawner: profile(accounts=["physics"]))
    box.check_settings()
    with pytest.raises(ConfigError, match="accounts"):
        await box.profiles()


class SpawnerOfNobody:
    """As much of a spawner as ``with_site`` reads."""

    volume_binds: dict[str, Any] = {"/a": {"bind": "/b", "mode": "ro"}}
    volume_mount_points = ["/b"]
    mount_binds: list[Any] = []

    def __init__(self, **extra: Any) -> None:
        self.extra_create_kwargs = extra.get("create", {})
        self.extra_host_config = extra.get("host", {})

    def _render_templates(self, value: Any) -> Any:
        return value


async def added(**extra: Any) -> Arguments:
    return await with_site_settings(
        SpawnerOfNobody(**extra), {"labels": {"x": "y"}}, {"mounts": [], "cap_drop": ["ALL"]}
    )


async def test_a_site_adds_what_dockerspawner_takes() -> None:
    async def later(_spawner: Any) -> dict[str, Any]:
        return {"dns": ["10.0.0.1"]}

    create, host = await added(create={"domainname": "lab"}, host=later)
    assert create == {"labels": {"x": "y"}, "volumes": ["/b"], "domainname": "lab"}
    assert host == {"mounts": [], "cap_drop": ["ALL"], "binds": SpawnerOfNobody.volume_binds, "dns": ["10.0.0.1"]}


@pytest.mark.parametrize(
    "extra",
    [
        {"host": {"device_requests": []}},
        {"host": {"privileged": True}},
        {"host": lambda _spawner: {"devices": ["/dev/nvidia0"]}},
        {"create": {"labels": {}}},
        {"create": {"user": "root"}},
    ],
)
async def test_a_site_cannot_add_gpus_that_nobody_counts(extra: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the hub sets it"):
        await added(**extra)


def test_every_setting_says_how_to_write_it() -> None:
    for name, trait in CarmeDockerSpawner.class_own_traits(config=True).items():
        assert re.search(r"[.]", trait.help), name
