"""Fill a tree from a source without layers, or from layers of the store's blobs, and byte-compile its Python files.

All as the unprivileged account. A read-only root takes no .pyc files later, and each start would take two seconds more.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from carme_hub.containers.sif import find_squashfs
from carme_hub.errors import ContainerError

from .bounds import Bounds
from .folder import StoreFolder
from .listing import tree_digest
from .manifest import Manifest
from .process import Steps
from .skopeo import write_layout
from .source import Source

_COMPRESSION = {".gz": "--gzip", ".tgz": "--gzip", ".xz": "--xz", ".bz2": "--bzip2", ".zst": "--zstd"}
COMPILE = (
    "import compileall, sys\n"
    "for folder in ['/opt', '/usr/local/lib', *filter(None, sys.path)]:\n"
    "    compileall.compile_dir(folder, quiet=2, workers=0)\n"
)


def unpack_layers(store: StoreFolder, manifest: Manifest, tree: Path, steps: Steps) -> None:
    """Unpack the layers of an image one over the other, with what each of them takes away."""
    image = write_layout(steps.work / "pinned", store, manifest)
    # umoci checks the digest of each layer again, compressed and not.
    steps.run(["umoci", "raw", "unpack", "--rootless", "--image", image, str(tree)], tree=tree)


def unpack_file(source: Source, tree: Path, steps: Steps) -> str:
    """Fill the tree from a folder, a tar archive, a squashfs or a SIF file, and return its digest.

    Returns:
        the SHA-256 of the file, or of what is in the folder: names, kinds, modes and contents.
    """
    path = Path(source.location)
    if source.kind == "folder":
        argv = ["cp", "--archive", "--no-preserve=ownership,xattr,context", "--no-target-directory"]
        _copy_folder(path, tree, steps, argv)
        return tree_digest(tree)
    copy = steps.work / "archive"  # the account may not have access to the source, and nobody changes the copy
    digest = _copy(path, copy, steps)
    steps.give(copy)
    if source.kind == "tar":
        argv = ["tar", "--extract", f"--file={copy}", f"--directory={tree}", "--no-same-owner"]
        argv += ["--anchored", "--exclude=dev/*", "--exclude=./dev/*"]  # not folders of packages that are called so
        argv += [_COMPRESSION[path.suffix]] if path.suffix in _COMPRESSION else []
        steps.run([*argv, "--no-same-permissions", "--delay-directory-restore"], tree=tree)
    else:
        offset = find_squashfs(copy).offset if source.kind == "sif" else 0
        argv = ["unsquashfs", "-quiet", "-no-progress", "-no-xattrs", "-force", *(["-o", str(offset)] * bool(offset))]
        # 2: unsquashfs skipped something that only root can create, such as a device node, as intended.
        steps.run([*argv, "-dest", str(tree), str(copy)], tree=tree, allowed_codes=(0, 2))
    copy.unlink()
    return digest


def _copy_folder(path: Path, tree: Path, steps: Steps, argv: list[str]) -> None:
    """Copy a folder of this machine as ourselves, since the account may not read it, and give the copy away."""
    steps.bounds.check_tree(path)
    steps.run([*argv, "--", str(path), str(tree)], tree=tree, confine=False, ourselves=True)
    for folder, folders, files, fd in os.fwalk(tree, follow_symlinks=False):
        del folder
        steps.give_in(fd, *folders, *files)
    steps.give(tree)


def _copy(path: Path, to: Path, steps: Steps) -> str:
    """Copy a file and return its digest."""
    found = hashlib.sha256()
    try:
        to.unlink(missing_ok=True)
        # The account may write the folder, so it must be a new file: a link of it would be followed as ourselves.
        with path.open("rb") as read, to.open("xb") as write:
            steps.bounds.check_size(os.fstat(read.fileno()).st_size, str(path))
            while block := read.read(1 << 20):
                steps.bounds.left()
                found.update(block)
                write.write(block)
    except OSError as error:
        raise ContainerError(f"{path} cannot be copied: {error.strerror}") from error
    return f"sha256:{found.hexdigest()}"


def pack(tree: Path, to: Path, steps: Steps) -> None:
    """Make one squashfs file of a hardened tree, owned by root inside."""
    argv = ["mksquashfs", str(tree), str(to), "-comp", "zstd", "-Xcompression-level", "3", "-all-root", "-no-xattrs"]
    steps.run([*argv, "-noappend", "-quiet", "-no-progress"], confine=False, ourselves=True)
    to.chmod(0o644)


def compile_python(tree: Path, steps: Steps | None = None, python: str = "python3") -> None:
    """Byte-compile inside the image with its own Python, as an unprivileged account, without a network.

    Args:
        python: a name in PATH, or a path inside.

    Raises:
        ContainerError: bubblewrap cannot be run, or the image has become larger than it may be.
    """
    steps = steps or Steps(tree.parent, Bounds())
    argv = ["bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--bind", str(tree), "/"]
    argv += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--setenv", "PATH"]  # noqa: S108
    argv += ["/opt/venv/bin:/opt/conda/bin:/usr/local/bin:/usr/bin:/bin", "--", python, "-c", COMPILE]
    # Ignore failures: some packages contain files that are not meant to be compiled, and some images have no Python.
    steps.run(argv, tree=tree, confine=False, allowed_codes=range(-64, 256))
