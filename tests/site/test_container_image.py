"""The container image of the hub: built by its recipe, and hub and proxy as two containers of it."""

from __future__ import annotations

import os
import shutil
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from machines import only_one, wait_for
from package_builds import forge_slurm
from trees import AUTHORITIES, ROOT, layers, run, wheel

import carme_hub

pytestmark = pytest.mark.nightly
NAME, BASE = "localhost/carme-hub-test", "localhost/carme-hub-test-base"
RECIPE = ROOT / "deploy/packages/container"
#: The usual limits cannot be raised everywhere; ports that nothing else of the tests has.
LIMITS = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096", "--network=host")
PUBLIC, API, HUB = 18470, 18471, 18472
CONFIG = f"""\
import carme_hub
c = get_config()
carme_hub.configure(c, state_folder="/var/lib/carme-hub")
c.JupyterHub.bind_url = "http://127.0.0.1:{PUBLIC}"
c.ConfigurableHTTPProxy.api_url = "https://127.0.0.1:{API}"
c.JupyterHub.hub_bind_url = "https://127.0.0.1:{HUB}"
c.CarmeAuthenticator.allowed_groups = {{"users"}}
c.CarmeSlurm.cluster = "nowhere"
c.CarmeSlurm.submit_via = "sudo"
c.CarmeSlurm.submit_command = ["/usr/local/libexec/carme-submit"]
c.SlurmContainerSpawner.images = [{{"name": "default", "path": "/opt/images/default"}}]
c.SlurmContainerSpawner.profile_list = [{{"slug": "all", "display_name": "All", "partition": "all"}}]
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the name of the built image. Its base is the Debian of the second site, as no registry need be reached."""
    if os.geteuid() != 0:
        raise pytest.UsageError("tests/site boots machines: run it as root")
    context = tmp_path_factory.mktemp("dist")
    wheel(context)
    with only_one():
        system = layers("hub", [])[-1]
        archive = context.with_name("base.tar")
        run("tar", "-C", system, "--exclude=./proc", "--exclude=./sys", "--exclude=./dev", "-cf", archive, ".")
    run("podman", "import", "--quiet", archive, BASE)
    archive.unlink()
    # This machine's way to the registries, for the build alone.
    files = [file for file in (AUTHORITIES, Path("/etc/pip.conf"), Path.home() / ".npmrc") if file.exists()]
    mounts = [f"--volume={file}:{file}:ro" for file in files]
    build = (
        "podman",
        "build",
        "--quiet",
        "--layers=false",
        "--network=host",
        f"--build-arg=BASE={BASE}",
        f"--tag={NAME}",
        *mounts,
    )
    run(*build, f"--file={RECIPE / 'Containerfile'}", context)
    yield NAME
    for name in (NAME, BASE):
        run("podman", "rmi", "--force", name)


def test_the_image_has_the_hub_the_proxy_and_what_the_hub_calls(image: str) -> None:
    commands = "id -u; carme-hub --version; configurable-http-proxy --version; which squeue sudo; ls /usr/local/libexec"
    said = run("podman", "run", "--rm", *LIMITS, image, "sh", "-ec", commands).split()
    assert said[:2] == ["950", carme_hub.__version__]
    assert {"carme-jobs", "carme-submit", "carme-token", "/usr/bin/squeue", "/usr/bin/sudo"} <= set(said)


def test_setup_in_a_container_writes_the_files_of_the_host(image: str, tmp_path: Path) -> None:
    forge_slurm(tmp_path / "forged")
    (tmp_path / "files").mkdir()
    answers = {"host": "hub.example.org", "web_server": "none", "hub_address": "127.0.0.1", "group": "gpu-users"}
    answers |= {"submit_via": "sudo", "image": "/opt/images/default", "container_runtime": "bubblewrap"}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump({**answers, "slurm_prefix": "/forged"}))
    for shim in (tmp_path / "forged/bin").iterdir():
        shim.write_text(shim.read_text().replace(str(tmp_path), ""))
    mounts = (f"--volume={tmp_path / name}:/{name}" for name in ("forged", "files", "site.yaml"))
    setup = ("carme-hub", "setup", "--root=/files", "--answers=/site.yaml", "--no-input", "--yes")
    run("podman", "run", "--rm", "--user=root", *LIMITS, *mounts, image, *setup)
    written = {str(file.relative_to(tmp_path / "files")) for file in (tmp_path / "files").rglob("*") if file.is_file()}
    shared = {"etc/carme-hub/jupyterhub_config.py", "etc/sudoers.d/carme-hub", "usr/local/etc/carme-submit.json"}
    assert shared <= written


@pytest.fixture
def containers(image: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return the ids of two running containers, with the commands of the compose file."""
    (tmp_path / "etc").mkdir(mode=0o755)
    (tmp_path / "etc/jupyterhub_config.py").write_text(CONFIG)
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    shutil.chown(data, 950, 950)
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        folder.chmod(folder.stat().st_mode | 0o011)
    services = yaml.safe_load((RECIPE / "compose.yaml").read_text())["services"]
    started: dict[str, str] = {}
    try:
        for name in ("proxy", "hub"):
            mounts = (f"--volume={tmp_path}/etc:/etc/carme-hub:ro", f"--volume={data}:/var/lib/carme-hub")
            command = services[name].get("command", [])
            started[name] = run("podman", "run", "--detach", *LIMITS, *mounts, image, *command).strip()
            wait_for(lambda: (data / "proxy-token").exists(), 30, "the proxy's token")
        yield started
    finally:
        for each in started.values():
            run("podman", "rm", "--force", "--time=5", each)


def page_is_there() -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{PUBLIC}/hub/login", timeout=5) as answer:
        return b"<form" in answer.read()
    return False


def test_hub_and_proxy_serve_and_a_restart_of_the_hub_leaves_the_proxy(containers: dict[str, str]) -> None:
    wait_for(page_is_there, 60, "the login page", lambda: run("podman", "logs", containers["hub"]))
    started = run("podman", "inspect", "--format={{.State.StartedAt}}", containers["proxy"])
    run("podman", "restart", "--time=20", containers["hub"])
    time.sleep(1)
    wait_for(page_is_there, 60, "the login page", lambda: run("podman", "logs", containers["hub"]))
    assert run("podman", "inspect", "--format={{.State.StartedAt}}", containers["proxy"]) == started
