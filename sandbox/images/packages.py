"""What an image takes from PyPI is put into a folder /opt/venv here: minutes for torch and Horovod, so it is kept.

Our own code is not in it (``image_code``): packages change seldom, code often, and a change of code costs a second.
The digest of this file is part of an image's name, as what is listed here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from carme_hub.errors import SandboxError

Progress = Callable[[str], None]

PYTHON = Path("/usr/bin/python3")
#: What a session can do at once. The hub's own version goes in, so that server and hub speak the same.
PACKAGES = (
    *("jupyterlab>=4.4", "ipykernel>=6.29", "jupyter-server-proxy>=4.6", "tensorboard>=2.18"),
    "cloudpickle>=3",  # variables on their way to the ranks of a run and back
)
#: Asked for by jupyter-events, so that jsonschema can check the format "iri", which nothing in Jupyter has. It builds a
#: grammar at each import: 0.9 s of the 2.4 s of processor time in which a server starts. Where it is missing jsonschema
#: does not check that format.
LEFT_OUT = "rfc3987-syntax"
#: What training takes beside it.
TORCH = "torch==2.13.0"
TRAINING = ("numpy>=2", "matplotlib>=3.9", "ipywidgets>=8.1", "nvidia-ml-py>=12")
#: What tutorials import. Ours needs none of it.
TUTORIALS = (
    *("tqdm>=4.66", "pandas>=2.2", "scikit-learn>=1.5", "torchmetrics>=1.6"),
    *("lightning>=2.5", "accelerate>=1.6", "transformers>=4.50", "datasets>=3.5"),
    "mlflow>=3.5",  # its loggers, and the app
    *("optuna>=5", "optuna-dashboard>=0.21,<0.22"),  # sweeps, and the app
)
#: Where else torch is looked for, "" = where pip looks anyway. There are builds for CPUs and for each CUDA.
TORCH_INDEX = os.environ.get("CARME_TORCH_INDEX", "")
#: A session has no business on the network of its own accord.
PAGE_CONFIG = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
LOOK = "import jupyterlab, ipykernel, jupyterhub.singleuser, jupyter_server_proxy, tensorboard.program, cloudpickle"
LOOK += "; from importlib.util import find_spec; assert find_spec('rfc3987_syntax') is None"
LOOK_TRAINING = (
    "import torch, numpy, matplotlib, ipywidgets, tqdm, pandas, sklearn, lightning, accelerate, transformers, optuna"
)
BWRAP = ("bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc")
MOUNTS = ("--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")  # noqa: S108  inside the image
#: What of our own environment the build may see: where packages come from, and how to trust it.
PASSED = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "PIP_CERT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)


def base_packages() -> list[str]:
    """Return what every image has."""
    return [f"jupyterhub=={version('jupyterhub')}", *PACKAGES]


def inputs() -> dict[str, object]:
    """Return everything that decides what the packages will be."""
    done = subprocess.run([PYTHON, "-V"], capture_output=True, text=True, check=True)
    return {
        "packages": base_packages(),
        "python": done.stdout.strip(),
        "packages recipe": sha256(Path(__file__).read_bytes()).hexdigest(),
    }


def fill(tree: Path, progress: Progress) -> None:
    """Build /opt/venv in a folder that is /opt while this lasts, so that its scripts know their later place."""
    opt = tree / "opt"
    opt.mkdir(mode=0o755)
    progress("Building the image: a virtual environment")
    inside(opt, str(PYTHON), "-m", "venv", "/opt/venv")
    progress("Building the image: JupyterLab and what goes with it")
    install(opt, *base_packages())
    uninstall(opt, LEFT_OUT)
    _finish_venv(opt / "venv")
    progress("Building the image: a look whether everything can be imported")
    inside(opt, "/opt/venv/bin/python", "-c", LOOK)


def add_torch(tree: Path, progress: Progress) -> None:
    """Add torch and what goes with it to a tree that ``fill`` has made.

    Torch comes by pip with this machine's own settings, which may know a build that lies nearer, and the rest with it.
    """
    opt = tree / "opt"
    progress(f"Building the training image: {TORCH}")
    fetched = opt / "fetched"
    [site] = opt.glob("venv/lib/python3.*/site-packages")
    pip = [str(PYTHON), "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "1"]
    environ = {**os.environ, "PYTHONPATH": str(site)}  # its pip; its python is a link that leads somewhere only inside
    pip += ["--extra-index-url", TORCH_INDEX] if TORCH_INDEX else []
    run([*pip, "--dest", str(fetched), TORCH], environ)
    [wheel] = fetched.glob("torch-*.whl")
    size = wheel.stat().st_size >> 20
    progress(f"Building the training image: {wheel.name} ({size} MB), numpy, matplotlib, ipywidgets")
    install(opt, f"/opt/fetched/{wheel.name}", *TRAINING)
    shutil.rmtree(fetched)
    progress("Building the training image: what tutorials import (lightning, transformers, pandas and others)")
    install(opt, *TUTORIALS, TORCH)  # named again, so that none of them brings another
    _add_torchvision(opt, progress)
    inside(opt, "/opt/venv/bin/python", "-c", LOOK_TRAINING)


def _add_torchvision(opt: Path, progress: Progress) -> None:
    """Add torchvision where there is a build for this torch: PyPI has only those for CUDA's."""
    try:
        install(opt, *(("--extra-index-url", TORCH_INDEX) if TORCH_INDEX else ()), "torchvision", TORCH)
        inside(opt, "/opt/venv/bin/python", "-c", "import torchvision")
    except SandboxError:
        progress("Building the training image: there is no torchvision for this build of torch; see CARME_TORCH_INDEX")
        uninstall(opt, "torchvision")


