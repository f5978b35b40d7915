"""The root privilege of the hub: what its root-owned helpers do, granted by one sudoers file.

The file is in /etc/sudoers.d only while the sandbox is up; visudo checks it before it is installed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from carme_hub.errors import SandboxError
from carme_hub.paths import share_folder
from carme_hub.sandbox.layout import Layout
from carme_hub.sandbox.people import HUB_USER, USERS_GROUP
from carme_hub.sandbox.slurm.cluster import Cluster
from carme_hub.spawners.staging.programs import write_programs

TOKEN_LIFESPAN = 300

_SUDOERS = """\
# Made by `carme-hub sandbox up` for {state}; `carme-hub sandbox down` removes it.
Defaults:{hub} !requiretty
{hub} ALL=(root) NOPASSWD: {libexec}/carme-token token *, {libexec}/carme-token tail * *
{hub} ALL=(root) NOPASSWD: {libexec}/carme-folders
{hub} ALL=(%{group}) NOPASSWD: {libexec}/carme-submit "", {libexec}/carme-jobs ""
"""


def install_helpers(cluster: Cluster) -> None:
    """Put the root-owned helpers and their settings into the state folder."""
    layout = cluster.layout
    layout.libexec.mkdir(exist_ok=True)
    of_folders = ("carme-folders", "carme-folders-acls", "carme-folders-tree")
    for name in ("carme-token", "carme-submit", "carme-jobs", *of_folders):
        target = layout.libexec / name
        new = target.with_suffix(".new")
        shutil.copyfile(share_folder() / "libexec" / name, new)
        new.chmod(0o755)
        new.rename(target)
    token = {"jwt_key": str(layout.jwt_key), "group": USERS_GROUP, "lifespan": TOKEN_LIFESPAN}
    submit = {"sbatch": cluster.command("sbatch"), "slurm_conf": str(layout.hub_slurm_conf), "group": USERS_GROUP}
    layout.folders.mkdir(mode=0o755, exist_ok=True)
    layout.folders.chmod(0o755)
    folders = {"group": USERS_GROUP, "roots": {"projects": str(layout.folders)}}
    write_programs(layout.node_programs)
    staging = {
        "root": str(layout.scratch),
        "state": str(layout.state / "scratch-list"),
        "max_gib": 20,
        "retry_seconds": 2,
    }
    documents = (
        ("carme-token", token),
        ("carme-submit", submit),
        ("carme-folders", folders),
        ("carme-stage-out", staging),
    )
    for name, document in documents:
        (layout.etc / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
        (layout.etc / f"{name}.json").chmod(0o644)


def install_sudoers(layout: Layout) -> None:
    """Allow the hub's user to run the helpers, after visudo has accepted the lines."""
    text = _SUDOERS.format(state=layout.state, hub=HUB_USER, libexec=layout.libexec, group=USERS_GROUP)
    if not layout.sudoers.parent.is_dir():
        raise SandboxError("sudo is not installed: the hub needs it to get tokens")
    candidate = layout.etc / "sudoers"
    with os.fdopen(os.open(candidate, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o440), "w") as file:
        file.write(text)
    done = subprocess.run(["/usr/sbin/visudo", "-cf", str(candidate)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SandboxError(f"visudo refuses the sandbox's sudoers lines: {done.stdout}{done.stderr}")
    # sudo ignores names with a dot, so a partly written file never takes effect.
    new = layout.sudoers.with_name(f"{layout.sudoers.name}.new")
    shutil.copyfile(candidate, new)
    new.chmod(0o440)
    new.rename(layout.sudoers)


def remove_sudoers(layout: Layout) -> bool:
    """Remove the sudoers file; return whether there was one."""
    try:
        layout.sudoers.unlink()
    except FileNotFoundError:
        return False
    except PermissionError as error:
        raise SandboxError(f"Only root can remove {layout.sudoers}") from error
    return True


def check_parents(state: Path) -> None:
    """Refuse a state folder that users could not reach, or that somebody but root could replace."""
    for parent in state.parents:
        if not parent.exists():
            continue
        status = parent.stat()
        if not status.st_mode & 0o001:
            raise SandboxError(f"Users cannot pass through {parent}: choose another --state, such as the default")
        if status.st_uid != 0 or (status.st_mode & 0o022 and not status.st_mode & 0o1000):
            raise SandboxError(f"{parent} can be changed by others than root: choose another --state")
