"""Templates that other packages of the user's environment add, by entry points named ``carme_hub.training_templates``.

The entry point's name is the template's, and its value is the module that is the script: it is found and read, and not
run. So it needs no setting: a template is offered where its package is installed, and does nothing until a user runs
it. What is wrong with one is said in its place, and takes nothing from the others. This module imports nothing of the
hub, which is not where a session runs; how one is added is in docs/howto/add-a-training-template.md.
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
    """What an entry point leads to: the script of a template, or what is wrong and what to do.

    ``package`` is which package it is of, "package NAME VERSION"; or packages, where several have the name.
    """

    name: str
    package: str
    script: Path | None = None
    wrong: str = ""


def installed_scripts(taken: Collection[str]) -> list[InstalledScript]:
    """Return what there is by name, one for each name.

    Args:
        taken: names that no package may use, since Carme Hub has templates of these names.
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
            wrong = "Its name must have small letters, digits and hyphens. Tell the package's author."
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
    except Exception as error:  # noqa: BLE001  the packages around it are imported, and may fail in any way
        return None, f"{module} cannot be found: {type(error).__name__}: {error}."
    if found is None or not found.origin or not found.origin.endswith(".py") or not Path(found.origin).is_file():
        return None, f"{module} is no Python file. Tell the package's author."
    return Path(found.origin), ""


def _package(point: EntryPoint) -> str:
    return f"package {point.dist.name} {point.dist.version}" if point.dist is not None else "a package"
