"""torch's elastic agent with places from the run's conductor. One agent, and one worker below it, for each worker.

The agent is that of torchrun (``LocalElasticAgent``): it starts the worker's process, looks after it, and starts it
anew when others come or go. What is ours is where agents meet (``RendezvousHandler``):

- Its own ``c10d`` rendezvous needs a TCPStore, which answers anybody who reaches the port, and which in torch 2.13 lets
  joiners wait for an address that rank 0 does not write again, until the whole run ends (facts: scale-up failed in 2 of
  2 tries). Here there is no such store: agents and workers share files in the run's folder, for one generation each.
- An agent that was killed is known from Slurm at once, and not from 15 seconds of silence.
- A worker that is given back ends well: its agent gets torch's ``RendezvousGracefulExitError``.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .membership import Place
from .rendezvous import Worker

#: Seconds between two questions for news, and for a worker to end by itself when it is to start anew.
INTERVAL, FAREWELL = 0.5, 10
#: How often a worker is started anew after an error. What is an error of the code is known to the conductor, which ends
#: the run; so this is no limit but for what it does not see.
RESTARTS = 1000


def store_of(folder: Path, generation: int) -> Path:
    """Return the folder of the files that one generation shares."""
    return folder / f"generation-{generation}"


def variables(place: Place) -> dict[str, str]:
    """Return what a worker's process is told besides torch's own words."""
    return {
        "CARME_RANK": str(place.rank),
        "CARME_SIZE": str(place.size),
        "CARME_GENERATION": str(place.generation),
    }


def run(worker: Worker, folder: Path, argv: Sequence[str]) -> int:
    """Be the agent of one worker until the training has ended or the worker is given back; return an exit status.

    Args:
        folder: of this run's shared files, which only the user can read. argv: of the worker's process.
    """
    os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"  # one each: nothing to be agreed upon through the store
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException

    spec = WorkerSpec(
        role="trainer",
        local_world_size=1,
        rdzv_handler=handler(worker, folder),
        entrypoint=argv[0],
        args=tuple(argv[1:]),
        max_restarts=RESTARTS,
        monitor_interval=0.1,
    )

    class Agent(LocalElasticAgent):  # type: ignore[misc]  # torch is not where this is checked
        """Does not wait for other agents at the end: one that was lost would be waited for in vain."""

        def _exit_barrier(self) -> None:
            pass  # that one of them has come to the end, the conductor tells all

    for name in ("agent.server.api", "multiprocessing.api"):  # they warn of signals that are the run's own doing
        logging.getLogger(f"torch.distributed.elastic.{name}").setLevel(logging.ERROR)
    agent = Agent(spec, DefaultLogsSpecs(log_dir=os.devnull), shutdown_timeout=FAREWELL)
    try:
        result = agent.run()  # None where it was told to go
    except SignalException as error:  # the run is stopped, and the agent has ended its worker
        return 128 + int(error.sigval)
    return int(result is not None and result.is_failed())


def handler(worker: Worker, folder: Path) -> Any:
    """Return where torch's agent meets others (``torch.distributed.elastic.rendezvous.RendezvousHandler``)."""
    from torch.distributed import FileStore
    from torch.distributed.elastic.rendezvous import (
        RendezvousGracefulExitError,
        RendezvousHandler,
        RendezvousInfo,
        RendezvousStoreInfo,
    )

    class Meeting(RendezvousHandler):  # type: ignore[misc]  # torch is not where this is checked
        """Asks the conductor."""

        def __init__(self) -> None:
            self._news, self._asking, self._closed = 0, threading.Event(), False
            threading.Thread(target=self._ask, name="carme-elastic-news", daemon=True).start()

        def _ask(self) -> None:
            while True:
                time.sleep(INTERVAL)
                self._news = worker.news() if self._asking.is_set() else 0

        def get_backend(self) -> str:
            return "carme"

        def get_run_id(self) -> str:
            return folder.name

        def next_rendezvous(self) -> RendezvousInfo:
            self._asking.clear()
            place = worker.wait()
            if place.rank < 0:
                raise RendezvousGracefulExitError(f"{worker.name} is not needed any more")
            where = store_of(folder, place.generation)
            where.mkdir(mode=0o700, parents=True, exist_ok=True)
            if place.rank == 0 and place.generation > 2:  # nobody is left of the one before the last
                shutil.rmtree(store_of(folder, place.generation - 2), ignore_errors=True)
            os.environ.update(variables(place))  # which the worker's process inherits
            self._news = 0
            self._asking.set()
            store = FileStore(str(where / "agents"), place.size)
            # Nobody listens there: workers meet by a file too, see ``torch_store``.
            return RendezvousInfo(store, place.rank, place.size, RendezvousStoreInfo(place.host or "localhost", 0))

        def num_nodes_waiting(self) -> int:
            return int(self._news > worker.place.generation)

        def is_closed(self) -> bool:
            return self._closed

        def set_closed(self) -> None:
            self._closed = True

        def shutdown(self) -> bool:
            return True

    return Meeting()
