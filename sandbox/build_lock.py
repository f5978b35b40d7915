"""A lock for what is built once and kept: two sandboxes may want the same at once."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(cache: Path, name: str = "") -> Iterator[None]:
    """Let only one process at a time build a thing in a cache folder; the others wait."""
    with (cache / f".lock{name and '-'}{name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
