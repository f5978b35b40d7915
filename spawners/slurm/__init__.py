"""SlurmContainerSpawner: a server is a session, and a session is one Slurm job."""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    """Return what was here before 0.2.0; configurations may still name it."""
    if name == "SlurmContainerSpawner":
        from carme_hub.spawners.slurm.spawner import SlurmContainerSpawner

        warnings.warn(
            "carme_hub.spawners.slurm.SlurmContainerSpawner has moved: name carme-slurm, or "
            "carme_hub.spawners.slurm.spawner.SlurmContainerSpawner.",
            DeprecationWarning,
            stacklevel=2,
        )
        return SlurmContainerSpawner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
