"""The process that started this service, which is the hub; a service imports this module before all others.

The parent's id is read at the import, before slow imports follow. When a hub is killed during them, or before, init
becomes the parent of the service. Init is the hub only if the hub is the first process of a container.
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
        return False  # unknown: the next hub's service waits for the port and logs that
