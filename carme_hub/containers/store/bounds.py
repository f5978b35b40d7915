"""Bounds of an image that is added: bytes, files, time, depth; and how much of them a tree has used."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from carme_hub.errors import ContainerError

#: Folders inside folders. The deepest trees that people have (node_modules) have forty.
MAX_DEPTH = 200
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an image may take: ``size_bytes`` for its layers and again for its tree, ``files`` with folders and links.

    ``files`` counts what the store adds, too, and is as many as nodes copy (``node-images.conf``).
    ``seconds``: of the whole work, from the moment at which this is made.
    """

    size_bytes: int = 64 * GIB
    files: int = 2_000_000
    seconds: float = 7200.0
    began: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        """Return the seconds that are left.

        Raises:
            ContainerError: none is.
        """
        left = self.began + self.seconds - time.monotonic()
        if left <= 0:
            raise ContainerError(f"it took more than {self.seconds / 60:g} minutes; --max-minutes allows more")
        return left

    def check_files(self, files: int) -> None:
        """Refuse more files than allowed."""
        if files > self.files:
            raise ContainerError(f"the image has more than {self.files} files; --max-files allows more")

    def check_size(self, size: int, what: str) -> None:
        """Refuse more bytes than allowed."""
        if size > self.size_bytes:
            raise ContainerError(f"{what} has more than {self.size_bytes / GIB:g} GiB; --max-gib allows more")

    def check_tree(self, tree: Path) -> tuple[int, int]:
        """Return the bytes and the number of files of a tree; refuse one that is larger, or deeper than sensible.

        A file counts with its length, also where it has holes: it is read as a whole later.
        """
        size = files = 0
        seen: set[tuple[int, int]] = set()
        ahead = [(os.fspath(tree), 0)]
        while ahead:
            folder, depth = ahead.pop()
            if depth > MAX_DEPTH:
                raise ContainerError(f"the image has folders more than {MAX_DEPTH} deep")
            try:
                entries = list(os.scandir(folder))
            except (FileNotFoundError, NotADirectoryError):
                continue  # it is being unpacked
            except OSError as error:
                raise ContainerError(f"a folder of the image cannot be read: {error.strerror}") from error
            for entry in entries:
                try:
                    state = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                files += 1
                if entry.is_dir(follow_symlinks=False):
                    ahead.append((entry.path, depth + 1))
                elif state.st_nlink == 1 or (key := (state.st_dev, state.st_ino)) not in seen:
                    size += max(state.st_size, 512 * state.st_blocks)
                    if state.st_nlink > 1:
                        seen.add(key)
            self.check_files(files)
            self.check_size(size, "the image, unpacked,")
        return size, files
