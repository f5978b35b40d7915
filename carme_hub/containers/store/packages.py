"""What is inside an image, found by looking: packages of Python, conda and Debian with versions and licences.

Nothing of the image runs, no link is followed, and what is too long to be sensible is left out. An image's author can
write anything here: these texts describe an image, and decide nothing.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_SITE = re.compile(r"(?:site|dist)-packages")
_DIST_INFO = re.compile(r"(?P<name>[A-Za-z0-9._]+)-(?P<version>[^-]+)\.(?:dist-info|egg-info)")
_MAX_FILE, _MAX_PACKAGES, _MAX_TEXT = 32 << 20, 20_000, 100
#: Below these folders environments of Python are looked for.
_ROOTS = ("opt", "usr", "srv", "app", "workspace", "conda", "databricks", "home")
_MAX_FOLDERS = 200_000


@dataclass(slots=True)
class Contents:
    """Packages by name with their versions, by kind (python, conda, debian), and how many have each licence."""

    packages: dict[str, dict[str, str]] = field(default_factory=dict)
    licences: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, name: str, version: str, licence: str = "") -> None:
        """Record one package."""
        of_kind = self.packages.setdefault(kind, {})
        if len(of_kind) < _MAX_PACKAGES:
            of_kind.setdefault(_plain(name), _plain(version))
        if licence := _plain(licence):
            self.licences[licence] = self.licences.get(licence, 0) + 1


def look_inside(tree: Path) -> Contents:
    """Return what is inside a hardened tree."""
    found = Contents()
    for folder, names in _site_folders(tree):
        _python(folder, names, found)
    for entry in _conda_files(tree):
        text = _read(entry)
        try:
            value = json.loads(text)
            found.add("conda", value["name"], value["version"], value.get("license") or "")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    for paragraph in _read(tree / "var/lib/dpkg/status").split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in paragraph.split("\n") if not line.startswith(" "))
        if " installed" in fields.get("Status", "") and {"Package", "Version"} <= fields.keys():
            found.add("debian", fields["Package"], fields["Version"])
    return Contents(
        {kind: dict(sorted(names.items())) for kind, names in sorted(found.packages.items())},
        dict(sorted(found.licences.items(), key=lambda each: (-each[1], each[0]))[:50]),
    )


def difference(old: Mapping[str, Mapping[str, str]], new: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return what differs between the packages of two images, a line for each."""
    lines = []
    for kind in sorted({*old, *new}):
        before, after = old.get(kind, {}), new.get(kind, {})
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                lines.append(f"{kind} {name}: {before.get(name, 'not there')} -> {after.get(name, 'not there')}")
    return lines


def _site_folders(tree: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folders in which Python looks for packages, with the names in them."""
    visited, ahead = 0, [tree / name for name in _ROOTS]
    while ahead and visited < _MAX_FOLDERS:
        folder = ahead.pop()
        visited += 1
        try:
            if folder.is_symlink():
                continue
            with os.scandir(folder) as entries:
                below = [(each.name, each.is_dir(follow_symlinks=False)) for each in entries]
        except OSError:
            continue
        if _SITE.fullmatch(folder.name):
            yield folder, sorted(name for name, is_folder in below if is_folder)
            continue
        ahead += [folder / name for name, is_folder in below if is_folder and name not in ("proc", "sys", "share")]


def _python(folder: Path, names: list[str], found: Contents) -> None:
    for name in names:
        if (known := _DIST_INFO.fullmatch(name)) is None:
            continue
        head = _read(folder / name / "METADATA").partition("\n\n")[0]
        fields: dict[str, str] = {}
        for line in head.split("\n"):
            key, colon, value = line.partition(": ")
            if colon:
                fields.setdefault(key, value)
        licence = fields.get("License-Expression") or fields.get("License") or ""
        licence = "" if licence == "UNKNOWN" else licence
        package = re.sub(r"[-_.]+", "-", fields.get("Name") or known["name"]).lower()
        found.add("python", package, fields.get("Version") or known["version"], licence if len(licence) < 60 else "")


def _conda_files(tree: Path) -> Iterator[Path]:
    for prefix in ("opt/conda", "conda", "usr/local"):
        folder = tree / prefix / "conda-meta"
        if folder.is_symlink() or not folder.is_dir():
            continue
        yield from sorted(each for each in folder.iterdir() if each.suffix == ".json")


def _read(file: Path) -> str:
    """Return a file's text; "" where it is none, or too long."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as opened:
            state = os.fstat(opened.fileno())
            if not stat.S_ISREG(state.st_mode) or state.st_size > _MAX_FILE:
                return ""
            return opened.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _plain(text: object) -> str:
    """Return a text as one line without what a terminal would carry out."""
    return "".join(each for each in str(text) if each.isprintable())[:_MAX_TEXT].strip()
