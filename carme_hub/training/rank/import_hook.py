"""Hooks for the import of a module in this process.

A rank does not import Horovod or MPI itself (imports take seconds and open ports), but has to change them before the
code that imports them continues.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Finder:
    """A finder, first on ``sys.meta_path``: the other finders find the module, and this one wraps its execution."""

    def __init__(self, name: str, run: Callable[[ModuleType, Callable[[ModuleType], None]], None]) -> None:
        self._name, self._run = name, run

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the hooked module; None for every other module."""
        if name != self._name:
            return None
        # Only the finders behind this one: two hooks for one module would ask each other for ever.
        for other in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(other, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                loader = spec.loader
                if loader is not None and hasattr(loader, "exec_module"):
                    loader.exec_module = partial(self._execute, loader.exec_module)  # type: ignore[method-assign]
                return spec
        return None

    def _execute(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        self._run(module, execute)


def wrap_import(name: str, run: Callable[[ModuleType, Callable[[ModuleType], None]], None]) -> None:
    """Have a function execute a module at its import: it gets the module, and the function that executes it."""
    sys.meta_path.insert(0, _Finder(name, run))


def after_import(name: str, do: Callable[[ModuleType], None]) -> None:
    """Have a function called with a module after its import."""

    def run(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
        execute(module)
        do(module)

    wrap_import(name, run)
