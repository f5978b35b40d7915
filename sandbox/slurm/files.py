"""Write the folders and files of a sandbox, each with the owner and mode that its reader requires."""

from __future__ import annotations

import grp
import json
import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from carme_hub.errors import SandboxError
from carme_hub.paths import share_folder
from carme_hub.sandbox.layout import Layout
from carme_hub.sandbox.people import HUB_USER
from carme_hub.sandbox.slurm.daemons import Identities
from carme_hub.sandbox.slurm.settings import Settings

_DEFAULT_GPU = "a100"


class Writer:
    """The writer of the files that the daemons of one sandbox read."""

    def __init__(self, layout: Layout, who: Identities) -> None:
        self.layout = layout
        self.who = who

    def folders(self, nodes: Iterable[str]) -> None:
        """Create the folders: accessible to all where users need sockets or settings, private otherwise.

        Args:
            nodes: their names.
        """
        layout, who = self.layout, self.who
        folders: list[tuple[Path, str | None, int]] = [
            (layout.state, None, 0o755),
            (layout.etc, None, 0o755),
            (layout.etc / "hub", None, 0o755),
            (layout.log, None, 0o755),
            (layout.spool, None, 0o755),
            (layout.node_tmp, None, 0o755),
            *((layout.node_tmp / name, None, 0o755) for name in nodes),
            (layout.dev, None, 0o755),
            (layout.processes, None, 0o755),
            (layout.run, who.slurm, 0o755),
            (layout.state / "state", who.slurm, 0o700),
            (layout.munge, who.munge, 0o700),
            (layout.munge_socket.parent, who.munge, 0o755),
            (layout.database.with_name("db-tmp"), who.database, 0o700),
        ]
        for path, owner, mode in folders:
            path.mkdir(exist_ok=True)
            _own(path, owner)
            path.chmod(mode)
        if who.rest is not None:
            folder = layout.rest_socket.parent
            folder.mkdir(exist_ok=True)
            os.chown(folder, pwd.getpwnam(who.rest).pw_uid, grp.getgrnam(HUB_USER).gr_gid)
            folder.chmod(0o750)
        for name in ("slurmctld.log", "slurmdbd.log"):
            log = layout.log / name
            log.touch()
            _own(log, who.slurm)
            log.chmod(0o640)

    def passwords(self, passwords: dict[str, str]) -> None:
        """Store the demo users' passwords, readable by root only."""
        self.private(self.layout.passwords, json.dumps(passwords, indent=1) + "\n", None)

    def secret(self) -> str:
        """Return the password of the accounting database; it is generated once."""
        path = self.layout.etc / "database-secret"
        if not path.exists():
            self.private(path, secrets.token_hex(24), None)
        return path.read_text()

    def settings(self, settings: Settings, hub_message_timeout: int) -> None:
        """Write all settings files and keys."""
        layout, who = self.layout, self.who
        self.public(layout.slurm_conf, settings.slurm_conf())
        self.public(layout.hub_slurm_conf, settings.slurm_conf(message_timeout=hub_message_timeout))
        self.public(layout.etc / "gres.conf", settings.gres_conf())
        self.public(layout.etc / "mariadb.cnf", settings.database_conf())
        self.public(layout.etc / "job_submit.lua", job_submit(_DEFAULT_GPU))
        self.private(layout.etc / "slurmdbd.conf", settings.slurmdbd_conf(), who.slurm)
        self.private(layout.database.with_name("db-init.sql"), settings.database_init(), who.database)
        for path, owner in ((layout.jwt_key, who.slurm), (layout.munge / "munge.key", who.munge)):
            if not path.exists():
                self.private(path, secrets.token_bytes(128), owner)

    def database(self) -> None:
        """Create MariaDB's data folder where it is missing; replace an incomplete one of an interrupted attempt."""
        folder, done = self.layout.database, self.layout.state / "database-made"
        if done.exists() and folder.is_dir():
            return
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        _own(folder, self.who.database)
        folder.chmod(0o700)
        # A server that starts deletes another server's tables in a temporary folder that both share.
        argv = ["mariadb-install-db", "--no-defaults", f"--datadir={folder}", f"--tmpdir={folder}-tmp"]
        argv += ["--skip-test-db", "--skip-name-resolve"]
        if self.who.database is not None:
            argv += [f"--user={self.who.database}", "--auth-root-authentication-method=socket"]
        made = subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/")
        if made.returncode != 0:
            raise SandboxError(f"mariadb-install-db failed: {made.stderr.strip() or made.stdout.strip()}")
        done.touch()

    def public(self, path: Path, text: str) -> None:
        """Write a file that everybody may read; do nothing when its text is unchanged."""
        if path.exists() and path.read_text() == text:
            return
        new = path.with_name(f".{path.name}.new")
        new.write_text(text)
        new.chmod(0o644)
        new.rename(path)

    def private(self, path: Path, content: str | bytes, owner: str | None) -> None:
        """Write a file for one reader; it is never readable by others, not even while it is written."""
        new = path.with_name(f".{path.name}.new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        _own(new, owner)
        new.rename(path)


def job_submit(default_type: str | None) -> str:
    """Return the shipped job_submit.lua with the site's default GPU type set."""
    text = (share_folder() / "slurm/job_submit.lua").read_text()
    value = f'"{default_type}"' if default_type else "nil"
    return text.replace("local DEFAULT_GPU_TYPE = nil", f"local DEFAULT_GPU_TYPE = {value}", 1)


def _own(path: Path, owner: str | None) -> None:
    if owner is not None:
        entry = pwd.getpwnam(owner)
        shutil.chown(path, entry.pw_uid, entry.pw_gid)
