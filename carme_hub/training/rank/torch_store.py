"""``torch.distributed.init_process_group()`` finds the other ranks by a file that only the user can open.

What it does by itself is to listen on a port of rank 0 and to hand out and take whatever anybody asks for and sends
there, without a secret (``TCPStore``). So ``env://`` is another way here: a ``FileStore`` in the run's folder (0700).
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
    """Have ``env://`` meet in a folder, from now on; torch is imported by whoever needs it.

    Args:
        folder: that all ranks share. step: name of the world; ranks of another one do not meet these.
    """
    count = itertools.count()

    def rendezvous(_url: str, timeout: Any = None, **_: Any) -> Iterator[tuple[Any, int, int]]:
        from torch.distributed import FileStore

        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        # A world that is made anew has a file of its own: in the old one the answers of the old world would be found.
        store = FileStore(str(folder / f"store-{step}-{next(count)}"), size)
        if timeout is not None:
            store.set_timeout(timeout)
        yield store, rank, size
        raise RuntimeError("The ranks cannot meet anew in the same world.")

    def change(module: ModuleType) -> None:
        module._rendezvous_handlers["env"] = rendezvous  # it has no way to replace one

    if _NAME in sys.modules:
        change(sys.modules[_NAME])
    else:
        sys.meta_path.insert(0, _Finder(change))


class _Finder:
    """Changes one module when it is imported, and is gone then. Of no base: ``importlib.abc`` takes long to import."""

    def __init__(self, change: Any) -> None:
        self._change = change

    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the real one's place, with a loader that changes it."""
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
        """Leave it to the real one."""
        found: ModuleType | None = self._real.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, and change it."""
        self._real.exec_module(module)
        self._change(module)
