"""``carme-hub nodes check`` and ``install-check``: run the nodes' health check by hand, and give it to the nodes."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traitlets import Unicode

from carme_hub.cli.base import ConfiguredApp, UsageError, positional_arguments
from carme_hub.cli.reservations.times import local_zone
from carme_hub.node import program

from .plan_file import read_plan

#: Names of the files on a node, and the programs of ``carme_hub.node`` that they are.
FILES = {"carme-node-health": "health", "carme-health-checks": "health_checks", "carme-nvml": "nvml"}
HEALTH = Path(__file__).parents[2] / "node" / "health.py"


class CheckApp(ConfiguredApp):
    """Check whether this node, or others, are well."""

    name = "carme-hub nodes check"
    description = """Check whether nodes are well; nothing is changed. Without a NODE it is this machine, as a node of
    Slurm, by the check that slurm.conf's HealthCheckProgram runs on nodes. With NODE … it is these, by the check of a
    plan (--plan), one after the other, from this machine. Exit status: 0 well, 1 something failed, 2 not known."""
    examples = """carme-hub nodes check
    carme-hub nodes check node7 node8 --plan kernel.yaml"""

    plan = Unicode("", help="The plan whose check is run for the named nodes.").tag(config=True)
    settings = Unicode("", help="The check's settings. The default is /etc/carme-hub/node-health.conf.").tag(
        config=True
    )
    aliases: Any = {"plan": "CheckApp.plan", "settings": "CheckApp.settings"}

    async def work(self) -> int:
        """Check."""
        return await asyncio.to_thread(self._others if self.extra_args else self._here)

    def _here(self) -> int:
        more = ["--config", self.settings] if self.settings else []
        more += ["--json"] if self.as_json else []
        return subprocess.run([sys.executable, "-I", str(HEALTH), "--show", *more], check=False).returncode

    def _others(self) -> int:
        if not self.plan:
            raise UsageError("name the plan that has the check with --plan; without a NODE it is this machine")
        plan = read_plan(Path(self.plan), local_zone() or "UTC")
        if plan.check is None:
            raise UsageError(f"{self.plan} has no check")
        if unknown := [node for node in self.extra_args if node not in plan.nodes]:
            raise UsageError(f"{', '.join(unknown)}: not in {self.plan}")
        return max(self._run(node, plan.check.of(node), plan.check.limit) for node in self.extra_args)

    def _run(self, node: str, argv: list[str], limit: int) -> int:
        self.note(f"{node}: {shlex.join(argv)}")
        try:
            code = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, timeout=limit).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            self.note(f"{node}: not known: {error}")
            return 2
        self.note(f"{node}: {'well' if code == 0 else f'not well (exit status {code})'}")
        return 0 if code == 0 else 1


class InstallCheckApp(ConfiguredApp):
    """Write the health check for compute nodes into a folder."""

    name = "carme-hub nodes install-check"
    description = """Write the health check for compute nodes into FOLDER, which only root may write and which the nodes
    have under the same path. It needs python3 there, and nothing else. What was there is replaced."""
    examples = "carme-hub nodes install-check /opt/carme-hub/node"

    async def work(self) -> int:
        """Write the files, and say what to do with them."""
        (name,) = positional_arguments(self, "FOLDER")
        folder = await asyncio.to_thread(write_programs, Path(name), FILES)
        if self.as_json:
            self.print_json({"folder": str(folder), "files": sorted(FILES)})
            return 0
        print(f"{', '.join(FILES)} are in {folder}. In slurm.conf:")
        print(f"HealthCheckProgram={folder}/carme-node-health\nHealthCheckInterval=120\nHealthCheckNodeState=ANY,CYCLE")
        return 0


def write_programs(folder: Path, files: Mapping[str, str]) -> Path:
    """Write programs of ``carme_hub.node`` into a folder, and return its absolute path.

    Args:
        files: names of the programs, by the names of their files.
    """
    folder = folder.absolute()
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name, source in files.items():
        new = folder / f".{name}.new"
        new.write_text(program(source), encoding="utf-8")
        new.chmod(0o755)
        new.replace(folder / name)
    return folder
