"""Our own code is put over an image's packages here: a copy by hard links, and a second of work when the code changed.

What runs in a session is ``carme_hub.training`` with its templates, kernels and the command ``carme-hub``,
``carme_hub.files``, ``carme_hub.gpu``, and ``carme_packages`` for what people install in it; nothing of the hub is in
an image.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import carme_hub
from carme_hub.containers.harden import harden
from carme_hub.node import program
from carme_hub.paths import share_folder
from carme_hub.sandbox.images.packages import inside

COMMAND = """#!/opt/venv/bin/python
import sys

from carme_hub.training.command import main

sys.exit(main())
"""
#: Imports carme_hub/node/packages.py at each start of Python.
PACKAGES_PTH = "import carme_packages\n"
#: Of the kernels, those that an image without torch has.
WITHOUT_TORCH = ("carme-python",)


def digest() -> str:
    """Return a digest of everything that is put into an image."""
    found = sha256(Path(__file__).read_bytes() + program("packages").encode())
    for folder, path in _sources():
        found.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def link(packages: Path, tree: Path) -> None:
    """Put what is in one image into the folder of another by hard links; what says what it is stays out."""
    subprocess.run(["cp", "--archive", "--link", f"{packages}/.", str(tree)], check=True)
    tree.chmod(0o700)  # until it is done
    (tree / "image.json").unlink()


def put(tree: Path, *, torch: bool) -> None:
    """Put our code into a tree that has /opt/venv."""
    layer = tree / ".code"
    venv = layer / "opt/venv"
    _write(venv, tree / "opt/venv", torch)
    harden(layer, owner=os.geteuid())
    # What is there already is a link to another image's file, which must not change.
    subprocess.run(["cp", "--archive", "--remove-destination", f"{layer}/opt", str(tree)], check=True)
    shutil.rmtree(layer)
    [site] = (tree / "opt/venv").glob("lib/python3.*/site-packages")
    inside(
        tree / "opt",
        "/opt/venv/bin/python",
        "-m",
        "compileall",
        "-q",
        f"/{site.relative_to(tree)}/carme_hub",
        f"/{site.relative_to(tree)}/carme_packages.py",
    )


def _sources() -> list[tuple[Path, Path]]:
    """Return all files, each with the folder that its name begins at."""
    package, share = Path(carme_hub.__file__).resolve().parent, share_folder().parent
    found = [(package, package / "__init__.py"), (package, package / "_version.py")]
    for folder, top in (
        (package, package / "training"),
        (package, package / "files"),
        (package, package / "gpu"),
        (share, share / "carme_hub/training"),
        (share, share / "carme_hub/apps"),
        (share, share / "jupyter"),
    ):
        found += [
            (folder, path) for path in sorted(top.rglob("*")) if path.is_file() and "__pycache__" not in path.parts
        ]
    return found


def _write(venv: Path, packages: Path, torch: bool) -> None:
    [site] = (path.relative_to(packages) for path in packages.glob("lib/python3.*/site-packages"))
    package = Path(carme_hub.__file__).resolve().parent
    for folder, path in _sources():
        relative = path.relative_to(folder)
        kernel = relative.parts[2] if relative.parts[:2] == ("jupyter", "kernels") else ""
        if kernel and not torch and kernel not in WITHOUT_TORCH:
            continue
        settings = relative.parts[:2] == ("jupyter", "jupyter_server_config.d")
        target = venv / ("etc" if settings else "share") / relative
        if folder == package:
            target = venv / site / "carme_hub" / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        target.chmod(0o644)
    for name, text in (("carme_packages.py", program("packages")), ("carme-packages.pth", PACKAGES_PTH)):
        (venv / site / name).write_text(text, encoding="utf-8")
        (venv / site / name).chmod(0o644)
    # JupyterLab's own kernel is the first that people see, so it has the magic too.
    native = venv / "share/jupyter/kernels/python3/kernel.json"
    native.parent.mkdir(parents=True)
    spec = json.loads((venv / "share/jupyter/kernels/carme-python/kernel.json").read_text(encoding="utf-8"))
    native.write_text(json.dumps(spec | {"display_name": "Python 3 (ipykernel)"}, indent=1), encoding="utf-8")
    native.chmod(0o644)
    command = venv / "bin/carme-hub"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text(COMMAND, encoding="utf-8")
    command.chmod(0o755)
    for folder in (venv.parent, *(path for path in venv.parent.rglob("*") if path.is_dir())):
        folder.chmod(0o755)  # whatever the umask is
