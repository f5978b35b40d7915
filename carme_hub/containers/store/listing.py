"""The listing of an image: each folder, link and file with mode, size and SHA-256; its digest; what differs from it.

One JSON array for each entry, sorted: ``["usr", "d", 493]``, ``["bin", "l", "usr/bin"]``, ``["usr/bin/su", "f", 493,
11, "HEX"]``; names that are no UTF-8 have surrogates. Kept gzipped beside the image, for ``image check``.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carme_hub.errors import ContainerError

from .folder import LISTING, OWN_FILES

Entry = list[Any]


@dataclass(frozen=True, slots=True)
class Listed:
    """``digest`` of the listing; ``files``: how many entries it has; ``size``: bytes of all files."""

    digest: str
    files: int
    size: int


def entries(tree: Path) -> Iterator[Entry]:
    """Yield the entries of a tree, without the store's own files at its top. Nothing is followed."""
    ahead = [""]
    while ahead:
        folder = ahead.pop()
        names = sorted(os.listdir(os.path.join(tree, folder)))  # noqa: PTH118, PTH208  names may be no UTF-8
        below = []
        for name in names:
            if not folder and name in OWN_FILES:
                continue
            path = f"{folder}/{name}" if folder else name
            full = os.path.join(tree, path)  # noqa: PTH118
            state = os.lstat(full)
            mode = stat.S_IMODE(state.st_mode)
            if stat.S_ISDIR(state.st_mode):
                yield [path, "d", mode]
                below.append(path)
            elif stat.S_ISLNK(state.st_mode):
                yield [path, "l", os.readlink(full)]  # noqa: PTH115
            elif stat.S_ISREG(state.st_mode):
                yield [path, "f", mode, state.st_size, _sha256(full)]
            else:
                yield [path, "other", mode]
        ahead += reversed(below)


def tree_digest(tree: Path) -> str:
    """Return the digest of what is in a tree: the same for the same names, kinds, modes and contents."""
    found = hashlib.sha256()
    for entry in entries(tree):
        found.update(_line(entry))
    return f"sha256:{found.hexdigest()}"


def write_listing(tree: Path) -> Listed:
    """Write the listing of a tree into it."""
    found, files, size = hashlib.sha256(), 0, 0
    with gzip.GzipFile(tree / LISTING, "wb", compresslevel=3, mtime=0) as out:
        for entry in entries(tree):
            line = _line(entry)
            out.write(line)
            found.update(line)
            files += 1
            size += entry[3] if entry[1] == "f" else 0
    (tree / LISTING).chmod(0o644)
    return Listed(f"sha256:{found.hexdigest()}", files, size)


def read_listing(image: Path) -> Iterator[Entry]:
    """Yield the entries of an image's listing.

    Raises:
        ContainerError: it cannot be read.
    """
    try:
        with gzip.open(image / LISTING, "rb") as file:
            for line in file:
                yield json.loads(line)
    except (OSError, EOFError, ValueError) as error:
        raise ContainerError(f"the listing {image / LISTING} cannot be read: {error}") from error


def listing_digest(image: Path) -> str:
    """Return the digest of an image's listing as it is now."""
    found = hashlib.sha256()
    for entry in read_listing(image):
        found.update(_line(entry))
    return f"sha256:{found.hexdigest()}"


def differences(image: Path, tree: Path) -> Iterator[str]:
    """Yield what differs between a tree and the listing of its image, a line for each entry."""
    ours = {entry[0]: entry for entry in read_listing(image)}
    for entry in entries(tree):
        listed = ours.pop(entry[0], None)
        name = ascii(entry[0])
        if listed is None:
            yield f"{name} is not of the image"
        elif listed[1] != entry[1]:
            yield f"{name} is of another kind"
        elif entry[1] == "f" and listed[3:] != entry[3:]:
            yield f"{name} has another content"
        elif listed != entry:
            yield f"{name} has another {'target' if entry[1] == 'l' else 'mode'}"
    for path in ours:
        yield f"{path!a} is missing"


def file_digest(file: Path) -> str:
    """Return the digest of a file; "" where there is none."""
    try:
        return f"sha256:{_sha256(os.fspath(file))}"
    except FileNotFoundError:
        return ""


def _line(entry: Entry) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode("ascii") + b"\n"


def _sha256(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
