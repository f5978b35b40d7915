"""Templates of other packages in the user's environment, from the entry points ``carme_hub.training_templates``.

The entry point's name is the name of the template; its value is the module that is the script. The module's file is
found and read, but not imported. No setting is needed: a template is offered if its package is installed, and does
nothing until a user runs it. A broken template is listed with its error, and the others are not affected. This module
imports nothing of the hub, which is not installed in a session. docs/howto/add-a-training-template.md describes how to
add a template.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path

GROUP = "carme_hub.training_templates"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


@dataclass(frozen=True, slots=True)
class InstalledScript:
    """The script of a template's entry point, or what is wrong and what to do.

    ``package`` is "package NAME VERSION"; several of them joined by "and" if more than one package has the name.
    """

    name: str
    package: str
    script: Path | None = None
    wrong: str = ""


def installed_scripts(taken: Collection[str]) -> list[InstalledScript]:
    """Return the scripts of all entry points, sorted by name, one for each name.

    Args:
        taken: names of the built-in templates, which no package may use.
    """
    named: dict[str, list[EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        named.setdefault(point.name, []).append(point)
    found = []
    for name, points in sorted(named.items()):
        package = " and ".join(sorted(_package(point) for point in points))
        script = None
        if name in taken:
            wrong = "Carme Hub has a template of this name. Tell the package's author."
        elif not _NAME.fullmatch(name):
            wrong = "Its name must have only lower-case letters, digits and hyphens. Tell the package's author."
        elif len(points) > 1:
            wrong = "More than one package has it. Uninstall all but one."
        else:
            script, wrong = _script(points[0].value)
        found.append(InstalledScript(name, package, script, wrong))
    return found


def _script(module: str) -> tuple[Path | None, str]:
    """Return the file of a module, or None and what is wrong."""
    try:
        found = find_spec(module)
    except Exception as error:  # noqa: BLE001  the parent packages are imported, which may raise anything
        return None, f"{module} cannot be found: {type(error).__name__}: {error}."
    if found is None or not found.origin or not found.origin.endswith(".py") or not Path(found.origin).is_file():
        return None, f"{module} is not a Python file. Tell the package's author."
    return Path(found.origin), ""


def _package(point: EntryPoint) -> str:
    return f"package {point.dist.name} {point.dist.version}" if point.dist is not None else "a package"
