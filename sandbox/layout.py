"""The paths of a sandbox: all below one state folder, except system users and a sudoers file."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from carme_hub.errors import SandboxError

# Paths are written to slurm.conf, sudoers and socket addresses, each of which quotes differently.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./-]+")
_LONGEST = 72  # a unix socket's path has at most 107 characters

SYSTEM_STATE = Path("/var/lib/carme-hub-sandbox")


def default_state() -> Path:
    """Return the default state folder of this user."""
    if os.geteuid() == 0:
        return SYSTEM_STATE
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return Path(base) / "carme-hub/sandbox"


@dataclass(frozen=True, slots=True)
class Layout:
    """The names of the files and folders of one sandbox."""

    state: Path

    @classmethod
    def at(cls, state: Path) -> Layout:
        """Return the layout for a state folder; raise ``SandboxError`` where such a path cannot be used."""
        path = Path(os.path.abspath(state))  # noqa: PTH100 - resolve() would follow links
        if not _PLAIN_PATH.fullmatch(str(path)) or ".." in path.parts:
            raise SandboxError(f"The state folder {path} may contain only letters, digits, and the characters _ . -")
        if len(str(path)) > _LONGEST:
            raise SandboxError(f"The state folder {path} is too long for unix sockets: at most {_LONGEST} characters")
        if path.parent == Path("/"):
            raise SandboxError(f"The state folder {path} must not be at the top of the file system")
        return cls(path)

    def command(self, verb: str, program: str = "carme-hub") -> str:
        """Return a shell command for this sandbox; it names the state folder where that is not the default."""
        named = [] if self.state == default_state() else ["--state", str(self.state)]
        return shlex.join([program, "sandbox", verb, *named])

    @property
    def mark(self) -> str:
        """A short name of this sandbox, different for every state folder."""
        return sha256(str(self.state).encode()).hexdigest()[:10]

    @property
    def etc(self) -> Path:
        return self.state / "etc"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def hub_slurm_conf(self) -> Path:
        return self.etc / "hub/slurm.conf"

    @property
    def jwt_key(self) -> Path:
        return self.etc / "jwt_hs256.key"

    @property
    def log(self) -> Path:
        return self.state / "log"

    @property
    def run(self) -> Path:
        return self.state / "run"

    @property
    def spool(self) -> Path:
        return self.state / "spool"

    @property
    def node_tmp(self) -> Path:
        """Return the parent of the nodes' temporary folders: PMIx names files there by user, job and step."""
        return self.state / "tmp"

    @property
    def dev(self) -> Path:
        return self.state / "dev"

    @property
    def libexec(self) -> Path:
        return self.state / "libexec"

    @property
    def folders(self) -> Path:
        """The root of shared folders."""
        return self.state / "folders"

    @property
    def node_programs(self) -> Path:
        """What Slurm's Prolog and Epilog call: those of a site's nodes."""
        return self.state / "node"

    @property
    def scratch(self) -> Path:
        """Scratch folders of sessions; the virtual nodes share it."""
        return self.state / "scratch"

    @property
    def database(self) -> Path:
        return self.state / "db"

    @property
    def munge(self) -> Path:
        """Key, seed and lock of munged; private to it."""
        return self.state / "munge"

    @property
    def munge_socket(self) -> Path:
        return self.state / "run-munge/munge.sock"

    @property
    def rest_socket(self) -> Path:
        return self.state / "run-rest/slurmrestd.sock"

    @property
    def processes(self) -> Path:
        return self.state / "processes"

    @property
    def passwords(self) -> Path:
        return self.state / "passwords.json"

    @property
    def facts(self) -> Path:
        """The file with this sandbox's release, nodes and ports."""
        return self.state / "sandbox.json"

    @property
    def lock(self) -> Path:
        return self.state / "lock"

    @property
    def sudoers(self) -> Path:
        return Path("/etc/sudoers.d") / f"carme-hub-sandbox-{self.mark}"
