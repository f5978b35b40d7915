"""A site with forged answers of Slurm: partitions of several kinds, commands that print them, and setup before them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from traitlets.config import Application

from carme_hub.cli.setup.answers import Answers, complete, typed
from carme_hub.cli.setup.command import SetupApp
from carme_hub.cli.setup.facts import Facts, partitions
from carme_hub.cli.setup.plan import Sources
from carme_hub.paths import share_folder
from carme_hub.slurm.cli.parse import nodes

CONFIG = """\
Configuration data as of 2026-11-27T08:00:00
AuthAltTypes            = auth/jwt
AuthAltParameters       = jwt_key=/var/spool/slurm/jwt_hs256.key
ClusterName             = ada
SLURM_CONF              = /etc/slurm/slurm.conf
SLURM_VERSION           = 23.11.4
"""
_NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=16 CPUAlloc=0 CPUEfctv={cpus} CPUTot={cpus} Gres={gres} "
    "NodeAddr=127.0.0.1 NodeHostName={name} RealMemory={memory} AllocMem=0 State=IDLE Partitions={partitions}\n"
)
NODES = "".join(
    _NODE.format(name=name, cpus=cpus, gres=gres, memory=memory, partitions=parts)
    for name, cpus, gres, memory, parts in (
        ("gpu1", 64, "gpu:a100:4", 512000, "gpu,all"),
        ("gpu2", 96, "gpu:h100:8", 1024000, "gpu,all"),
        ("cpu1", 32, "(null)", 128000, "cpu,all"),
    )
)
_PARTITION = (
    "PartitionName={name} AllowGroups={groups} AllowAccounts={accounts} AllowQos={qos} AllocNodes=ALL "
    "Default={default} QoS=N/A DefaultTime=NONE Hidden={hidden} MaxNodes=UNLIMITED MaxTime={limit} Nodes=x RootOnly=NO "
    "ReqResv=NO State=UP\n"
)
_USUAL = {"groups": "ALL", "accounts": "ALL", "qos": "ALL", "default": "NO", "hidden": "NO", "limit": "UNLIMITED"}
PARTITIONS = "".join(
    _PARTITION.format(**{**_USUAL, **row})
    for row in (
        {"name": "cpu", "default": "YES", "limit": "02:00:00"},
        {"name": "gpu", "limit": "2-00:00:00", "accounts": "physics,chemistry", "qos": "long,gpu"},
        {"name": "all", "hidden": "YES"},
    )
)
GIVEN = {
    "host": "hub.example.org",
    "web_server": "nginx",
    "tls_certificate": "/etc/ssl/hub.pem",
    "tls_key": "/etc/ssl/hub.key",
    "group": "gpu-users",
    "admin_group": "hub-admins",
    "image": "/opt/images/pytorch",
    "container_runtime": "apptainer",
}
HUB_CONFIG = "etc/carme-hub/jupyterhub_config.py"


def facts() -> Facts:
    """Return a site with sudo, tokens, and nginx; of its users and groups nothing is looked up."""
    return Facts(
        cluster="ada",
        release="23.11.4",
        partitions=partitions(PARTITIONS, nodes(NODES)),
        accounts=("physics", "chemistry"),
        qos=("normal", "long", "gpu"),
        jwt_key="/var/spool/slurm/jwt_hs256.key",
        sudo="/usr/bin/sudo",
        addresses=("10.0.0.1",),
        host="hub1.example.org",
        programs=frozenset({"nginx", "node", "configurable-http-proxy"}),
    )


def answers(**others: str) -> Answers:
    """Return complete answers, with others than the usual ones."""
    return typed(complete({**GIVEN, **others}, facts()))


def sources() -> Sources:
    """Return the package's templates and helpers, installed in /opt/carme-hub."""
    share = share_folder()
    return Sources(
        bin="/opt/carme-hub/bin",
        templates={file.name: file.read_text() for file in (share / "setup").glob("*.j2")},
        helpers={
            name: (share / "libexec" / name).read_text()
            for name in (
                *("carme-submit", "carme-jobs", "carme-token"),
                *("carme-folders", "carme-folders-acls", "carme-folders-tree"),
            )
        },
    )


def with_runtimes(**found: tuple[str, ...]) -> Facts:
    """Return the site with what was found on a node of each partition."""
    return replace(facts(), runtimes={name: frozenset(each) for name, each in found.items()})


def forge_commands(prefix: Path, *, srun: str = "exit 1") -> None:
    """Make Slurm's commands below a prefix, which answer as the site above."""
    (prefix / "bin").mkdir(parents=True)
    for name, text in (("config", CONFIG), ("nodes", NODES), ("partitions", PARTITIONS)):
        (prefix / name).write_text(text)
    scontrol = 'case "$*" in *config*) f=config ;; *partition*) f=partitions ;; *) f=nodes ;; esac'
    scontrol += f"\ncat {prefix}/$f"
    sacctmgr = 'case "$*" in *account*) echo physics; echo chemistry ;; *qos*) echo normal ;; *) echo Operator ;; esac'
    commands = {"scontrol": scontrol, "sacctmgr": sacctmgr, "srun": srun, "scancel": "exit 0", "sbatch": "exit 1"}
    for name, text in commands.items():
        shim = prefix / "bin" / name
        shim.write_text(f'#!/bin/sh\necho "$0 $*" >> {prefix}/calls\n{text}\n')
        shim.chmod(0o755)


class CommandLine:
    """The command, with a root and a Slurm of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.prefix, self._capsys = folder / "root", folder / "slurm", capsys
        self.root.mkdir()
        forge_commands(self.prefix)
        self.answers = folder / "site.yaml"
        self.answer(**GIVEN)

    def answer(self, **answers: str) -> None:
        """Write the file of answers."""
        self.answers.write_text(yaml.safe_dump({"slurm_prefix": str(self.prefix), **answers}))

    def run(self, *argv: str) -> tuple[int, str, str]:
        """Run it; return its exit status, stdout and stderr."""
        app = SetupApp()
        with pytest.raises(SystemExit) as ended:
            self._start(app, ["--root", str(self.root), *argv])
        output = self._capsys.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    def write(self, *argv: str) -> tuple[int, str, str]:
        """Run it with the file of answers, and nobody to ask."""
        return self.run("--answers", str(self.answers), "--no-input", "--yes", *argv)

    @staticmethod
    def _start(app: Application, argv: list[str]) -> None:
        app.initialize(argv)
        app.start()

    def files(self) -> dict[str, str]:
        return {str(file.relative_to(self.root)): file.read_text() for file in self.root.rglob("*") if file.is_file()}
