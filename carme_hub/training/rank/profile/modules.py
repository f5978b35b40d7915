"""Marks the forward pass of each module in a profile, by the module's name in the network.

The marks are also in the trace, where they group the operators of a layer. Modules in a compiled network have
none.
"""

from __future__ import annotations

import threading
import warnings
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

#: How the name of a mark begins.
PREFIX = "module: "


class ModuleMarks:
    """Marks all modules of this process, from ``install`` to ``remove``."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._hooks: list[Any] = []
        self._open = threading.local()  # what torch calls in threads of its own has marks of its own

    def install(self) -> None:
        """Begin."""
        # torch.compile traces hooks as a part of the network: what it traces must do nothing.
        is_compiling = getattr(self._torch.compiler, "is_compiling", None)
        if is_compiling is None:  # torch before 2.3
            return
        # It also warns the user of hooks, and these are ours.
        warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")

        def enter(module: Any, _: Any) -> None:
            if not is_compiling():
                self._enter(module)

        def leave(*_: Any) -> None:
            if not is_compiling():
                self._leave()

        module = self._torch.nn.modules.module
        self._hooks = [
            module.register_module_forward_pre_hook(enter),
            module.register_module_forward_hook(leave, always_call=True),
        ]

    def remove(self) -> None:
        """End."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _enter(self, module: Any) -> None:
        marks = self._open.__dict__.setdefault("marks", [])
        if not marks and module not in self._names:  # the whole network, or a loss
            for name, part in module.named_modules():
                self._names.setdefault(part, name)
        kind = type(module).__name__
        name = self._names.get(module) or kind
        mark = self._torch.profiler.record_function(f"{PREFIX}{name}" + (f" ({kind})" if name != kind else ""))
        mark.__enter__()
        marks.append(mark)

    def _leave(self) -> None:
        if marks := self._open.__dict__.get("marks"):
            marks.pop().__exit__(None, None, None)
