"""One sandbox's cluster as the demo and tests use it: paths, users, ports, and control of its daemons."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import signal as signals
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from carme_hub.errors import SandboxError
from carme_hub.sandbox.layout import Layout
from carme_hub.sandbox.processes import Processes, identity
from carme_hub.sandbox.slurm.hostname import as_localhost
from carme_hub.sandbox.slurm.ports import Ports
from carme_hub.sandbox.slurm.settings import CLUSTER

_FIELDS = ("id", "user", "state", "reason", "nodes", "account", "qos", "name")


@dataclass(frozen=True, slots=True)
class Cluster:
    """One sandbox as others see it.

    Attributes:
        layout: where its files are. bin, sbin: folders of Slurm's commands and daemons.
        release: Slurm's version, such as "22.05.8".
        rootless: everything runs as one ordinary user: no slurmrestd, no token helper, no other users.
        ports: loopback ports. node_ports: port of each node's slurmd by node name.
        passwords: demo user to password, empty for a reader who may not know them.
        hub_user: the user that the hub runs as, an Operator of Slurm.
    """

    layout: Layout
    bin: Path
    sbin: Path
    release: str
    rootless: bool
    ports: Ports
    node_ports: dict[str, int]
    passwords: dict[str, str]
    hub_user: str
    name: str = CLUSTER

    @property
    def state(self) -> Path:
        return self.layout.state

    @property
    def slurm_conf(self) -> Path:
        return self.layout.slurm_conf

    @property
    def hub_slurm_conf(self) -> Path:
        """The copy for the hub's commands, which time out sooner on a controller that does not answer."""
        return self.layout.hub_slurm_conf

    @property
    def rest_socket(self) -> Path:
        return self.layout.rest_socket

    @property
    def users(self) -> tuple[str, ...]:
        """Names of the demo users."""
        return tuple(self.passwords)

    @property
    def token_argv(self) -> tuple[str, ...]:
        """The command line that prints a user's token; the user's name follows it."""
        return ("/usr/bin/sudo", "-n", str(self.layout.libexec / "carme-token"), "token")

    @property
    def tail_argv(self) -> tuple[str, ...]:
        """The command line that prints the end of a session's log; user and session follow it."""
        return ("/usr/bin/sudo", "-n", str(self.layout.libexec / "carme-token"), "tail")

    @property
    def folders_argv(self) -> tuple[str, ...]:
        """The command line of the program for shared folders; what it is to do follows it."""
        return ("/usr/bin/sudo", "-n", str(self.layout.libexec / "carme-folders"))

    @property
    def submit_helper(self) -> Path:
        """The helper of ``submit_via = "sudo"``; it runs as the user by ``sudo -n -u USER``."""
        return self.layout.libexec / "carme-submit"

    @property
    def jobs_helper(self) -> Path:
        """The helper that acts on jobs as their users, and reads their files."""
        return self.layout.libexec / "carme-jobs"

    @property
    def processes(self) -> Processes:
        """The register of started processes; the demo puts its hub and proxy there too."""
        return Processes(self.layout.processes)

    def command(self, name: str) -> str:
        """Return the absolute path of one of Slurm's commands."""
        return str((self.sbin if name in ("slurmctld", "slurmd", "slurmdbd", "slurmrestd") else self.bin) / name)

    def environment(self, user: str | None = None, *, hub: bool = False) -> dict[str, str]:
        """Return a minimal environment for a user's commands."""
        entry = pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())
        return {
            "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": entry.pw_dir,
            "USER": entry.pw_name,
            "LOGNAME": entry.pw_name,
            "SLURM_CONF": str(self.hub_slurm_conf if hub else self.slurm_conf),
        }

    # -- for tests -----------------------------------------------------------------------------------------------

    def run(
        self,
        *argv: str,
        user: str | None = None,
        input: str | None = None,
        check: bool = True,
        timeout: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a user; a first word without a slash is one of Slurm's commands.

        Raises:
            SandboxError: it failed, and ``check`` is true.
        """
        first = argv[0] if "/" in argv[0] else self.command(argv[0])
        environment = self.environment(user)
        with as_localhost():  # srun listens on a port, too
            done = subprocess.run(
                [first, *argv[1:]],
                env=environment,
                input=input if input is not None else "",
                capture_output=True,
                text=True,
                errors="surrogateescape",
                check=False,
                timeout=timeout,
                cwd=environment["HOME"] if Path(environment["HOME"]).is_dir() else "/",
                **identity(user),  # type: ignore[call-overload]
            )
        if check and done.returncode != 0:
            raise SandboxError(f"{' '.join(argv[:3])}: {done.stderr.strip() or done.stdout.strip() or done.returncode}")
        return done

    def squeue(self, *options: str) -> list[dict[str, str]]:
        """Return the queue as dicts with id, name, user, state, reason, nodes, account and qos."""
        separator = secrets.token_hex(4)  # a job's name may contain any fixed separator
        row_format = f"{separator}%A|%u|%T|%r|%N|%a|%q|%j"
        text = self.run("squeue", "-h", "-a", "-t", "all", "-o", row_format, *options).stdout
        rows = [row.removesuffix("\n").split("|", len(_FIELDS) - 1) for row in text.split(separator)[1:]]
        return [dict(zip(_FIELDS, row, strict=True)) for row in rows]

    def job_state(self, job: int | str) -> str:
        """Return a job's state as squeue shows it, or "" for a job that the controller does not know."""
        return next((row["state"] for row in self.squeue() if row["id"] == str(job)), "")

    def wait_for(self, what: Callable[[], object], *, within: float = 20.0, every: float = 0.1) -> None:
        """Wait until a condition is true."""
        end = time.monotonic() + within
        while not what():
            if time.monotonic() > end:
                raise SandboxError(f"Not so within {within:.0f} s: {getattr(what, '__name__', what)}")
            time.sleep(every)

    def wait_job(self, job: int | str, *states: str, within: float = 20.0) -> str:
        """Wait until a job is in one of the states, and return it."""
        self.wait_for(lambda: self.job_state(job) in states, within=within)
        return self.job_state(job)

    def sbatch(self, *options: str, user: str | None, script: str) -> int:
        """Submit a batch script, and return the job id."""
        done = self.run("sbatch", "--parsable", "-o", "/dev/null", *options, user=user, input=script)
        return int(done.stdout.strip().split(";")[0])

    def token(self, user: str) -> str:
        """Return a new token of a user, from the helper that the hub uses."""
        return self.run(str(self.layout.libexec / "carme-token"), "token", user).stdout.strip()

    def cancel_all(self) -> None:
        """Cancel every job, and wait until none is left, between two tests."""
        alive = [row["id"] for row in self.squeue("-t", "PD,R,S,CG,CF")]
        if alive:
            self.run("scancel", *alive, check=False)
            self.wait_for(lambda: not self.squeue("-t", "PD,R,S,CG,CF"), within=40)

    def kill(self, daemon: str, signal: int = signals.SIGKILL) -> None:
        """Send a signal to a daemon (munged, mariadbd, slurmdbd, slurmctld, slurmrestd, slurmd-node1, …)."""
        self.processes.signal(daemon, signal)
        if signal == signals.SIGKILL:
            self.wait_for(lambda: not self.processes.alive(daemon), within=5, every=0.01)

    def freeze(self, daemon: str) -> None:
        """Stop a daemon with SIGSTOP, without ending it: connections to it hang."""
        self.processes.signal(daemon, signals.SIGSTOP)

    def thaw(self, daemon: str) -> None:
        """Let a frozen daemon continue."""
        self.processes.signal(daemon, signals.SIGCONT)


def as_document(layout: Layout, *, prefix: Path, release: str, nodes: int, ports: Ports, rootless: bool) -> str:
    """Return the text of ``sandbox.json``, from which ``Sandbox.facts`` reads a sandbox again."""
    document = {
        "prefix": str(prefix),
        "release": release,
        "nodes": nodes,
        "rootless": rootless,
        "ports": {
            "controller": ports.controller,
            "dbd": ports.dbd,
            "database": ports.database,
            "first_node": ports.first_node,
        },
        "state": str(layout.state),
    }
    return json.dumps(document, indent=1) + "\n"


def passwords_in(layout: Layout) -> dict[str, str]:
    """Return the demo users' passwords, or nothing when the reader may not know them."""
    try:
        found: dict[str, str] = json.loads(layout.passwords.read_text())
    except (FileNotFoundError, PermissionError):
        return {}
    return found
