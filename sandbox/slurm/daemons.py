"""The command line of each daemon, and the check that it answers. Order matters: each depends on the previous one."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from carme_hub.sandbox.layout import Layout
from carme_hub.sandbox.slurm.cluster import Cluster

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Daemon:
    """One daemon.

    Attributes:
        user: None for root (or for the one ordinary user). ready: whether it answers now.
        sockets: files that a crashed daemon leaves and that prevent the start of a new one.
    """

    name: str
    argv: tuple[str, ...]
    ready: Callable[[], bool]
    user: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    within: float = 20.0
    umask: int = 0o022
    sockets: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Identities:
    """The system user of each daemon. All None: everything runs as the one ordinary user."""

    slurm: str | None
    munge: str | None
    database: str | None
    rest: str | None


PACKAGED = Identities(slurm="slurm", munge="munge", database="mysql", rest="carme-rest")
ROOTLESS = Identities(slurm=None, munge=None, database=None, rest=None)


def daemons(cluster: Cluster, who: Identities) -> dict[str, Daemon]:
    """Return the daemons of a sandbox by name, in the order in which they are started."""
    layout, ports = cluster.layout, cluster.ports
    env = {"PATH": _PATH, "LANG": "C.UTF-8", "SLURM_CONF": str(layout.slurm_conf)}
    conf = str(layout.slurm_conf)
    found = [
        Daemon(
            "munged",
            (
                *("/usr/sbin/munged", "--foreground", "--num-threads=10"),
                *(f"--key-file={layout.munge}/munge.key", f"--seed-file={layout.munge}/munged.seed"),
                *(f"--socket={layout.munge_socket}", f"--pid-file={layout.munge}/munged.pid"),
                f"--log-file={layout.munge}/munged.log",
                *(("--force",) if cluster.rootless else ()),  # a private home is accessible to the only user
            ),
            ready=lambda: _unix(layout.munge_socket),
            user=who.munge,
            env=env,
            sockets=(layout.munge_socket,),
        ),
        Daemon(
            "mariadbd",
            ("/usr/sbin/mariadbd", f"--defaults-file={layout.etc}/mariadb.cnf"),
            ready=lambda: _tcp(ports.database),
            user=who.database,
            env=env,
            within=60.0,
            umask=0o077,
        ),
        Daemon(
            "slurmdbd",
            (cluster.command("slurmdbd"), "-D"),
            ready=lambda: _tcp(ports.dbd),
            user=who.slurm,
            env=env,
            within=60.0,
        ),
        Daemon(
            "slurmctld",
            (cluster.command("slurmctld"), "-D", "-f", conf),
            ready=lambda: _ping(cluster),
            user=who.slurm,
            env=env,
            within=30.0,
        ),
    ]
    if not cluster.rootless:
        found.append(
            Daemon(
                "slurmrestd",
                (cluster.command("slurmrestd"), "-f", conf, "-a", "rest_auth/jwt", f"unix:{layout.rest_socket}"),
                ready=lambda: _unix(layout.rest_socket),
                user=who.rest,
                env={**env, "SLURM_JWT": "daemon"},
                umask=0,  # the mode of the socket's folder excludes others
                sockets=(layout.rest_socket,),
            )
        )
    for name, port in cluster.node_ports.items():
        found.append(
            Daemon(
                f"slurmd-{name}",
                (cluster.command("slurmd"), "-D", "-N", name, "-f", conf),
                ready=lambda port=port: _tcp(port),  # type: ignore[misc]
                # Slurm's PMIx finds the ranks of a node by the machine's name, which all virtual nodes share.
                env={**env, "PMIX_HOSTNAME": name},
            )
        )
    return {daemon.name: daemon for daemon in found}


def node_states(cluster: Cluster) -> dict[str, str]:
    """Return each node's state in Slurm; {} when the controller does not answer."""
    if not _ping(cluster):
        return {}
    text = _ask(cluster, "sinfo", "-h", "-N", "-o", "%N|%T")
    return dict(line.split("|", 1) for line in text.splitlines() if "|" in line)


def _ping(cluster: Cluster) -> bool:
    return "is UP" in _ask(cluster, "scontrol", "ping")


def _ask(cluster: Cluster, *argv: str) -> str:
    environment = {**cluster.environment(), "SLURM_CONF": str(cluster.hub_slurm_conf)}
    try:
        done = subprocess.run(
            [cluster.command(argv[0]), *argv[1:]],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout if done.returncode == 0 else ""


def _tcp(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


def _unix(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1)
        return client.connect_ex(str(path)) == 0


def log_of(layout: Layout, daemon: str) -> Path:
    """Return the file of a daemon's output."""
    return layout.log / f"{daemon}.out"
