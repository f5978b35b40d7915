"""Harden an image tree before it is used, for users of the image and for users who access the store by its path.

A setuid file in a folder that users can read gives root on the node, whatever the container runtime does (measured); a
device node can be opened under several runtimes. So there is no setuid, no setgid, no file capability, no device, no
pipe, no socket, everything belongs to root and only root may write it, and no name leads out of the image. An absolute
link is harmless inside, but a runtime that binds the image folder by folder follows it from outside: one whose target
is in the image is made relative, one at the top of the tree without a target in it is refused. A relative link that
goes up after it went down (``a/../b``) may lead out where ``a`` is a link itself, so it is followed to its end.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from carme_hub.domain.wording import escaped
from carme_hub.errors import ContainerError

#: Mount points of runtimes, created in images without them, since a read-only root cannot get them later.
MOUNT_FOLDERS = ("dev", "home", "layer", "mnt", "proc", "project", "run", "scratch", "sys", "tmp", "var/tmp", "data")
MOUNT_FILES = ("etc/group", "etc/hosts", "etc/passwd", "etc/resolv.conf")
MAX_EXAMPLES = 20


@dataclass(slots=True)
class HardeningReport:
    """What was found and changed: the count of each finding, and its first paths."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, finding: str, path: str) -> None:
        """Record one finding."""
        self.counts[finding] += 1
        if self.counts[finding] <= MAX_EXAMPLES:
            self.examples.setdefault(finding, []).append(path)

    def __str__(self) -> str:
        if not self.counts:
            return "nothing to change"
        return ", ".join(f"{count} {finding}" for finding, count in sorted(self.counts.items()))


def harden(tree: Path, *, owner: int = 0) -> HardeningReport:
    """Harden an image tree in place, and return what was changed.

    Args:
        tree: the image's root folder, which nobody else may access meanwhile: build it outside, then rename it.
        owner: the uid that owns everything afterwards; root, except in tests.

    Raises:
        ContainerError: a name leads out of the image.
    """
    if tree.is_symlink() or not tree.is_dir():
        raise ContainerError(f"{tree} is not a folder")
    report = HardeningReport()
    escapes: list[str] = []
    turning: list[PurePosixPath] = []
    # Bottom up: a folder becomes read-only after its contents.
    for folder, folders, files, fd in os.fwalk(tree, topdown=False, follow_symlinks=False):
        inside = PurePosixPath("/", Path(folder).relative_to(tree).as_posix())
        for name in (*files, *folders):
            _harden_entry(fd, name, inside / name, tree, owner, report, escapes)
            if _turns(fd, name):
                turning.append(inside / name)
    root = os.path.realpath(tree)
    # The runtime follows the links at the top from outside, through any number of links.
    for path in (*(PurePosixPath("/", name) for name in sorted(os.listdir(tree))), *turning):  # noqa: PTH208
        found = os.path.realpath(f"{root}{path}")
        if found != root and not found.startswith(f"{root}/"):
            escapes.append(f"{path} -> {found}")
    if escapes:
        named = escaped(", ".join(escapes[:MAX_EXAMPLES]))
        raise ContainerError(f"these names lead out of the image: {named}")
    os.lchown(tree, owner, owner)
    tree.chmod(0o755)
    return report


def _harden_entry(
    fd: int, name: str, path: PurePosixPath, tree: Path, owner: int, report: HardeningReport, escapes: list[str]
) -> None:
    """Harden one entry of an opened folder."""
    state = os.lstat(name, dir_fd=fd)
    kind = stat.S_IFMT(state.st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
        os.unlink(name, dir_fd=fd)
        report.add("device, pipe or socket removed", str(path))
        return
    if kind == stat.S_IFLNK:
        _harden_link(fd, name, path, tree, report, escapes)
    if (state.st_uid, state.st_gid) != (owner, owner):
        os.chown(name, owner, owner, dir_fd=fd, follow_symlinks=False)
        report.add("owner changed", str(path))
    if kind == stat.S_IFLNK:
        return
    mode = stat.S_IMODE(state.st_mode)
    if mode & (stat.S_ISUID | stat.S_ISGID):
        report.add("setuid or setgid taken away", str(path))
    if mode & 0o022:
        report.add("write permission taken away", str(path))
    os.chmod(name, mode & 0o755, dir_fd=fd)
    if kind == stat.S_IFREG:
        _strip_attributes(fd, name, path, report)


def _strip_attributes(fd: int, name: str, path: PurePosixPath, report: HardeningReport) -> None:
    """Remove file capabilities and every other extended attribute."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=fd)
    try:
        for attribute in os.listxattr(file):
            os.removexattr(file, attribute)
            report.add("capability or attribute taken away", str(path))
    finally:
        os.close(file)


def _harden_link(
    fd: int, name: str, path: PurePosixPath, tree: Path, report: HardeningReport, escapes: list[str]
) -> None:
    """Make an absolute link relative; record one that leads out, or has no target at the top of the tree."""
    target = os.readlink(name, dir_fd=fd)
    if target.startswith("/"):
        if path.parent == PurePosixPath("/") and not os.path.lexists(tree / target.lstrip("/")):
            escapes.append(f"{path} -> {target}")
            return
        new = os.path.relpath(target, path.parent)
        os.unlink(name, dir_fd=fd)
        os.symlink(new, name, dir_fd=fd)
        report.add("absolute link made relative", str(path))
        return
    if os.path.normpath(f"./{path.parent}/{target}").startswith(".."):
        escapes.append(f"{path} -> {target}")


def _turns(fd: int, name: str) -> bool:
    """Return whether an entry is a link that goes up after it went down."""
    try:
        parts = os.readlink(name, dir_fd=fd).split("/")
    except OSError:
        return False  # no link, or removed
    named = [part for part in parts if part not in ("", ".")]
    return any(part == ".." and before != ".." for before, part in itertools.pairwise(named))


def add_mount_points(tree: Path) -> None:
    """Create missing mount points of runtimes; refuse links in their place."""
    for name in MOUNT_FOLDERS:
        _refuse_links(tree, name)
        try:
            (tree / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ContainerError(f"/{name} of the image is not a folder") from error
    for name in MOUNT_FILES:
        _refuse_links(tree, "etc")
        file = tree / name
        if file.is_symlink():
            file.unlink()  # /etc/resolv.conf often leads to a file of the system it was made on
        try:
            file.parent.mkdir(exist_ok=True)
            file.touch()
        except OSError as error:
            raise ContainerError("/etc of the image is not a folder") from error
        if not file.is_file():
            raise ContainerError(f"/{name} of the image is not a file")


def _refuse_links(tree: Path, name: str) -> None:
    for part in (*PurePosixPath(name).parents, PurePosixPath(name)):
        if part.name and (tree / part).is_symlink():
            raise ContainerError(f"/{part} of the image is a link; a bind there would go elsewhere")
