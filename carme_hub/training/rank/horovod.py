"""In a run with a fixed number of ranks Horovod opens no port for news of other hosts, which nobody would send.

``@hvd.elastic.run`` starts a WorkerNotificationService in each rank: it listens on all addresses and unpickles what has
the right HMAC, whose key it PUTs to the rendezvous in the clear (horovod/runner/elastic/worker.py). The function runs
without it as before, for as many ranks as there are. In an elastic run ``elastic.horovod`` sees to the same.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .import_hook import after


def install() -> None:
    """Have Horovod start none in this process, from now on; costs nothing where it is not imported."""
    after("horovod.runner.elastic.worker", _silence)


def _silence(module: ModuleType) -> None:
    def init(self: Any, *_: object, **__: object) -> None:
        """Listen nowhere."""

    module.WorkerNotificationManager.init = init
