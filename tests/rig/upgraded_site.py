"""A site with the hub of an earlier release, which runs, and this release installed beside it."""

from __future__ import annotations

import json
import pwd
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from carme_hub.sandbox.demo import Demo
from rig.hub import Hub
from rig.releases import install

#: A policy that the earlier releases know.
POLICY = {"quotas": [{"id": "month", "user": "*", "gpu_time": 1000, "window": "month"}]}


@dataclass(frozen=True)
class PatientDemo(Demo):
    """A site whose proxy holds requests for longer: a busy machine installs and starts slowly.

    Attributes:
        own_settings: lines of configuration after the sandbox's.
    """

    own_settings: ClassVar[str] = ""

    @property
    def config_file(self) -> Path:
        """A file in the hub's folder, which loads the sandbox's of this release."""
        file = self.folder / "upgraded_config.py"
        text = f"c = get_config()\nload_subconfig({str(super().config_file)!r})\n{self.own_settings}"
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            file.chmod(0o644)
        return file

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), "CARME_PROXY_WAIT": "200"}


class EarlierDemo(PatientDemo):
    """A site of an earlier release, whose images say less of themselves."""

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), "CARME_SANDBOX_HUB": str(self.folder / "earlier.json")}

    def _write_facts(self) -> None:
        super()._write_facts()
        facts = json.loads((self.folder / "facts.json").read_text())
        for image in facts["images"]:
            image.pop("provides")
        file = self.folder / "earlier.json"
        file.write_text(json.dumps(facts))
        file.chmod(0o600)
        shutil.chown(file, self.user)


def hub_of(like: Hub, folder: Path, environment: Path, kind: type[Demo] = PatientDemo) -> Hub:
    """Return a hub with another folder and another installation, at the same addresses."""
    values = {each.name: getattr(like.demo, each.name) for each in fields(Demo)}
    found = Hub(kind(**{**values, "folder": folder, "environment": environment}))
    found.token, found.environment = like.token, like.environment
    return found


def command(hub: Hub, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``carme-hub`` of a hub's release, as the hub's user."""
    demo = hub.demo
    environ = {**demo._environment(), "SLURM_CONF": str(demo.cluster.hub_slurm_conf)}
    named = [f"{name}={value}" for name, value in environ.items()]
    argv = ["runuser", "-u", demo.user, "--", "env", "-i", *named, f"{demo.environment}/bin/carme-hub", *words]
    argv += ["--config", str(demo.config_file)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False, cwd=demo.folder)


@dataclass
class UpgradedSite:
    """A site with the hub of an earlier release, which runs, and this release installed beside it."""

    release: str
    old: Hub
    new: Hub
    home: Path

    @property
    def processes(self) -> Any:
        return self.new.demo.sandbox.processes

    def jobs(self) -> dict[str, str]:
        """Return the job of each user's session."""
        return {row["user"]: row["id"] for row in self.new.jobs()}

    def sessions(self) -> set[tuple[str, str, int]]:
        """Return user, id and job of each open session, from the database of any release."""
        file = self.new.demo.folder / "carme-hub.sqlite"
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            return set(database.execute("SELECT \"user\", id, job_id FROM session WHERE state <> 'ended'"))


@contextmanager
def upgraded_site(
    hub: Hub, release: str, scratch: Path, kinds: tuple[type[Demo], type[Demo]] = (EarlierDemo, PatientDemo)
) -> Iterator[UpgradedSite]:
    """Stop the hub of the tests, and run one of an earlier release in its place; ``kinds`` are its and this one's."""
    hub.stop()
    cluster = hub.cluster
    state = cluster.state
    folder = state / f"hub-since-{release}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    shutil.chown(folder, hub.demo.user, pwd.getpwnam(hub.demo.user).pw_gid)
    before = install(release, hub.demo.environment, state / f"environment-{release}", scratch)
    home = Path("~alice").expanduser() / "upgrade"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    shutil.chown(home, "alice", "alice")
    site = UpgradedSite(
        release, hub_of(hub, folder, before, kinds[0]), hub_of(hub, folder, hub.demo.environment, kinds[1]), home
    )
    site.old.demo.set_policy(POLICY)
    site.old.demo._write_facts()
    try:
        site.old.start()
        yield site
    finally:
        cluster.run("scontrol", "update", "partitionname=interactive", "state=up", check=False)
        cluster.cancel_all()
        site.new.stop()
        for each in (folder, before, home):
            shutil.rmtree(each, ignore_errors=True)
