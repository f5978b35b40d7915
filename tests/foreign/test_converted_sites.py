"""Configurations with the shapes of five public sites are converted, and a session of each starts on a real Slurm.

What an administrator corrects in the new file is corrected here, in ``CORRECTED``: addresses, partitions, images.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from rig.hub import Hub

from carme_hub.cli.convert.convert import convert_app, convert_config
from carme_hub.cli.convert.writing import write
from carme_hub.sandbox.demo import Demo

USER = "tina"
pytestmark = pytest.mark.nightly
SITES = Path(__file__).with_name("sites")
NAMES = ["batchspawner_ssh", "batchspawner_environment", "moss", "profiles_spawner", "ondemand"]
#: The end of each new file. The sandbox's own configuration has this site's addresses, Slurm and login; what is offered
#: stays that of the converted one, with the partition and the images that there are here.
CORRECTED = """
# -- What is corrected for the sandbox ---------------------------------------------------------------------------------
import json, os

spawner = c.SlurmContainerSpawner
offered = spawner.profile_list
shared = list(spawner.container_binds) if "container_binds" in spawner else []
image_names = [image["name"] for image in spawner.images]
c.JupyterHub.services = [each for each in c.JupyterHub.get("services", []) if each["name"] != "cull-idle"]
c.JupyterHub.db_url = f"sqlite:///{STATE}/jupyterhub.sqlite"
c.JupyterHub.hub_connect_ip = ""
c.JupyterHub.template_paths = [path for path in c.JupyterHub.template_paths if os.path.isdir(path)]
spawner.node_address = None
with open(SANDBOX) as file:
    exec(compile(file.read(), SANDBOX, "exec"))
given = {name: value for name, value in os.environ.items() if name.startswith("SITE_")}
for service in c.JupyterHub.services:  # they read this file, too
    service.setdefault("environment", {}).update(given)
here = spawner.images[0]
spawner.images = [{**here, "name": name} for name in image_names]
spawner.container_runtime = "bubblewrap"
spawner.container_binds = [(SHARED, place, mode) for _, place, mode in shared if place == "/shared"]
spawner.profile_list = [
    {**profile, **({"partition": "interactive"} if "partition" in profile else {})} for profile in offered
]
"""


@dataclass(frozen=True)
class DemoOfFile(Demo):
    """The sandbox's hub with another configuration file."""

    file: Path

    @property
    def config_file(self) -> Path:
        """The converted file, with what was corrected."""
        return self.file


@pytest.fixture
def converted(request: pytest.FixtureRequest, site: Hub, open_path: Path) -> Iterator[Hub]:
    """A hub with the converted configuration of the test's parameter, in the place of the sandbox's own."""
    name, demo = str(request.param), site.demo
    old = SITES / name
    if name == "ondemand":
        made = convert_app(old)
    else:
        made = convert_config((old / "jupyterhub_config.py").read_text(), "jupyterhub_config.py")
    folder = demo.cluster.state / "converted"
    folder.mkdir(mode=0o700, exist_ok=True)
    file = folder / f"{name}.py"
    values = {"STATE": str(demo.folder), "SANDBOX": str(demo.config_file), "SHARED": str(open_path)}
    known = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    file.write_text(write(made, str(demo.folder)) + "\n" + known + CORRECTED)
    owner = pwd.getpwnam(demo.user)
    for path in (folder, file):
        os.chown(path, owner.pw_uid, owner.pw_gid)
    work = open_path / "work" / USER  # where servers of one site begin
    work.mkdir(parents=True)
    os.chown(work, pwd.getpwnam(USER).pw_uid, -1)
    site.stop()
    hub = Hub(DemoOfFile(**{field.name: getattr(demo, field.name) for field in fields(demo)}, file=file))
    words = {"BASE_URL": "/", "PREFIX": "/opt/site", "FOLDER": str(folder), "LOGIN": "login", "WRAPPERS": "/opt/bin"}
    words["HUB_CONNECT_URL"] = f"https://127.0.0.1:{demo.ports['hub']}"
    try:
        hub.start(**{f"SITE_{word}": value for word, value in words.items()})
        yield hub
        hub.stop_all()
    finally:
        hub.stop()
        site.start()


@pytest.mark.parametrize("converted", NAMES, indirect=True)
def test_a_session_of_a_converted_configuration_starts(converted: Hub) -> None:
    form = str(converted.login(USER).get("/hub/spawn").body)
    assert _default_profile(converted) in form
    server = converted.start_server(USER, profile=_default_profile(converted))
    assert server["ready"]
    kernel = converted.new_kernel(USER)
    assert converted.run_cell(USER, kernel, "print(6 * 7)") == "42\n"
    jobs = [job for job in converted.jobs() if job["user"] == USER]
    assert len(jobs) == 1


def _default_profile(hub: Hub) -> str:
    text = hub.demo.config_file.read_text()
    before = text[: text.index('"default": True')]
    return before.rpartition('"slug": "')[2].partition('"')[0]
