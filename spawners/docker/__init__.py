"""CarmeDockerSpawner: a server is a session, and a session is one container of one Docker engine."""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    """Return what was here before 0.2.0; configurations may still name it."""
    if name == "CarmeDockerSpawner":
        from carme_hub.spawners.docker.spawner import CarmeDockerSpawner

        warnings.warn(
            "carme_hub.spawners.docker.CarmeDockerSpawner has moved: name carme-docker, or "
            "carme_hub.spawners.docker.spawner.CarmeDockerSpawner.",
            DeprecationWarning,
            stacklevel=2,
        )
        return CarmeDockerSpawner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
