"""Share files between images with a common layer: one inode for each, so that disk and page cache hold them once.

Only hardened trees share, which nobody changes any more. A file is shared where path, mode, content and, but for .pyc
files, the time of its last change are the same: Python compares that time with the one in the .pyc.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from .recipe import about

_BUFFER = 1 << 20


@dataclass(slots=True)
class Shared:
    """How many files are shared, and their bytes."""

    files: int = 0
    size: int = 0


def share_files(tree: Path, layers: Collection[str], others: Iterable[Path]) -> Shared:
    """Replace files of a tree by links to the same ones of other images that have one of its layers."""
    shared = Shared()
    related = [other for other in others if set(layers) & set(about(other).get("layers", ()))]
    for other in sorted(related, key=lambda each: -len(set(layers) & set(about(each).get("layers", ())))):
        for folder, folders, files, fd in os.fwalk(tree, follow_symlinks=False):
            inside = os.path.relpath(folder, tree)
            there = _open_below(other, inside)
            if there is None:
                folders.clear()
                continue
            try:
                for name in files:
                    _share(fd, there, name, shared)
            finally:
                os.close(there)
    return shared


def _open_below(image: Path, inside: str) -> int | None:
    """Return the descriptor of a folder of an image; None where there is none. Hardened, it leads nowhere else."""
    with contextlib.suppress(OSError):
        return os.open(image / inside, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    return None


def _share(fd: int, there: int, name: str, shared: Shared) -> None:
    with contextlib.suppress(FileNotFoundError):
        ours, theirs = (os.stat(name, dir_fd=each, follow_symlinks=False) for each in (fd, there))
        if not (stat.S_ISREG(ours.st_mode) and ours.st_mode == theirs.st_mode and ours.st_size == theirs.st_size):
            return
        same = (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino) or ours.st_dev != theirs.st_dev
        if same or ours.st_nlink > 1 or not ours.st_size or ours.st_uid != theirs.st_uid:
            return
        if ours.st_mtime_ns // 10**9 != theirs.st_mtime_ns // 10**9 and not name.endswith(".pyc"):
            return
        if not _same_content(fd, there, name):
            return
        new = f".sharing-{os.getpid()}"
        try:
            os.link(name, new, src_dir_fd=there, dst_dir_fd=fd, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.EMLINK, errno.EPERM, errno.ENOTSUP):
                return  # so many links are not possible here
            raise
        os.rename(new, name, src_dir_fd=fd, dst_dir_fd=fd)
        shared.files += 1
        shared.size += ours.st_size


def _same_content(fd: int, there: int, name: str) -> bool:
    opened = [os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=each) for each in (fd, there)]
    with os.fdopen(opened[0], "rb") as ours, os.fdopen(opened[1], "rb") as theirs:
        while block := ours.read(_BUFFER):
            if block != theirs.read(_BUFFER):
                return False
    return True
