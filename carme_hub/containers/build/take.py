"""Take what a user's job has built: read as the user, in one stream, into a file that nobody else can change.

The program that reads is the user's, and so is all that it writes: whatever stands in the user's folder, it leads to
nothing that the user could not read. What the stream contains is looked at by ``publish`` alone.
"""

from __future__ import annotations

import os
import pwd
import re
import selectors
import signal
import subprocess
from pathlib import Path
from typing import IO

from carme_hub.containers.store.bounds import Bounds
from carme_hub.errors import ContainerError

#: Names of builds are ids of jobs, and become part of a path.
ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: The same content gives the same bytes, and so the same digest.
_TAR = (
    *("tar", "--create", "--file=-", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"),
    *("--format=pax", "--pax-option=delete=atime,delete=ctime", "--exclude=__pycache__"),
)


def home_of(user: str) -> str:
    """Return the home of a user.

    Raises:
        ContainerError: there is no such user.
    """
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError as error:
        raise ContainerError(f"this machine knows no user {user}") from error


def take(user: str, id: str, to: Path, bounds: Bounds) -> None:
    """Write the files of a user's build to a tar archive.

    Raises:
        ContainerError: there is no such user or build, or it is larger than it may be.
    """
    if not ID.fullmatch(id):
        raise ContainerError(f"{id!r} is not the id of a build")
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise ContainerError(f"this machine knows no user {user}") from error
    if entry.pw_uid == 0:
        raise ContainerError("nothing is taken from root")
    root = os.geteuid() == 0
    with to.open("xb") as file:
        try:
            process = subprocess.Popen(
                [*_TAR, "--directory", f"{entry.pw_dir}/.carme/images/{id}", "."],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
                start_new_session=True,
                user=entry.pw_uid if root else None,
                group=entry.pw_gid if root else None,
                extra_groups=[] if root else None,
            )
        except OSError as error:
            raise ContainerError(f"tar cannot be run: {error.strerror}") from error
        with process:
            try:
                said = _copy(process, file, user, bounds)
            except ContainerError:
                os.killpg(process.pid, signal.SIGKILL)  # also one that its user has stopped
                raise
    if process.returncode:
        why = " ".join("".join(each for each in said if each.isprintable() or each == "\n").split())
        raise ContainerError(f"the files of the build cannot be read as {user}: {why[-200:]}")


def _copy(process: subprocess.Popen[bytes], to: IO[bytes], user: str, bounds: Bounds) -> str:
    """Copy what a program writes, within the bounds, and return the beginning of its messages."""
    size, said = 0, b""
    with selectors.DefaultSelector() as ready:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                ready.register(pipe, selectors.EVENT_READ)
        while ready.get_map():
            for key, _ in ready.select(min(1.0, bounds.left())):
                block = os.read(key.fd, 1 << 20)
                if not block:
                    ready.unregister(key.fileobj)
                elif key.fileobj is process.stdout:
                    size += len(block)
                    bounds.check_size(size, f"the image of {user}")
                    to.write(block)
                else:
                    said = (said + block)[:4000]
    return said.decode("utf-8", "replace")
