"""Prometheus and its promtool: those of this machine, or by night those of Debian's package, which is not installed."""

from __future__ import annotations

import atexit
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

from rig.nightly import NIGHTLY


@lru_cache(maxsize=1)
def prometheus_tools() -> dict[str, str]:
    """Return the paths of ``prometheus`` and ``promtool``; {} where they are not, by day."""
    names = ("prometheus", "promtool")
    found = {name: path for name in names if (path := shutil.which(name))}
    if len(found) == len(names) or not NIGHTLY:
        return found if len(found) == len(names) else {}
    folder = Path(mkdtemp(prefix="carme-prometheus-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, check=True, capture_output=True, timeout=300)
    (package,) = folder.glob("*.deb")
    subprocess.run(["dpkg", "-x", package, folder], check=True, timeout=300)
    package.unlink()
    return {name: str(folder / "usr/bin" / name) for name in names}
