"""``torch.distributed.init_process_group()`` finds the other ranks by a file that only the user can open.

By default rank 0 would listen on a port and answer anybody who connects, without a secret (``TCPStore``). So ``env://``
gets another handler here: a ``FileStore`` in the run's folder (0700).
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, cast

_NAME = "torch.distributed.rendezvous"


def install(folder: Path, step: str) -> None:
    """Have ``env://`` use a folder; torch is imported only where the code needs it.

    Args:
        folder: shared by all ranks. step: name of the world; ranks with another name do not meet these.
    """
    count = itertools.count()

    def rendezvous(_url: str, timeout: Any = None, **_: Any) -> Iterator[tuple[Any, int, int]]:
        from torch.distributed import FileStore

        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        # A new world needs a new file: in the old one it would find the answers of the old world.
        store = FileStore(str(folder / f"store-{step}-{next(count)}"), size)
        if timeout is not None:
            store.set_timeout(timeout)
        yield store, rank, size
        raise RuntimeError("The ranks cannot meet again in the same world.")

    def change(module: ModuleType) -> None:
        module._rendezvous_handlers["env"] = rendezvous  # torch has no function to replace a handler

    if _NAME in sys.modules:
        change(sys.modules[_NAME])
    else:
        sys.meta_path.insert(0, _Finder(change))


class _Finder:
    """Changes one module at its import, then removes itself. No base class: ``importlib.abc`` takes long to import."""

    def __init__(self, change: Any) -> None:
        self._change = change

    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of the module, with a loader that changes it."""
        if name != _NAME:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = cast(Any, _Loader(spec.loader, self._change))
        return spec


class _Loader:
    def __init__(self, real: Any, change: Any) -> None:
        self._real, self._change = real, change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module by the original loader."""
        found: ModuleType | None = self._real.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, and change it."""
        self._real.exec_module(module)
        self._change(module)
