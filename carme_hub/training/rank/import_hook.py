"""Something is done right after a module has been imported, in this process; where it never is, nothing is.

A rank imports nothing of Horovod or MPI by itself (seconds, and ports that they open), and yet has to have a word with
them before the code that imports them goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Finder:
    """First on ``sys.meta_path``: lets the others find the module, and comes back when it has been executed."""

    def __init__(self, name: str, run: Callable[[ModuleType, Callable[[ModuleType], None]], None]) -> None:
        self._name, self._run = name, run

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the others find; None for every other module."""
        if name != self._name:
            return None
        for other in sys.meta_path:
            find = None if other is self else getattr(other, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                loader = spec.loader
                if loader is not None and hasattr(loader, "exec_module"):
                    loader.exec_module = partial(self._execute, loader.exec_module)  # type: ignore[method-assign]
                return spec
        return None

    def _execute(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        self._run(module, execute)


def around(name: str, run: Callable[[ModuleType, Callable[[ModuleType], None]], None]) -> None:
    """Have a function execute a module when it is imported: it is given the module, and what executes it."""
    sys.meta_path.insert(0, _Finder(name, run))


def after(name: str, do: Callable[[ModuleType], None]) -> None:
    """Have a function look at a module when it has been imported."""

    def run(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
        execute(module)
        do(module)

    around(name, run)
