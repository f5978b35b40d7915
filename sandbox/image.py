"""The default image is built here, from PyPI alone: no registry, 20 to 60 seconds, kept for the next time.

It is a folder ``default-<digest of its inputs>``. ``base: host``: it holds /opt/venv only, and bubblewrap puts the
node's own /usr under it, read-only; a session sees a root that it cannot change, and the build needs no base system.
``build_full_image`` makes one that holds a whole system (``base: own``), for Charliecloud, Apptainer and Enroot, from
the packages that this machine has installed. Both are hardened, owned by root, byte-compiled (a missing .pyc costs a
start two seconds), readable by everybody, and put in place by one rename.

``python -m carme_hub.sandbox.image [--full] [FOLDER]`` builds one by hand and prints its path.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from carme_hub.containers.harden import add_mount_points, harden
from carme_hub.containers.images import write_image
from carme_hub.containers.store import COMPILE
from carme_hub.errors import SandboxError
from carme_hub.sandbox import image_system

Progress = Callable[[str], None]

PYTHON = Path("/usr/bin/python3")
#: What a session can do at once. The hub's own version goes in, so that server and hub speak the same.
PACKAGES = ("jupyterlab>=4.4", "ipykernel>=6.29", "jupyter-server-proxy>=4.6", "tensorboard>=2.18")
#: Packages that people install in a session go to its writable layer, and win over the image's.
LAYER_PTH = "import sys; sys.path.insert(len(sys.path) - 1, '/layer/python')\n"
PIP_CONF = "[install]\ntarget = /layer/python\n"
#: A session has no business on the network of its own accord.
PAGE_CONFIG = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
LOOK = "import jupyterlab, ipykernel, jupyterhub.singleuser, jupyter_server_proxy, tensorboard.program"
BWRAP = ("bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc")
MOUNTS = ("--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")  # noqa: S108  inside the image
#: What of our own environment the build may see: where packages come from, and how to trust it.
PASSED = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)


def image_cache() -> Path:
    """Return the folder where images are kept, for all sandboxes of this machine together."""
    if os.geteuid() == 0:
        return Path("/var/lib/carme-hub-images")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "carme-hub/images"


def build_default_image(cache: Path | None = None, progress: Progress = print) -> Path:
    """Return the folder of the default image, which is built if it is not there yet."""
    inputs = _inputs("host")
    return _cached(cache, "default", inputs, progress, lambda tree: _fill_host(tree, inputs, progress))


def build_full_image(cache: Path | None = None, progress: Progress = print) -> Path:
    """Return the folder of an image that holds a whole system, which is built if it is not there yet."""
    inputs = _inputs("own") | {"system": image_system.inputs()}
    base = build_default_image(cache, progress)
    return _cached(cache, "full", inputs, progress, lambda tree: _fill_own(tree, base, inputs, progress))


def _packages() -> list[str]:
    return [f"jupyterhub=={version('jupyterhub')}", *PACKAGES]


def _inputs(base: str) -> dict[str, object]:
    """Return everything that decides what an image will be; another digest is another image."""
    done = subprocess.run([PYTHON, "-V"], capture_output=True, text=True, check=True)
    return {
        "base": base,
        "packages": _packages(),
        "python": done.stdout.strip(),
        "machine": platform.machine(),
        "recipe": sha256(Path(__file__).read_bytes()).hexdigest(),
    }


def _cached(
    cache: Path | None, name: str, inputs: Mapping[str, object], progress: Progress, fill: Callable[[Path], None]
) -> Path:
    """Return ``<name>-<digest>`` of the cache; where it is missing, fill a folder beside it and rename it."""
    cache = image_cache() if cache is None else cache
    digest = sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]
    image = cache / f"{name}-{digest}"
    if (image / "image.json").exists():
        return image
    cache.mkdir(parents=True, exist_ok=True)
    cache.chmod(0o755)
    _check_reachable(cache)
    with locked(cache):
        if (image / "image.json").exists():
            return image
        for stale in cache.glob(".building-*"):
            shutil.rmtree(stale)
        tree = cache / f".building-{name}"
        tree.mkdir(mode=0o700)
        began = time.monotonic()
        try:
            fill(tree)
            tree.rename(image)
        except BaseException:
            shutil.rmtree(tree, ignore_errors=True)
            raise
        progress(f"Image {image.name} is ready after {time.monotonic() - began:.0f} s")
    return image


def _check_reachable(cache: Path) -> None:
    """Refuse a cache that the users of the sandbox could not read."""
    for folder in (cache, *cache.resolve().parents):
        if os.geteuid() == 0 and not folder.stat().st_mode & 0o001:
            raise SandboxError(f"Users cannot reach images in {cache}: {folder} is closed to them")


@contextlib.contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Let one process build at a time."""
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fill_host(tree: Path, inputs: Mapping[str, object], progress: Progress) -> None:
    """Build /opt/venv in a folder that is /opt while this lasts, so that its scripts know their later place."""
    opt = tree / "opt"
    opt.mkdir(mode=0o755)
    progress("Building the image: a virtual environment")
    _inside(opt, str(PYTHON), "-m", "venv", "/opt/venv")
    progress("Building the image: JupyterLab and what goes with it")
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}")
    if uv:
        uv_argv = ("/tmp/uv", "pip", "install", "--quiet", "--link-mode=copy", "--compile-bytecode")  # noqa: S108
        _inside(opt, *uv_argv, "--python=/opt/venv/bin/python", *_packages(), uv=Path(uv))
    else:
        _inside(opt, "/opt/venv/bin/python", "-m", "pip", "install", "--quiet", *_packages())
    _finish_venv(opt / "venv")
    progress("Building the image: a look whether everything can be imported")
    _inside(opt, "/opt/venv/bin/python", "-c", LOOK)
    progress(f"Hardening the image: {harden(tree, owner=os.geteuid())}")
    write_image(tree, name="default", description="Python 3, JupyterLab, TensorBoard", base="host", more=inputs)


