"""Horovod's elastic training, with ranks assigned by the conductor. Runs in a worker, before Horovod is imported.

Horovod's driver is not started (it unpickles what anybody sends, CVE-2024-10190), nor is the service on which each of
its workers listens. Instead:

- ``hvd.init()`` first waits for an assignment. A generation is formed only when all of its workers have arrived, so no
  worker waits for others in Horovod's C++, where a missing one ends the process (an exception in its background
  thread).
- Each worker asks once a second whether workers changed. The answer always reports added *and* removed workers: after a
  mere removal Horovod skips ``state.sync()``, and its ElasticSampler continues with the old number of workers and loses
  samples (tried with 0.28.1: 224 of 1,024 in one epoch).
- Each worker has a host name of its own, because Horovod excludes the whole host of a failed worker.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from .membership import Assignment
from .rendezvous import WorkerClient

#: Seconds between two questions for changes.
POLL_INTERVAL = 1.0
#: Seconds after which Horovod takes a silent rank for lost; short, since all ranks have arrived before it starts.
SILENCE_TIMEOUT = 15


def environ_of(worker: WorkerClient, assignment: Assignment, interface: str = "") -> dict[str, str]:
    """Return the variables that Horovod reads when it starts or restarts as a worker of a generation.

    Args:
        interface: of the network between the nodes, "" = Horovod chooses.
    """
    values = {
        "HOROVOD_RANK": assignment.rank,
        "HOROVOD_SIZE": assignment.size,
        "HOROVOD_LOCAL_RANK": 0,
        "HOROVOD_LOCAL_SIZE": 1,
        "HOROVOD_CROSS_RANK": assignment.rank,
        "HOROVOD_CROSS_SIZE": assignment.size,
        "HOROVOD_HOSTNAME": worker.name,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_ELASTIC": 1,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": worker.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": worker.port,
        "RANK": assignment.rank,
        "WORLD_SIZE": assignment.size,
        "CARME_RANK": assignment.rank,
        "CARME_SIZE": assignment.size,
    }
    found = {name: str(value) for name, value in values.items()}
    # At first every rank connects to every other one, so large runs need more time.
    found["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(max(SILENCE_TIMEOUT, assignment.size // 2))
    return found | ({"HOROVOD_GLOO_IFACE": interface} if interface else {})


def install(worker: WorkerClient, interface: str = "") -> None:
    """Have Horovod in this process use the conductor.

    Raises:
        ImportError: Horovod is not installed.
    """
    from horovod.common.basics import HorovodBasics

    stock = HorovodBasics.init

    def init(self: Any, comm: Any = None, process_sets: Any = None) -> Any:
        if not self.is_initialized():
            assignment = worker.wait()
            if assignment.rank < 0:
                raise SystemExit(0)  # released, or the training is over
            os.environ.update(environ_of(worker, assignment, interface))
        return stock(self, comm, process_sets)

    HorovodBasics.init = init
    from horovod.common import elastic
    from horovod.runner.elastic.worker import HostUpdateResult

    manager = elastic.notification_manager
    manager._service = worker  # so that Horovod starts none

    def ask() -> None:
        while True:
            time.sleep(POLL_INTERVAL)
            if number := worker.next_generation():
                for listener in tuple(manager._listeners):
                    listener.on_hosts_updated(number, HostUpdateResult.mixed)

    threading.Thread(target=ask, name="carme-elastic-news", daemon=True).start()
