"""The collector of cyclic garbage rests while a rank imports torch.

An import makes hundreds of thousands of objects that stay. The collector walks through them again and again and frees
nothing: a fifth of the two seconds of processor time that ``import torch`` takes, and ``torch._dynamo``, which torch
imports with the first optimizer.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import ModuleType

from .import_hook import around

#: Each of them imports a thousand others.
LARGE = ("torch", "torch._dynamo")


def install() -> None:
    """Let it rest during these imports in this process, from now on; costs nothing where they are not imported."""
    for name in LARGE:
        around(name, _rest)


def _rest(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    was_on = gc.isenabled()
    gc.disable()
    try:
        execute(module)
    finally:
        if was_on:
            gc.enable()
