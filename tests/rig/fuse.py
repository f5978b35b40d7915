"""/dev/fuse as a node has it: open to users, as Debian's udev makes it, or closed; it is as before afterwards."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEVICE = Path("/dev/fuse")


@contextmanager
def fuse(*, open_to_users: bool) -> Iterator[None]:
    """Have the device so; the machine's nodes have the one of the machine."""
    before = stat.S_IMODE(DEVICE.stat().st_mode)
    DEVICE.chmod(0o666 if open_to_users else 0o600)
    try:
        yield
    finally:
        DEVICE.chmod(before)


def mounts_below(folder: Path) -> list[str]:
    """Return what is mounted below a folder on this machine."""
    rows = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [place for place in rows if place.startswith(f"{folder}/")]
