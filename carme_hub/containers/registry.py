"""The available container runtimes by name: those of Carme Hub, and those of entry points ``carme_hub.runtimes``.

docs/howto/add-a-container-runtime.md describes how to add one. Requests to an added runtime are checked as those to the
built-in ones, so that it only has to render its command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from carme_hub.entry_points import ExtensionPoint
from carme_hub.errors import ContainerError

from .apptainer import Apptainer
from .bubblewrap import Bubblewrap
from .charliecloud import Charliecloud
from .check import check
from .enroot import Enroot
from .images import FORMATS
from .podman import Podman
from .pyxis import Pyxis
from .runtime import ContainerRequest, Image, Plan, Runtime

RUNTIMES: Mapping[str, Runtime] = MappingProxyType(
    {each.name: each for each in (Bubblewrap(), Charliecloud(), Apptainer(), Enroot(), Pyxis(), Podman())}
)


_FORMS = {"dir": "a folder", "sqfs": "a squashfs file", "sif": "a SIF file", "ref": "a reference to a registry"}


def cannot_run(runtime: Runtime, image: Image) -> str:
    """Return why a runtime cannot run an image, as far as its form says; "" = it can."""
    name = runtime.name.capitalize() if runtime.name in RUNTIMES else runtime.name
    if image.format not in runtime.formats:
        forms = " or ".join(_FORMS[each] for each in _FORMS if each in runtime.formats)
        return f"{image.name} is {_FORMS[image.format]}; containers are started here by {name}, which takes {forms}."
    if image.base == "host" and runtime.name != Bubblewrap.name:
        return f"{image.name} has no system of its own, which {name}, by which containers are started here, needs."
    return ""


def cannot_build(runtime: Runtime) -> str:
    """Return why a job cannot build an image in a container of this runtime; "" = it can."""
    if runtime.name != Pyxis.name:
        return ""
    return (
        "Containers are started here by Pyxis, as steps of a job, and no image is built in such a step. Ask an "
        "administrator to add the image that you need (carme-hub image add)."
    )


def _is_runtime(thing: Any) -> bool:
    name, formats, render = (getattr(thing, attribute, None) for attribute in ("name", "formats", "render"))
    known = isinstance(formats, frozenset) and bool(formats) and formats <= frozenset(FORMATS)
    return isinstance(name, str) and known and callable(render)


POINT = ExtensionPoint(
    "carme_hub.runtimes",
    "SlurmContainerSpawner.container_runtime",
    f"a container runtime: an object with name, formats (a frozenset of {', '.join(FORMATS)}) and render(request)",
    _is_runtime,
    tuple(RUNTIMES),
)


class AddedRuntime:
    """A runtime of another package, which gets only requests for its formats.

    Args:
        name: of its entry point; messages use it.
    """

    def __init__(self, name: str, inner: Runtime) -> None:
        self.name, self.formats, self._inner = name, inner.formats, inner

    def render(self, request: ContainerRequest) -> Plan:
        """Check the request, and return the plan."""
        check(request)
        if request.image.format not in self.formats or request.image.base == "host":
            there = ", ".join(sorted(self.formats))
            raise ContainerError(f"{self.name} runs images of the format {there} that hold a whole system")
        plan = self._inner.render(request)
        if not isinstance(plan, Plan):
            raise ContainerError(f"{self.name} rendered a {type(plan).__name__} instead of a Plan; tell its author")
        return plan


def runtime(name: str, *, podman_engine: str = "", podman_device: str | None = None, parent: Any = None) -> Runtime:
    """Return the runtime of that name, Podman with the site's settings; ``ConfigError`` lists the available ones.

    Args:
        parent: the configurable object from which a runtime of another package gets its own settings.
    """
    if name == Podman.name and (podman_engine or podman_device is not None):
        made = Podman()
        return Podman(podman_engine or made.engine, made.device if podman_device is None else podman_device)
    return RUNTIMES[name] if name in RUNTIMES else AddedRuntime(name, POINT.load(name, parent))
