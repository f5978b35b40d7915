"""Disables cyclic garbage collection while a rank imports torch.

The import creates hundreds of thousands of objects that stay. The collector would walk through them again and again and
free nothing: a fifth of the two seconds of processor time that ``import torch`` takes. The same holds for
``torch._dynamo``, which torch imports with the first optimizer.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import ModuleType

from .import_hook import wrap_import

#: Each of these modules imports a thousand others.
LARGE_MODULES = ("torch", "torch._dynamo")


def install() -> None:
    """Disable collection during these imports in this process; nothing happens where they are not imported."""
    for name in LARGE_MODULES:
        wrap_import(name, _execute_without_gc)


def _execute_without_gc(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    was_on = gc.isenabled()
    gc.disable()
    try:
        execute(module)
    finally:
        if was_on:
            gc.enable()
