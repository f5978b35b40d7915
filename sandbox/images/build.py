"""Build the images, from PyPI alone: no registry, each image once, kept in a cache.

An image is a folder ``<name>-<digest of its inputs>``, put in place by one rename, hardened, owned by root,
byte-compiled (missing .pyc files add two seconds to a start) and readable by everybody. There are

- *default*: JupyterLab and TensorBoard, 20 to 60 seconds. ``base: host``: it holds /opt/venv only, and bubblewrap
  mounts the node's own /usr read-only; a session sees a root that it cannot change, and no base system is built;
- *training*: the same with torch, Horovod, which is built from its source release the first time, and Open MPI;
- *full*: the default one with a whole system (``base: own``), for Charliecloud, Apptainer and Enroot, from the
  packages that this machine has installed.

Packages are one layer, kept as ``packages-<name>-<digest>``; our own code is the next layer, over hard links to the
first, so that a change of code takes a second.

``python -m carme_hub.sandbox.images.build [--full | --training] [FOLDER]`` builds one by hand and prints its path.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

from carme_hub.containers.harden import add_mount_points, harden
from carme_hub.containers.images import write_image
from carme_hub.containers.store import COMPILE
from carme_hub.errors import SandboxError
from carme_hub.sandbox.build_lock import locked
from carme_hub.sandbox.images import code, horovod, mpi, system
from carme_hub.sandbox.images import packages as image_packages
from carme_hub.sandbox.images.packages import BWRAP, LOOK, MOUNTS, Progress, run

#: Images that no sandbox has used for so many seconds are removed; no session runs that long.
KEEP_SECONDS = 7 * 86_400.0
CHECK_HOROVOD = "import horovod.torch as hvd; assert hvd.gloo_built()"


def image_cache() -> Path:
    """Return the folder of the images, for all sandboxes of this machine."""
    if os.geteuid() == 0:
        return Path("/var/lib/carme-hub-images")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "carme-hub/images"


def build_default_image(cache: Path | None = None, progress: Progress = print) -> Path:
    """Return the folder of the default image, which is built if it is missing."""
    packages, inputs = _default_packages(cache, progress)
    about = "Python 3, JupyterLab, TensorBoard"
    return _with_code(cache, "default", about, packages, inputs, progress)


def build_training_image(cache: Path | None = None, progress: Progress = print) -> Path:
    """Return the folder of the training image, which is built if it is missing.

    Where Horovod cannot be built, the image has none, its description says so, and ``image.json`` has the reason.
    """
    base, inputs = _default_packages(cache, progress)
    inputs |= {"torch": [image_packages.TORCH, *image_packages.TRAINING], "index": image_packages.TORCH_INDEX}
    with_torch = _cached(cache, "packages-torch", inputs, progress, lambda tree: _fill_torch(tree, base, progress))
    with locked(with_torch.parent, "horovod"):
        wheel = horovod.wheel(with_torch.parent, with_torch / "opt", progress)
    about = "PyTorch, TensorBoard, Open MPI"
    if isinstance(wheel, Path):
        found, about = wheel, f"{about}, Horovod"
        inputs |= {"horovod": f"{wheel.parent.name}/{wheel.name}"}
        packages = _cached(
            *(cache, "packages-training", inputs, progress),
            lambda tree: _fill_horovod(tree, with_torch, found, progress),
        )
    else:
        progress(f"No Horovod in the training image. {wheel}")
        inputs |= {"horovod": "", "no horovod": wheel}
        packages, about = with_torch, f"{about} (no Horovod: it could not be built)"
    before, inputs = packages, inputs | {"mpi": [mpi.PACKAGES, mpi.RECIPE]}
    packages = _cached(cache, "packages-mpi", inputs, progress, lambda tree: _fill_mpi(tree, before, progress))
    return _with_code(cache, "training", about, packages, inputs, progress)


def build_full_image(cache: Path | None = None, progress: Progress = print) -> Path:
    """Return the folder of an image with a whole system, which is built if it is missing."""
    base, inputs = _default_packages(cache, progress)
    inputs |= {"base": "own", "system": system.inputs()}
    packages = _cached(cache, "packages-full", inputs, progress, lambda tree: _fill_full(tree, base, progress))
    about = "Debian, Python 3, JupyterLab, TensorBoard"
    return _with_code(cache, "full", about, packages, inputs, progress)


def _default_packages(cache: Path | None, progress: Progress) -> tuple[Path, dict[str, object]]:
    """Return the folder of the packages that every image has, and the inputs that decide its content."""
    inputs = {"base": "host", **image_packages.inputs(), "machine": platform.machine()}

    def fill(tree: Path) -> None:
        image_packages.fill(tree, progress)
        _finish(tree, "packages-default", progress)

    return _cached(cache, "packages-default", inputs, progress, fill), inputs


def _with_code(
    cache: Path | None, name: str, about: str, packages: Path, inputs: dict[str, object], progress: Progress
) -> Path:
    """Return the image with our code over these packages."""
    inputs = inputs | {"code": code.digest()}

    def fill(tree: Path) -> None:
        code.link(packages, tree)
        code.put(tree, torch=name == "training")
        write_image(tree, name=name, description=about, base=str(inputs["base"]), more=_more(inputs))
        tree.chmod(0o755)

    return _cached(cache, name, inputs, progress, fill)


def _more(inputs: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in inputs.items() if key != "base"}


def _cached(
    cache: Path | None, name: str, inputs: Mapping[str, object], progress: Progress, fill: Callable[[Path], None]
) -> Path:
    """Return ``<name>-<digest>`` of the cache; where it is missing, fill a temporary folder and rename it."""
    cache = image_cache() if cache is None else cache
    digest = sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]
    image = cache / f"{name}-{digest}"
    if (image / "image.json").exists():
        _touch(image)
        return image
    cache.mkdir(parents=True, exist_ok=True)
    cache.chmod(0o755)
    _check_reachable(cache)
    with locked(cache, name):
        if (image / "image.json").exists():
            return image
        tree = cache / f".building-{name}"
        shutil.rmtree(tree, ignore_errors=True)
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


def _touch(image: Path) -> None:
    """Record that an image is in use; only root and its builder may."""
    with contextlib.suppress(PermissionError):
        os.utime(image / "image.json")


def mark_kept(image: Path) -> None:
    """Mark an image that somebody built by hand, and may use elsewhere: it is never removed."""
    with contextlib.suppress(PermissionError):
        image.with_name(f".kept-{image.name}").touch()


def remove_unused(image: Path) -> None:
    """Record that a sandbox uses an image, and remove those of its kind that no sandbox has used for long.

    Every change of our code makes another image. An image that was not built for a sandbox, or was also built by hand,
    stays: a hub's configuration may name it.
    """
    with contextlib.suppress(PermissionError):
        image.with_name(f".sandbox-{image.name}").touch()
    packages = (f"packages-{name}" for name in ("default", "torch", "training", "mpi"))
    kinds = (image.name.rpartition("-")[0], *packages)
    for other in image.parent.iterdir():
        kind, about = other.name.rpartition("-")[0], other / "image.json"
        if kind not in kinds or not about.exists() or time.time() - about.stat().st_mtime < KEEP_SECONDS:
            continue
        mark = other.with_name(f".sandbox-{other.name}")
        # No configuration names a folder of packages; the images made from it have their own links to every file.
        if kind.startswith("packages-") or (mark.exists() and not other.with_name(f".kept-{other.name}").exists()):
            gone = other.with_name(f".gone-{other.name}")
            with contextlib.suppress(OSError):  # two may do it at once
                other.rename(gone)
                shutil.rmtree(gone)
                mark.unlink(missing_ok=True)


def _fill_torch(tree: Path, base: Path, progress: Progress) -> None:
    """Add torch to a separate copy: an installer may write into existing files."""
    _copy_opt(base, tree)
    image_packages.add_torch(tree, progress)
    _finish(tree, "packages-torch", progress)


def _fill_horovod(tree: Path, base: Path, wheel: Path, progress: Progress) -> None:
    _copy_opt(base, tree)
    shutil.copy(wheel, tree / "opt")
    image_packages.install(tree / "opt", f"/opt/{wheel.name}")
    (tree / "opt" / wheel.name).unlink()
    image_packages.inside(tree / "opt", "/opt/venv/bin/python", "-c", CHECK_HOROVOD)
    _finish(tree, "packages-training", progress)


def _fill_mpi(tree: Path, base: Path, progress: Progress) -> None:
    progress(f"Building the training image: {', '.join(mpi.PACKAGES)}")
    mpi.put(base, tree)
    (tree / "image.json").write_text(json.dumps({"packages": "packages-mpi"}) + "\n", encoding="utf-8")


def _fill_full(tree: Path, base: Path, progress: Progress) -> None:
    """Put a whole system under the default image's /opt."""
    progress("Building the full image: the system")
    system.copy_system(tree)
    progress("Building the full image: JupyterLab and what goes with it")
    _copy_opt(base, tree)
    add_mount_points(tree)
    run([*BWRAP, "--bind", str(tree), "/", *MOUNTS, "--", "/opt/venv/bin/python", "-c", COMPILE], {})
    progress("Building the full image: checking that everything can be imported")
    run([*BWRAP, "--ro-bind", str(tree), "/", *MOUNTS, "--", "/opt/venv/bin/python", "-c", LOOK], {})
    _finish(tree, "packages-full", progress)


def _copy_opt(base: Path, tree: Path) -> None:
    subprocess.run(["cp", "--archive", "--reflink=auto", str(base / "opt"), str(tree)], check=True)


def _finish(tree: Path, name: str, progress: Progress) -> None:
    """Harden the packages, and write their name; an image is made of them later."""
    progress(f"Hardening {name}: {harden(tree, owner=os.geteuid())}")
    (tree / "image.json").write_text(json.dumps({"packages": name}) + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> None:
    """Build an image by hand and print its path."""
    parser = argparse.ArgumentParser(prog="carme_hub.sandbox.images.build", description="Build an image.")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--full", action="store_true", help="with a whole system, for any runtime")
    kind.add_argument("--training", action="store_true", help="with torch, Horovod and Open MPI")
    parser.add_argument("folder", nargs="?", type=Path, help=f"where images are kept ({image_cache()})")
    options = parser.parse_args(argv)
    build = build_full_image if options.full else build_training_image if options.training else build_default_image
    image = build(options.folder, lambda line: print(line, file=sys.stderr))
    mark_kept(image)
    print(image)


if __name__ == "__main__":
    main()
