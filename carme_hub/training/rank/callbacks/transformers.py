"""transformers' Trainer reports its steps and what it logs: the loss, the learning rate, the evaluation.

Every Trainer gets a callback, by the list of those that it has without being asked (transformers/trainer.py).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from carme_hub.training.rank.import_hook import after_import

from .report import report


def install() -> None:
    """Give every Trainer of transformers the callback."""
    after_import("transformers.trainer", _add)


def _add(module: ModuleType) -> None:
    callbacks, base = getattr(module, "DEFAULT_CALLBACKS", None), getattr(module, "TrainerCallback", None)
    if not isinstance(callbacks, list) or base is None:  # another version: a Trainer is as it always was
        return

    class CarmeProgress(base):  # type: ignore[misc, valid-type]
        """Reports the steps of a Trainer."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  of the Trainer
            """Report a step of the optimizer."""
            samples = args.per_device_train_batch_size * args.gradient_accumulation_steps
            report(state.global_step, state.max_steps, samples)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
            """Report what is logged."""
            report(state.global_step, state.max_steps, 0, logs or {})

    callbacks.append(CarmeProgress)
