"""The available container runtimes by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from carme_hub.errors import ConfigError

from .apptainer import Apptainer
from .bubblewrap import Bubblewrap
from .charliecloud import Charliecloud
from .enroot import Enroot
from .podman import Podman
from .pyxis import Pyxis
from .runtime import Runtime

RUNTIMES: Mapping[str, Runtime] = MappingProxyType(
    {each.name: each for each in (Bubblewrap(), Charliecloud(), Apptainer(), Enroot(), Pyxis(), Podman())}
)


def runtime(name: str, *, podman_engine: str = "", podman_device: str | None = None) -> Runtime:
    """Return the runtime of that name, Podman with the site's settings; ``ConfigError`` lists the available ones."""
    if name == Podman.name and (podman_engine or podman_device is not None):
        made = Podman()
        return Podman(podman_engine or made.engine, made.device if podman_device is None else podman_device)
    try:
        return RUNTIMES[name]
    except KeyError as error:
        raise ConfigError(f"there is no container runtime {name!r}; choose one of: {', '.join(RUNTIMES)}") from error
