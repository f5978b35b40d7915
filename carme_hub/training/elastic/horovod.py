"""Horovod's elastic training with places from the run's conductor. Runs in a worker, before Horovod is imported.

Horovod's own driver is not started (it unpickles what anybody sends it, CVE-2024-10190), and neither is the service
that each of its workers listens with. What there is instead:

- ``hvd.init()`` first waits for a place. All workers of a generation have been there when one is given, so none of them
  waits for others in Horovod's C++, where a missing one ends the process (an exception in its background thread).
- News come by asking once a second. They always say that workers were added *and* removed: where they were only
  removed Horovod leaves out ``state.sync()``, and its ElasticSampler goes on with the old number of workers and loses
  samples (tried with 0.28.1: 224 of 1,024 in one epoch).
- One name of a host for each worker, so a host's other workers are not shut out with one that failed.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from .membership import Place
from .rendezvous import Worker

#: Seconds between two questions for news.
INTERVAL = 1.0
#: Seconds after which Horovod takes a silent rank for lost. All are there when it starts, so this need not be long.
TIMEOUT = 15


def variables(worker: Worker, place: Place, interface: str = "") -> dict[str, str]:
    """Return what Horovod reads when it starts, and starts anew, as one worker of a generation.

    Args:
        interface: of the network between the nodes, "" = Horovod chooses.
    """
    said = {
        "HOROVOD_RANK": place.rank,
        "HOROVOD_SIZE": place.size,
        "HOROVOD_LOCAL_RANK": 0,
        "HOROVOD_LOCAL_SIZE": 1,
        "HOROVOD_CROSS_RANK": place.rank,
        "HOROVOD_CROSS_SIZE": place.size,
        "HOROVOD_HOSTNAME": worker.name,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_ELASTIC": 1,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": worker.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": worker.port,
        "RANK": place.rank,
        "WORLD_SIZE": place.size,
        "CARME_RANK": place.rank,
        "CARME_SIZE": place.size,
    }
    found = {name: str(value) for name, value in said.items()}
    # Each connects to each other one first, so many of them need a little longer.
    found["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(max(TIMEOUT, place.size // 2))
    return found | ({"HOROVOD_GLOO_IFACE": interface} if interface else {})


def install(worker: Worker, interface: str = "") -> None:
    """Have Horovod ask this worker's conductor, in this process and from now on.

    Raises:
        ImportError: there is no Horovod here.
    """
    from horovod.common.basics import HorovodBasics

    stock = HorovodBasics.init

    def init(self: Any, comm: Any = None, process_sets: Any = None) -> Any:
        if not self.is_initialized():
            place = worker.wait()
            if place.rank < 0:
                raise SystemExit(0)  # given back, or the others have ended the training
            os.environ.update(variables(worker, place, interface))
        return stock(self, comm, process_sets)

    HorovodBasics.init = init
    from horovod.common import elastic
    from horovod.runner.elastic.worker import HostUpdateResult

    manager = elastic.notification_manager
    manager._service = worker  # so that none is started

    def ask() -> None:
        while True:
            time.sleep(INTERVAL)
            if number := worker.news():
                for listener in tuple(manager._listeners):
                    listener.on_hosts_updated(number, HostUpdateResult.mixed)

    threading.Thread(target=ask, name="carme-elastic-news", daemon=True).start()
