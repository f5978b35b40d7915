"""Names that stood in a package before 0.2.0 and have moved: configurations may still name them, and are warned."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any


def moved(package: str, **names: str) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``: ``moved(__name__, SlurmContainerSpawner="spawner")``.

    Args:
        package: its full name. names: what has moved, and into which of its modules.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = f"{package}.{names[name]}"
        warnings.warn(f"{package}.{name} has moved: name {module}.{name}.", DeprecationWarning, stacklevel=2)
        return getattr(import_module(module), name)

    return find
