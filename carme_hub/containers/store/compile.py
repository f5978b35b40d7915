"""Byte-compile an image's Python files: a read-only root takes none later, and each start would take two seconds."""

from __future__ import annotations

from pathlib import Path

from .bounds import Bounds
from .process import Steps

COMPILE = (
    "import compileall, sys\n"
    "for folder in ['/opt', '/usr/local/lib', *filter(None, sys.path)]:\n"
    "    compileall.compile_dir(folder, quiet=2, workers=0)\n"
)


def compile_python(tree: Path, steps: Steps | None = None) -> None:
    """Byte-compile inside the image with its own Python, as an unprivileged account, without a network.

    Raises:
        ContainerError: bubblewrap cannot be run, or the image has become larger than it may be.
    """
    steps = steps or Steps(tree.parent, Bounds())
    argv = ["bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--bind", str(tree), "/"]
    argv += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--setenv", "PATH"]  # noqa: S108
    argv += ["/opt/venv/bin:/opt/conda/bin:/usr/local/bin:/usr/bin:/bin", "--", "python3", "-c", COMPILE]
    # Ignore failures: some packages contain files that are not meant to be compiled, and some images have no Python.
    steps.run(argv, tree=tree, confine=False, allowed_codes=range(-64, 256))
