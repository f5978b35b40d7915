"""Aliases for names that moved to another module in 0.2.0; a configuration that uses the old name gets a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any


def moved(package: str, **names: str) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``: ``moved(__name__, SlurmContainerSpawner="spawner")``.

    Args:
        package: its full name. names: the moved names, each with its present module in the package.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = f"{package}.{names[name]}"
        warnings.warn(f"{package}.{name} has moved: name {module}.{name}.", DeprecationWarning, stacklevel=2)
        return getattr(import_module(module), name)

    return find
