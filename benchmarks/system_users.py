"""System users of one benchmark run: created in bulk, added to Slurm, and removed at the end."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from hubs import log_progress

from carme_hub.sandbox import Cluster
from carme_hub.sandbox.people import USERS_GROUP

FIRST_UID = 31000
MARK = "Carme Hub benchmark"
ACCOUNT = "physics"


@contextlib.contextmanager
def system_users(cluster: Cluster, count: int) -> Iterator[list[str]]:
    """Create so many users who may have sessions, with homes below the sandbox's state folder."""
    names = [f"bench{number:03}" for number in range(1, count + 1)]
    homes = cluster.state / "homes"
    homes.mkdir(exist_ok=True)
    remove(names)  # of a run that was cut off
    log_progress(f"Making {count} system users")
    lines = [f"{name}:!:{FIRST_UID + n}:{USERS_GROUP}:{MARK}:{homes / name}:/bin/sh" for n, name in enumerate(names)]
    subprocess.run(["newusers"], input="\n".join(lines) + "\n", text=True, check=True, capture_output=True)
    try:
        for name in names:
            (homes / name).mkdir(mode=0o700, exist_ok=True)
            entry = pwd.getpwnam(name)
            os.chown(homes / name, entry.pw_uid, entry.pw_gid)
        everybody = f"name={','.join(names)}"
        # Deleted and added again, so that slurmctld looks up their new uids.
        cluster.run("sacctmgr", "-i", "-Q", "delete", "user", everybody, check=False)
        cluster.run("sacctmgr", "-i", "-Q", "add", "user", everybody, f"account={ACCOUNT}")
        yield names
    finally:
        log_progress("Removing the system users")
        remove(names)


def remove(names: list[str]) -> None:
    """Remove existing users with our mark, and kill their processes."""
    for name in names:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_gecos != MARK:
            raise SystemExit(f"A user {name} exists who is not of a benchmark")
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit() and process.stat().st_uid == entry.pw_uid:
                    os.kill(int(process.name), signal.SIGKILL)
        subprocess.run(["userdel", "--force", name], check=False, capture_output=True)
