"""``carme-hub setup`` on a real Slurm: a site written below another root, started, tried on each partition, removed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from jupyterhub.utils import random_port
from rig.fixtures import _copy_hub_environment

from carme_hub.sandbox import Cluster, Sandbox
from carme_hub.sandbox.demo import Demo
from carme_hub.sandbox.people import HUB_USER

SITE = "carme-setup-test"
#: What a person would write for a site whose nodes are all on one machine.
OWN_SETTINGS = """\
c = get_config()
c.SlurmContainerSpawner.ip = "127.0.0.1"
c.SlurmContainerSpawner.virtual = True
c.SlurmContainerSpawner.stop_grace = 2
c.PAMAuthenticator.service = "login"
"""


class NewSite:
    """A site below a folder, in front of the sandbox's Slurm."""

    def __init__(self, cluster: Cluster, demo: Demo, root: Path) -> None:
        self.cluster, self.demo, self.root = cluster, demo, root
        self.state = cluster.state / "setup-hub"
        self.config = root / f"etc/{SITE}/jupyterhub_config.py"
        self.answers = root / "site.yaml"
        self.answers.write_text(
            yaml.safe_dump(
                {
                    "site": SITE,
                    "hub_user": HUB_USER,
                    "state_folder": str(self.state),
                    "libexec": str(cluster.layout.libexec),
                    "slurm_prefix": str(cluster.bin.parent),
                    "slurm_conf": str(cluster.hub_slurm_conf),
                    "host": "localhost",
                    "web_server": "none",
                    "hub_port": random_port(),
                    "public_port": random_port(),
                    "proxy_api_port": random_port(),
                    "group": "carme-users",
                    "admin_group": "carme-admins",
                    "image": str(demo.images[0]),
                    "test_user": "alice",
                }
            )
        )

    def setup(self, *options: str, answers: bool = True) -> subprocess.CompletedProcess[str]:
        """Run it under the host name localhost, so that srun listens where the sandbox's nodes are."""
        argv = [f"{self.demo.environment}/bin/carme-hub", "setup", "--root", str(self.root), "--no-input"]
        argv += ["--answers", str(self.answers)] if answers else ["--site", SITE]
        named = ["unshare", "--uts", "sh", "-c", 'hostname localhost && exec "$@"', "sh", *argv, *options]
        return subprocess.run(named, capture_output=True, text=True, check=False, timeout=300)

    def start(self) -> None:
        """Do what systemd does with the units: secrets, then the proxy, then the hub."""
        self.state.mkdir(mode=0o700)
        shutil.chown(self.state, HUB_USER, HUB_USER)
        environ = {"PATH": f"{self.demo.environment}/bin:/usr/bin:/bin:/usr/sbin", "HOME": str(self.state)}
        environ |= {"LANG": "C.UTF-8", "USER": HUB_USER, "LOGNAME": HUB_USER}
        options = {"env": environ, "user": HUB_USER, "cwd": self.state, "umask": 0o077}
        program = f"{self.demo.environment}/bin/carme-hub"
        made = subprocess.run(
            [program, "init", "--config", str(self.config)],
            **{**options, "group": HUB_USER, "extra_groups": []},  # type: ignore[call-overload]
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stderr
        start, log = self.cluster.processes.start, self.cluster.layout.log
        start("setup-proxy", [program, "proxy", "--config", str(self.config)], log=log / "setup-proxy.log", **options)
        argv = [f"{self.demo.environment}/bin/jupyterhub", "--config", str(self.config)]
        start("setup-hub", argv, log=log / "setup-hub.log", extra_groups=("shadow",), **options)

    def log(self) -> str:
        return (self.cluster.layout.log / "setup-hub.log").read_text("utf-8", "replace")

    def stop(self) -> None:
        for name in ("setup-hub", "setup-proxy"):
            self.cluster.processes.stop(name)
        shutil.rmtree(self.state, ignore_errors=True)


@pytest.fixture
def site(quiet: Cluster, open_path: Path) -> Iterator[NewSite]:
    """Nothing yet; the image and the hub's virtual environment are there, as after an installation."""
    _copy_hub_environment(quiet.state / "hub-environment")
    found = NewSite(quiet, Demo.prepare(Sandbox(quiet.state), print), open_path)
    yield found
    found.stop()


def files(root: Path) -> dict[str, str]:
    return {f"/{path.relative_to(root)}": path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_site_is_written_started_tried_on_each_partition_and_removed(site: NewSite) -> None:
    shown = site.setup()
    assert shown.returncode == 1
    assert "Nothing was written" in shown.stderr, shown
    assert not (site.root / "etc").exists(), "without --yes it only shows"

    first = site.setup("--yes", "--no-test")
    assert first.returncode == 0, first
    assert f'+c.CarmeSlurm.cluster = "{site.cluster.name}"' in first.stdout
    assert "interactive: 4 nodes, up to 32 CPUs" in first.stdout
    text = site.config.read_text()
    assert 'container_runtime = "bubblewrap"' in text, "found on the nodes, by srun"
    assert '"partition": "batch"' in text
    written = files(site.root)
    assert (site.root / f"etc/sudoers.d/{SITE}").stat().st_mode & 0o777 == 0o440
    assert site.config.stat().st_uid == 0

    for answers in (True, False):
        again = site.setup("--yes", answers=answers)
        assert (again.returncode, again.stdout.splitlines()[-1]) == (0, "nothing to do"), again
        assert files(site.root) == written

    (site.config.parent / "site.py").write_text(OWN_SETTINGS)
    site.start()
    tried = site.setup("--yes", "--test")
    assert "nothing to do" in tried.stdout, (tried, site.log())
    assert "unsafe   TaskPlugin" in tried.stdout, "the doctor has read the configuration and Slurm"
    rows = {
        line.split()[0]: line.split() for line in tried.stdout.splitlines() if line.startswith(("interactive", "batch"))
    }
    for partition in ("interactive", "batch"):
        assert re.fullmatch(r"\d+\.\d", rows[partition][1]), (tried, site.log()[-6000:])
        assert re.fullmatch(r"\d+\.\d", rows[partition][2]), tried
    print(tried.stdout.splitlines()[-3:])
    assert not site.cluster.squeue("-t", "PD,R,S,CF")
    assert "Traceback" not in site.log()

    with site.config.open("a") as file:
        file.write("# mine\n")
    kept = site.setup("--yes", "--no-test")
    assert kept.returncode == 0
    assert "was changed by a person and stays so" in kept.stdout
    assert "-# mine" in kept.stdout
    assert site.config.read_text().endswith("# mine\n")

    gone = site.setup("--remove", "--yes")
    assert gone.returncode == 0, gone
    left = {path for path in files(site.root) if not path.endswith(("/site.yaml", "/site.py"))}
    assert left == {f"/etc/{SITE}/jupyterhub_config.py"}, "what a person has changed stays, and so does the data"
    assert (site.state / "jupyterhub.sqlite").exists()
