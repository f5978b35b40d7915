"""Keeps Horovod from opening a notification port in a run with a fixed number of ranks.

``@hvd.elastic.run`` starts a WorkerNotificationService in each rank: it listens on all addresses and unpickles what has
the right HMAC, whose key it PUTs to the rendezvous in the clear (horovod/runner/elastic/worker.py). Nothing sends
notifications in such a run, and the function works without the service. For elastic runs see ``elastic.horovod``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from carme_hub.training.rank.import_hook import after_import


def install() -> None:
    """Disable the service in this process; nothing happens where Horovod is not imported."""
    after_import("horovod.runner.elastic.worker", _disable_notifications)


def _disable_notifications(module: ModuleType) -> None:
    def init(self: Any, *_: object, **__: object) -> None:
        """Start no service."""

    module.WorkerNotificationManager.init = init