def _finish_venv(venv: Path) -> None:
    """Add what is the image's own: where packages of a session go, and settings of JupyterLab."""
    [site] = venv.glob("lib/python3.*/site-packages")
    (site / "carme-layer.pth").write_text(LAYER_PTH, encoding="utf-8")
    (venv / "pip.conf").write_text(PIP_CONF, encoding="utf-8")
    config = venv / "etc/jupyter/labconfig"
    config.mkdir(parents=True, exist_ok=True)
    (config / "page_config.json").write_text(json.dumps(PAGE_CONFIG), encoding="utf-8")


def _fill_own(tree: Path, base: Path, inputs: Mapping[str, object], progress: Progress) -> None:
    """Put a whole system under the default image's /opt."""
    progress("Building the full image: the system")
    image_system.copy_system(tree)
    progress("Building the full image: JupyterLab and what goes with it")
    subprocess.run(["cp", "--archive", "--reflink=auto", str(base / "opt"), str(tree)], check=True)
    add_mount_points(tree)
    _run([*BWRAP, "--bind", str(tree), "/", *MOUNTS, "--", "/opt/venv/bin/python", "-c", COMPILE], {})
    progress(f"Hardening the image: {harden(tree, owner=os.geteuid())}")
    progress("Building the full image: a look whether everything can be imported")
    _run([*BWRAP, "--ro-bind", str(tree), "/", *MOUNTS, "--", "/opt/venv/bin/python", "-c", LOOK], {})
    write_image(tree, name="full", description="Debian, Python 3, JupyterLab, TensorBoard", base="own", more=inputs)


def _inside(opt: Path, *argv: str, uv: Path | None = None) -> None:
    """Run one step of the build with this machine's system and the image's /opt."""
    environ = {name: os.environ[name] for name in os.environ if name in PASSED or name.startswith("UV_")}
    wrap = [*BWRAP, *MOUNTS]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "usr", "etc", "run/systemd/resolve"):
        wrap += ["--ro-bind-try", f"/{name}", f"/{name}"]  # /etc/resolv.conf may lead to the last
    wrap += ["--bind", str(opt), "/opt"]
    if uv:
        cache = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
        Path(cache).mkdir(parents=True, exist_ok=True)
        wrap += ["--ro-bind", str(uv), "/tmp/uv", "--bind", cache, "/tmp/uv-cache"]  # noqa: S108
        environ["UV_CACHE_DIR"] = "/tmp/uv-cache"  # noqa: S108
    _run([*wrap, "--", *argv], environ)


def _run(argv: list[str], environ: Mapping[str, str]) -> None:
    """Run one command of a build; what it says is shown only when it fails."""
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", **environ}  # noqa: S108
    try:
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, umask=0o022, check=False)
    except OSError as error:
        raise SandboxError(f"Building the image needs {argv[0]}: {error.strerror}") from error
    if done.returncode:
        end = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        words = argv[argv.index("--") + 1 :] if "--" in argv else argv
        raise SandboxError(f"Building the image failed at {' '.join(words[:4])}:\n{end}")


def main(argv: list[str] | None = None) -> None:
    """Build an image by hand and print its path."""
    parser = argparse.ArgumentParser(prog="carme_hub.sandbox.image", description="Build the default image.")
    parser.add_argument("--full", action="store_true", help="with a whole system, for any runtime")
    parser.add_argument("folder", nargs="?", type=Path, help=f"where images are kept ({image_cache()})")
    chosen = parser.parse_args(argv)
    build = build_full_image if chosen.full else build_default_image
    print(build(chosen.folder, lambda line: print(line, file=sys.stderr)))


if __name__ == "__main__":
    main()
