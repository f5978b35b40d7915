"""A site's image store: a folder that only its owner (root) can write, with one hardened folder per image.

An unprivileged account unpacks and compiles foreign files in a folder that nobody else can enter; only a hardened tree
is renamed to its final name. Archives are never mounted, so that the kernel never parses a foreign file system.
``carme-hub image add`` calls this.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Container
from pathlib import Path
from typing import IO

from carme_hub.errors import ContainerError

from .harden import HardeningReport, add_mount_points, harden
from .images import write_image

SQUASHFS = (".sqfs", ".sqsh", ".squashfs")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst")
#: The account that unpacks and compiles if we run as root.
UNPACKER = "nobody"
#: Compiles .pyc files, which cannot be written to a read-only root; without them a server starts two seconds later.
COMPILE = (
    "import compileall, sys\n"
    "for folder in ['/opt', '/usr/local/lib', *filter(None, sys.path)]:\n"
    "    compileall.compile_dir(folder, quiet=2, workers=0)\n"
)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def add_image(
    source: Path, store: Path, name: str, description: str = "", progress: Callable[[str], None] = lambda _: None
) -> Path:
    """Add an image to a store and return its folder.

    Args:
        source: a folder, a tar archive (as ``podman export`` writes it) or a squashfs file with a whole system.

    Raises:
        ContainerError: the source cannot be used, has links that lead out of it, or the name is taken.
    """
    if not _NAME.fullmatch(name):
        raise ContainerError(f"{name!r} is not a valid image name: use lower-case letters, digits and . _ -")
    _check_store(store)
    image = store / name
    if image.exists():
        raise ContainerError(f"{image} exists already; choose another name, or remove it when no session uses it")
    work_folder = store / f".adding-{name}"
    shutil.rmtree(work_folder, ignore_errors=True)
    work_folder.mkdir(mode=0o700)
    try:
        tree = work_folder / "tree"
        tree.mkdir()
        _chown_to_unpacker(work_folder, tree)
        progress(f"Unpacking {source}")
        _unpack(source, tree)
        if not (tree / "usr").is_dir() and not (tree / "bin").exists():
            raise ContainerError(f"{source} contains no system: it has neither /usr nor /bin")
        add_mount_points(tree)
        progress("Compiling Python files")
        compile_python(tree)
        report: HardeningReport = harden(tree, owner=os.geteuid())
        progress(f"Hardened: {report}")
        write_image(tree, name=name, description=description, base="own", more={"hardened": dict(report.counts)})
        tree.rename(image)
    finally:
        shutil.rmtree(work_folder, ignore_errors=True)
    return image


def _check_store(store: Path) -> None:
    """Refuse a store that others can write, or that does not belong to this user."""
    try:
        state = store.stat()
    except OSError as error:
        raise ContainerError(f"the store {store} cannot be used: {error.strerror}") from error
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise ContainerError(f"the store {store} must be a folder that you own and nobody else can write")


def _unpacker() -> str | None:
    return UNPACKER if os.geteuid() == 0 else None


def _chown_to_unpacker(*folders: Path) -> None:
    """Give these folders to the unprivileged account, if we run as root."""
    user = _unpacker()
    if user is not None:
        entry = pwd.getpwnam(user)
        for folder in folders:
            os.chown(folder, entry.pw_uid, entry.pw_gid)


def _unpack(source: Path, tree: Path) -> None:
    """Fill the tree from the source."""
    user = _unpacker()
    if source.is_dir():
        _run(["cp", "--archive", "--no-target-directory", "--", str(source), str(tree)])
        if user is not None:
            _run(["chown", "--recursive", "--no-dereference", user, str(tree)])
        return
    if not source.is_file():
        raise ContainerError(f"{source} is neither a folder nor a file")
    if source.name.endswith(SQUASHFS):
        copy = tree.with_name("archive")  # the unprivileged account may not have access to the source
        shutil.copyfile(source, copy)
        _chown_to_unpacker(copy)
        argv = ["unsquashfs", "-quiet", "-no-progress", "-no-xattrs", "-force", "-dest", str(tree), str(copy)]
        # 2: unsquashfs skipped something that only root can create, such as a device node, as intended.
        _run(argv, user=user, allowed_codes=(0, 2))
    elif source.name.endswith(ARCHIVES):
        compression = {".gz": "--gzip", ".tgz": "--gzip", ".xz": "--xz", ".bz2": "--bzip2", ".zst": "--zstd"}
        argv = ["tar", "--extract", "--file=-", f"--directory={tree}", "--no-same-owner", "--exclude=dev/*"]
        argv += [compression[source.suffix]] if source.suffix in compression else []
        with source.open("rb") as file:
            _run([*argv, "--no-same-permissions", "--delay-directory-restore"], user=user, stdin=file)
    else:
        raise ContainerError(f"{source} must be a folder, or end in one of {', '.join((*ARCHIVES, *SQUASHFS))}")


def compile_python(tree: Path) -> None:
    """Byte-compile inside the image with its own Python, as an unprivileged account, without a network."""
    argv = ["bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--bind", str(tree), "/"]
    argv += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--setenv", "PATH"]  # noqa: S108
    argv += ["/opt/venv/bin:/opt/conda/bin:/usr/local/bin:/usr/bin:/bin", "--", "python3", "-c", COMPILE]
    # Ignore failures: some packages contain files that are not meant to be compiled, and some images have no Python.
    _run(argv, user=_unpacker(), allowed_codes=range(256))


def _run(
    argv: list[str], *, user: str | None = None, allowed_codes: Container[int] = (0,), stdin: IO[bytes] | None = None
) -> None:
    """Run one step, as another account if one is named."""
    group = pwd.getpwnam(user).pw_gid if user else None
    try:
        done = subprocess.run(
            argv,
            user=user,
            group=group,
            extra_groups=[] if user else None,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"},
            stdin=stdin or subprocess.DEVNULL,
            umask=0o022,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise ContainerError(f"{argv[0]} cannot be run: {error.strerror}") from error
    if done.returncode not in allowed_codes:
        output = " ".join((done.stderr or done.stdout).split())[-400:]
        raise ContainerError(f"{argv[0]} ended with {done.returncode}: {output}")