def install(opt: Path, *packages: str) -> None:
    """Install packages into /opt/venv, by uv where there is one."""
    uv = _uv()
    if uv:
        uv_argv = ("/tmp/uv", "pip", "install", "--quiet", "--link-mode=copy", "--compile-bytecode")  # noqa: S108
        inside(opt, *uv_argv, "--python=/opt/venv/bin/python", *packages, uv=uv)
    else:
        inside(opt, "/opt/venv/bin/python", "-m", "pip", "install", "--quiet", *packages)


def uninstall(opt: Path, package: str) -> None:
    """Remove a package from /opt/venv."""
    uv = _uv()
    if uv:
        inside(opt, "/tmp/uv", "pip", "uninstall", "--quiet", "--python=/opt/venv/bin/python", package, uv=uv)  # noqa: S108
    else:
        inside(opt, "/opt/venv/bin/python", "-m", "pip", "uninstall", "--quiet", "--yes", package)


def tools(opt: Path, work: Path, *packages: str) -> None:
    """Install packages into ``work/tools``, for a build with the image's Python that leaves the image alone."""
    uv = _uv()
    bind = {work: "/work"}
    if uv:
        argv = ("/tmp/uv", "pip", "install", "--quiet", "--python=/opt/venv/bin/python")  # noqa: S108
    else:
        argv = ("/opt/venv/bin/python", "-m", "pip", "install", "--quiet")
    inside(opt, *argv, "--target=/work/tools", *packages, uv=uv, bind=bind)


def inside(opt: Path, *argv: str, uv: Path | None = None, bind: Mapping[Path, str] | None = None, **more: str) -> None:
    """Run one step of the build with this machine's system and the image's /opt.

    Args:
        bind: further folders, and where they are inside. more: its environment beside what is passed.
    """
    wrap, environ = wrapped(opt, uv, bind or {})
    run([*wrap, "--", *argv], environ | more)


def wrapped(opt: Path, uv: Path | None, bind: Mapping[Path, str]) -> tuple[list[str], dict[str, str]]:
    """Return the words before ``--`` and the environment of ``inside``."""
    environ = {name: os.environ[name] for name in os.environ if name in PASSED or name.startswith("UV_")}
    wrap = [*BWRAP, *MOUNTS]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "usr", "etc", "run/systemd/resolve"):
        wrap += ["--ro-bind-try", f"/{name}", f"/{name}"]  # /etc/resolv.conf may lead to the last
    wrap += ["--bind", str(opt), "/opt"]
    for folder, place in bind.items():
        wrap += ["--bind", str(folder), place]
    if uv:
        cache = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
        Path(cache).mkdir(parents=True, exist_ok=True)
        wrap += ["--ro-bind", str(uv), "/tmp/uv", "--bind", cache, "/tmp/uv-cache"]  # noqa: S108
        environ["UV_CACHE_DIR"] = "/tmp/uv-cache"  # noqa: S108
    return wrap, {"PATH": "/usr/bin:/bin", "HOME": "/tmp", **environ}  # noqa: S108


def run(argv: list[str], environ: Mapping[str, str]) -> None:
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


def _uv() -> Path | None:
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}")
    return Path(found) if found else None


def _finish_venv(venv: Path) -> None:
    """Add the image's own settings of JupyterLab."""
    config = venv / "etc/jupyter/labconfig"
    config.mkdir(parents=True, exist_ok=True)
    (config / "page_config.json").write_text(json.dumps(PAGE_CONFIG), encoding="utf-8")
