"""Lightning reports its steps, the loss and what the model logs (``self.log``).

Every Trainer gets a callback, as by Lightning's own entry point ``lightning.pytorch.callbacks_factory``
(lightning/pytorch/trainer/connectors/callback_connector.py), which needs the metadata of an installed package.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from carme_hub.training.rank.import_hook import after_import

from .report import report

#: The modules of both names under which Lightning comes, each with the module of its callbacks.
PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def install() -> None:
    """Give every Trainer of Lightning the callback."""
    for package in PACKAGES:
        after_import(f"{package}.trainer.connectors.callback_connector", _add)


def _add(module: ModuleType) -> None:
    """Have the module find our callback where it looks for those of other packages."""
    load = getattr(module, "_load_external_callbacks", None)
    if load is None:  # another version: a Trainer is as it always was
        return
    base = module.Callback

    class CarmeProgress(base):  # type: ignore[misc, valid-type]
        """Reports the steps of a Trainer."""

        def on_train_batch_end(self, trainer: Any, _module: Any, outputs: Any, *_: Any, **__: Any) -> None:
            """Report a batch; its loss, and what was logged, as often as Lightning itself logs."""
            batch = getattr(getattr(trainer, "train_dataloader", None), "batch_size", 0)
            # A loss on a GPU is read only when it is reported: that waits for the GPU.
            self._loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            logs = trainer.log_every_n_steps and trainer.global_step % trainer.log_every_n_steps == 0
            scalars = {"loss": self._loss, **trainer.logged_metrics} if logs else {}
            report(trainer.global_step, trainer.estimated_stepping_batches, batch, scalars)

        def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
            """Report what was logged for the epoch, of the validation too."""
            scalars = {"loss": getattr(self, "_loss", None), **trainer.logged_metrics}
            report(trainer.global_step, trainer.estimated_stepping_batches, 0, scalars)

    def with_ours(group: str) -> list[Any]:
        return [*load(group), CarmeProgress()]

    module._load_external_callbacks = with_ours  # type: ignore[attr-defined]
