"""What is inside an image's folder, found by looking: versions of Python, CUDA, torch, JupyterLab and JupyterHub.

Nothing of the image runs, and no link leads out of it: names of folders and the beginnings of a few small files are
read. An image that is one file is not looked into; its description says what its maker found.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from carme_hub.domain.images.contents import Contents, cuda_of_torch, merged, version

#: Environments of Python in the order in which a session's PATH has them.
_PREFIXES = ("opt/venv", "opt/conda", "usr/local", "usr")
_SITE = ("site-packages", "dist-packages")
_MOST_BYTES, _MOST_NAMES, _MOST_LINKS = 1 << 16, 5000, 40
_PYTHON = re.compile(r"python(3\.\d{1,3})")
_CONDA_PYTHON = re.compile(r"python-(3\.\d{1,3}\.\d{1,3})-")
_CONDA_CUDA = re.compile(r"(?:cuda-cudart|cudatoolkit)-(\d{1,3}\.\d{1,3}(?:\.\d{1,5})?)-")
_CUDART = re.compile(r"libcudart\.so\.(\d{1,3}\.\d{1,3})(?:\.\d{1,5})?")
_CUDA_FOLDER = re.compile(r"cuda-(\d{1,3}\.\d{1,3})")


def look_inside(folder: Path) -> Contents:
    """Return what is found in the folder of an image; what is not found is unknown."""
    look = _Look(folder)
    found = Contents()
    for prefix in _PREFIXES:
        for site in look.sites(prefix):
            found = merged(found, look.packages(site))
    cuda = look.cuda()
    return merged(Contents(python=look.python(), cuda=cuda) if cuda else Contents(python=look.python()), found)


class _Look:
    """One image's folder. Nothing outside of it is ever read."""

    def __init__(self, folder: Path) -> None:
        self._root = os.path.realpath(folder)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder of the image; [] where there is none."""
        try:
            with os.scandir(self._inside(folder)) as entries:
                return sorted(each.name for each, _ in zip(entries, range(_MOST_NAMES), strict=False))
        except (OSError, ValueError):
            return []

    def text(self, file: str) -> str:
        """Return the beginning of a file of the image; "" where there is none."""
        try:
            fd = os.open(self._inside(file), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(fd, "rb") as opened:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    return ""
                return opened.read(_MOST_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError):
            return ""

    def _inside(self, path: str) -> str:
        """Return where a path of the image leads, as in the image: ``/`` and ``..`` of links stay within it.

        Raises:
            ValueError: there are too many links.
        """
        done: list[str] = []
        ahead, links = path.split("/")[::-1], 0
        while ahead:
            part = ahead.pop()
            if part in ("", "."):
                continue
            if part == "..":
                done = done[:-1]
                continue
            found = os.path.join(self._root, *done, part)  # noqa: PTH118  names may be no UTF-8
            if not os.path.islink(found):  # noqa: PTH114
                done.append(part)
                continue
            if (links := links + 1) > _MOST_LINKS:
                raise ValueError(f"{path} has too many links")
            target = os.readlink(found)  # noqa: PTH115
            done = [] if target.startswith("/") else done
            ahead += target.split("/")[::-1]
        return os.path.join(self._root, *done)  # noqa: PTH118

    def sites(self, prefix: str) -> Iterator[str]:
        """Yield the folders with the packages of one environment."""
        folders = [f"{prefix}/lib/{name}" for name in self.names(f"{prefix}/lib") if _PYTHON.fullmatch(name)]
        for folder in [*reversed(folders), f"{prefix}/lib/python3"]:
            yield from (f"{folder}/{site}" for site in _SITE if self.names(f"{folder}/{site}"))

    def python(self) -> str:
        """Return the version of the first Python of a session's PATH."""
        for line in self.text("opt/venv/pyvenv.cfg").splitlines():
            name, _, value = line.partition("=")
            if name.strip() in ("version", "version_info"):
                return version(".".join(value.strip().split(".")[:3]))
        for name in self.names("opt/conda/conda-meta"):
            if conda := _CONDA_PYTHON.match(name):
                return conda[1]
        for prefix in _PREFIXES:
            programs = [_PYTHON.fullmatch(name) for name in self.names(f"{prefix}/bin")]
            if versions := [program[1] for program in programs if program]:
                return max(versions, key=lambda text: int(text.partition(".")[2]))
        return ""

    def cuda(self) -> str:
        """Return the version of CUDA's own libraries in the image."""
        try:
            said = json.loads(self.text("usr/local/cuda/version.json"))
            if told := version(said["cuda"]["version"]):
                return told
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        if found := re.search(r"CUDA Version (\d[\d.]*)", self.text("usr/local/cuda/version.txt")):
            return version(found[1])
        for folder in ("usr/local/cuda/lib64", "usr/lib/x86_64-linux-gnu", "opt/conda/lib"):
            libraries = [_CUDART.fullmatch(name) for name in self.names(folder)]
            if versions := [library[1] for library in libraries if library]:
                return versions[-1]
        for name in self.names("opt/conda/conda-meta"):
            if package := _CONDA_CUDA.match(name):
                return package[1]
        folders = [_CUDA_FOLDER.fullmatch(name) for name in self.names("usr/local")]
        return next((folder[1] for folder in reversed(folders) if folder), "")

    def packages(self, site: str) -> Contents:
        """Return what the packages of one environment say, by the names of their folders."""
        versions: dict[str, str] = {}
        for name in self.names(site):
            package, dash, rest = name.partition("-")
            if dash and rest.endswith((".dist-info", ".egg-info")):
                versions.setdefault(package.lower().replace("-", "_"), rest.rpartition(".")[0])
        torch = version(versions.get("torch", ""))
        if torch and "+" not in torch:
            found = re.search(r"^__version__ = ['\"]([^'\"]{1,40})['\"]", self.text(f"{site}/torch/version.py"), re.M)
            torch = (version(found[1]) if found else "") or torch
        cuda = re.search(r"^cuda[^=\n]*= ['\"](\d[\d.]*)['\"]", self.text(f"{site}/torch/version.py"), re.M)
        runtime = next((of for name, of in versions.items() if name.startswith("nvidia_cuda_runtime")), "")
        return Contents(
            cuda=version(runtime) or (version(cuda[1]) if cuda else "") or cuda_of_torch(torch),
            torch=torch,
            jupyterlab=version(versions.get("jupyterlab", "")),
            jupyterhub=version(versions.get("jupyterhub", "")),
        )
