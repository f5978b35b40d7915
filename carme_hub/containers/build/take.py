"""Take what a user's job has built: read as the user, in one stream, into a file that nobody else can change.

The program that reads is the user's, and so is all that it writes: whatever stands in the user's folder, it leads to
nothing that the user could not read. What the stream contains is looked at by ``publish`` alone. The user can also stop
that program, or slow it down: it is ended then, so that nobody else waits for it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import selectors
import signal
import subprocess
import time
from pathlib import Path
from typing import IO

from carme_hub.containers.store.bounds import Bounds
from carme_hub.errors import ContainerError, ContainerUnavailable

#: Names of builds are ids of jobs, and become part of a path.
ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: The same content gives the same bytes, and so the same digest.
_TAR = (
    *("tar", "--create", "--file=-", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"),
    *("--format=pax", "--pax-option=delete=atime,delete=ctime", "--exclude=__pycache__"),
)
#: Seconds after which a program that writes nothing, or does not end, is ended.
_SILENT = 120.0
#: Seconds for all of it, and bytes per second that must come beyond them.
_GRACE, _LEAST = 300.0, 8 << 20
#: Seconds for the end of a program that was killed: one that waits for a file server ends when that answers.
_DYING = 10.0


def home_of(user: str) -> str:
    """Return the home of a user.

    Raises:
        ContainerUnavailable: nobody says that there is such a user.
    """
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError as error:
        raise ContainerUnavailable(f"this machine knows no user {user}") from error


def take(user: str, id: str, to: Path, bounds: Bounds) -> None:
    """Write the files of a user's build to a tar archive.

    Raises:
        ContainerError: the user cannot have builds, or this one is larger than it may be. ContainerUnavailable: the
            user or the files cannot be read now, or too slowly.
    """
    if not ID.fullmatch(id):
        raise ContainerError(f"{id!r} is not the id of a build")
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        # The same answer as from a directory that is silent.
        raise ContainerUnavailable(f"this machine knows no user {user}, or its directory does not answer") from error
    if entry.pw_uid == 0:
        raise ContainerError("nothing is taken from root")
    root = os.geteuid() == 0
    if not root and entry.pw_uid != os.geteuid():  # a link in that home would be followed as ourselves
        raise ContainerUnavailable(f"only root can read the files of {user} as {user}")
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
            raise ContainerUnavailable(f"tar cannot be run: {error.strerror}") from error
        try:
            said = _copy(process, file, user, bounds)
            process.wait(min(_SILENT, bounds.left()))
        except subprocess.TimeoutExpired:
            raise ContainerUnavailable(f"tar, which reads the files of the build as {user}, does not end") from None
        finally:
            _end(process)
    if process.returncode:
        why = " ".join("".join(each for each in said if each.isprintable() or each == "\n").split())
        raise ContainerUnavailable(f"the files of the build cannot be read as {user}: {why[-200:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program, also one that its user has stopped, and close its pipes."""
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_DYING)


def _copy(process: subprocess.Popen[bytes], to: IO[bytes], user: str, bounds: Bounds) -> str:
    """Copy what a program writes, within the bounds, and return the beginning of its messages."""
    size, said = 0, b""
    began = last = time.monotonic()
    with selectors.DefaultSelector() as ready:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                ready.register(pipe, selectors.EVENT_READ)
        while ready.get_map():
            now = time.monotonic()
            if now - last > _SILENT:
                raise ContainerUnavailable(
                    f"reading the files of the build as {user} stands still: nothing has come for {_SILENT:.0f} s"
                )
            if now - began > _GRACE + size / _LEAST:
                raise ContainerUnavailable(
                    f"reading the files of the build as {user} is too slow: {size >> 20} MiB in {now - began:.0f} s"
                )
            for key, _ in ready.select(min(1.0, bounds.left())):
                last = time.monotonic()
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
