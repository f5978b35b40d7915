"""A channel of conda in a folder, with packages that tests make: no package of a real channel is needed.

Its Python is the machine's own, as a virtual environment has it, so what is installed beside it can be imported.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: What conda's own packages have in the place of the folder that they are installed into.
PLACEHOLDER = "/opt" + "/placehold" * 25


class Channel:
    """One channel; ``address`` is what sites write."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, f"file://{folder}"
        self._known: dict[str, dict[str, Any]] = {"noarch": {}, "linux-64": {}}
        for name in self._known:
            (folder / name).mkdir(parents=True)
            self._write(name)

    def _write(self, subdir: str) -> None:
        text = json.dumps({"info": {"subdir": subdir}, "packages": self._known[subdir], "packages.conda": {}})
        (self.folder / subdir / "repodata.json").write_text(text)

    def add(
        self,
        name: str,
        version: str,
        files: Mapping[str, str | bytes],
        *,
        depends: tuple[str, ...] = (),
        links: Mapping[str, str] | None = None,
        python: bool = False,
    ) -> None:
        """Add a package.

        Args:
            files: contents by path; those with ``PLACEHOLDER`` get the folder in its place. links: targets by path.
            python: it is of Python alone, for any of its versions, and its files are below ``site-packages``.
        """
        subdir = "noarch" if python else "linux-64"
        index: dict[str, Any] = {"name": name, "version": version, "build": "0", "build_number": 0, "subdir": subdir}
        index |= {"depends": [*depends], "arch": None, "platform": None}
        index |= {"noarch": "python"} if python else {}
        paths: list[dict[str, Any]] = []
        inside: dict[str, bytes] = {}
        for path, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            entry = {"_path": path, "path_type": "hardlink", "sha256": _sha(data), "size_in_bytes": len(data)}
            if PLACEHOLDER.encode() in data:
                entry |= {"prefix_placeholder": PLACEHOLDER, "file_mode": "binary" if b"\0" in data else "text"}
            paths.append(entry)
            inside[path] = data
        for path in links or {}:
            paths.append({"_path": path, "path_type": "softlink", "sha256": _sha(b""), "size_in_bytes": 0})
        inside["info/index.json"] = json.dumps(index).encode()
        inside["info/paths.json"] = json.dumps({"paths": paths, "paths_version": 1}).encode()
        inside["info/files"] = "".join(f"{each['_path']}\n" for each in paths).encode()
        if python:
            inside["info/link.json"] = b'{"noarch": {"type": "python"}, "package_metadata_version": 1}'
        file = self.folder / subdir / f"{name}-{version}-0.tar.bz2"
        _pack(file, inside, links or {})
        data = file.read_bytes()
        sums = {"md5": hashlib.md5(data).hexdigest(), "sha256": _sha(data), "size": len(data)}
        self._known[subdir][file.name] = {**index, **sums}
        self._write(subdir)

    def add_python(self, *, site: str, python: str = "/usr/bin/python3") -> None:
        """Add ``python`` in the version of the machine's own, and ``pip`` and ``ipykernel`` that are those of an image.

        Args:
            site: folder with packages of an image, among them pip, ipykernel and what it needs.
        """
        asked = [python, "-c", "import platform; print(platform.python_version())"]
        version = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        minor = version.rpartition(".")[0]
        config = f"home = {Path(python).parent}\ninclude-system-site-packages = false\n"
        links = {"bin/python": f"python{minor}", "bin/python3": f"python{minor}"}
        program = Path(os.path.realpath(python)).read_bytes()
        files = {"pyvenv.cfg": config, f"lib/python{minor}/site-packages/README.txt": "", f"bin/python{minor}": program}
        self.add("python", version, files, links=links)
        self.add("pip", "99.0", {"site-packages/pip-of-image.pth": f"{site}\n"}, depends=("python",), python=True)
        self.add(
            "ipykernel", "7.0", {"site-packages/of_image.pth": f"{site}\n"}, depends=("python", "pip"), python=True
        )


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _pack(file: Path, inside: Mapping[str, bytes], links: Mapping[str, str]) -> None:
    with tarfile.open(file, "w:bz2") as archive:
        for path, data in sorted(inside.items()):
            about = tarfile.TarInfo(path)
            about.size, about.mode = len(data), 0o755 if path.startswith("bin/") else 0o644
            archive.addfile(about, io.BytesIO(data))
        for path, target in links.items():
            about = tarfile.TarInfo(path)
            about.type, about.linkname = tarfile.SYMTYPE, target
            archive.addfile(about)
