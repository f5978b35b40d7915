"""Who started this process, looked at before anything that takes long is imported: the hub.

A hub that is killed while its service is still being imported leaves it to init, and so does one that was killed before
that. Init is the hub only where that runs as the first process of a container.
"""

from __future__ import annotations

import os
from pathlib import Path

HUB = os.getppid()


def is_gone(hub: int = HUB, init: Path = Path("/proc/1/cmdline")) -> bool:
    """Return whether the hub that started this process is gone."""
    if os.getppid() != hub:
        return True
    try:
        return hub == 1 and b"jupyterhub" not in init.read_bytes()
    except OSError:
        return False  # not known: the next hub's service waits for the port, and says so
