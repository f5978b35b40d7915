"""A user's own wheels, and a pip that looks for packages nowhere else: what a session installs without a network."""

from __future__ import annotations

import os
import pwd
import zipfile
from pathlib import Path


class UserWheels:
    """A folder of wheels in the home of a user, and the user's settings of pip, which name it."""

    def __init__(self, user: str = "alice") -> None:
        entry = pwd.getpwnam(user)
        self.home, self.owner = Path(entry.pw_dir), (entry.pw_uid, entry.pw_gid)
        self.put(".config/pip/pip.conf", f"[global]\nno-index = true\nfind-links = {self.home}/wheels\n")

    def put(self, name: str, text: str = "") -> Path:
        """Write a file of the user's."""
        path = self.home / name
        made = [each for each in (path.parent, *path.parent.parents) if not each.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for each in (path, *made):
            os.chown(each, *self.owner)
        return path

    def add(self, name: str, version: str) -> None:
        """Write a wheel with one module, which knows its version."""
        info = f"{name}-{version}.dist-info"
        files = {
            f"{name}.py": f"VERSION = {version!r}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        }
        with zipfile.ZipFile(self.put(f"wheels/{name}-{version}-py3-none-any.whl"), "w") as file:
            for each, text in files.items():
                file.writestr(each, text)
            file.writestr(f"{info}/RECORD", "".join(f"{each},,\n" for each in (*files, f"{info}/RECORD")))
