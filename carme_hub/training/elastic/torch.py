"""torch's elastic agent, with ranks assigned by the conductor. Each worker has one agent and one process below it.

The agent is that of torchrun (``LocalElasticAgent``): it starts the worker's process, watches it, and restarts it when
other workers come or go. Only the rendezvous differs (``RendezvousHandler``):

- torch's ``c10d`` rendezvous needs a TCPStore, which answers anybody who reaches its port; in torch 2.13 joining agents
  wait for an address that rank 0 does not write again, until the whole run ends (adding workers failed in 2 of 2
  tries).
  Here there is no such store: agents and workers share files in the run's folder, separate ones for each generation.
- Slurm reports a killed agent at once; torch would need 15 seconds of silence.
- A worker that is given back ends with success: its agent gets torch's ``RendezvousGracefulExitError``.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .membership import Assignment
from .rendezvous import WorkerClient

#: Seconds between two questions for changes, and for a worker's process to end before it is restarted.
POLL_INTERVAL, SHUTDOWN_TIMEOUT = 0.5, 10
#: Signals that end an agent and its worker, as torch has them.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
#: Restarts after an error. The conductor sees an error of the code and ends the run, so this is only the last limit.
MAX_RESTARTS = 1000


def generation_folder(folder: Path, generation: int) -> Path:
    """Return the folder of the files that the workers of one generation share."""
    return folder / f"generation-{generation}"


def environ_of(assignment: Assignment) -> dict[str, str]:
    """Return the variables of a worker's process besides torch's own."""
    return {
        "CARME_RANK": str(assignment.rank),
        "CARME_SIZE": str(assignment.size),
        "CARME_GENERATION": str(assignment.generation),
    }


def run(worker: WorkerClient, number: int, folder: Path, argv: Sequence[str]) -> int:
    """Run the agent of one worker until the training has ended or the worker is released; return an exit status.

    Args:
        number: of the worker. folder: of this run's shared files, which only the user can read.
        argv: of the worker's process.
    """
    os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"  # one worker each: the agents have nothing to agree on
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException

    spec = WorkerSpec(
        role="trainer",
        local_world_size=1,
        rdzv_handler=rendezvous_handler(worker, folder),
        entrypoint=argv[0],
        args=tuple(argv[1:]),
        max_restarts=MAX_RESTARTS,
        monitor_interval=0.1,
    )

    received: list[int] = []

    def stop(number: int, _frame: object) -> None:
        received.append(number)
        stop_if_received()

    def stop_if_received() -> None:
        # torch catches the exception of a signal that comes while it closes a worker, and would start another one.
        if received:
            raise SignalException(f"signal {received[0]}", sigval=signal.Signals(received[0]))

    class Agent(LocalElasticAgent):  # type: ignore[misc]  # torch is not where this is checked
        """Reports a process that ended, and does not wait for other agents, which would wait in vain for a lost one."""

        def _rendezvous(self, group: Any) -> None:
            stop_if_received()
            super()._rendezvous(group)

        def _start_workers(self, group: Any) -> Any:
            started = super()._start_workers(group)
            for number in STOPPING:  # torch has just set its own handler
                signal.signal(number, stop)
            return started

        def _monitor_workers(self, group: Any) -> Any:
            found = super()._monitor_workers(group)
            stop_if_received()  # before a death is reported that the signal has caused
            if found.is_failed() and found.failures:
                worker.report_death(number, next(iter(found.failures.values())).exitcode)
            return found

        def _exit_barrier(self) -> None:
            pass  # the conductor tells all agents when a worker has finished

    # They tell of signals that the run itself sends, and of exits that the conductor reports.
    for name in ("agent.server.api", "multiprocessing.api", "multiprocessing.tail_log"):
        logging.getLogger(f"torch.distributed.elastic.{name}").setLevel(logging.CRITICAL)
    agent = Agent(spec, DefaultLogsSpecs(log_dir=os.devnull), shutdown_timeout=SHUTDOWN_TIMEOUT)
    try:
        result = agent.run()  # None where the worker was released
    except SignalException as error:  # the run was stopped, and the agent has ended its worker
        return 128 + int(error.sigval)
    return int(result is not None and result.is_failed())


def rendezvous_handler(worker: WorkerClient, folder: Path) -> Any:
    """Return the ``torch.distributed.elastic.rendezvous.RendezvousHandler`` of an agent."""
    from torch.distributed import FileStore
    from torch.distributed.elastic.rendezvous import (
        RendezvousGracefulExitError,
        RendezvousHandler,
        RendezvousInfo,
        RendezvousStoreInfo,
    )

    class ConductorRendezvousHandler(RendezvousHandler):  # type: ignore[misc]  # torch is not where this is checked
        """A rendezvous by requests to the conductor."""

        def __init__(self) -> None:
            self._next_generation, self._asking, self._closed = 0, threading.Event(), False
            threading.Thread(target=self._ask, name="carme-elastic-news", daemon=True).start()

        def _ask(self) -> None:
            while True:
                time.sleep(POLL_INTERVAL)
                self._next_generation = worker.next_generation() if self._asking.is_set() else 0

        def get_backend(self) -> str:
            return "carme"

        def get_run_id(self) -> str:
            return folder.name

        def next_rendezvous(self) -> RendezvousInfo:
            self._asking.clear()
            assignment = worker.wait()
            if assignment.rank < 0:
                raise RendezvousGracefulExitError(f"{worker.name} is not needed any more")
            where = generation_folder(folder, assignment.generation)
            where.mkdir(mode=0o700, parents=True, exist_ok=True)
            if (
                assignment.rank == 0 and assignment.generation > 2
            ):  # no worker is left in the generation before the last
                shutil.rmtree(generation_folder(folder, assignment.generation - 2), ignore_errors=True)
            os.environ.update(environ_of(assignment))  # which the worker's process inherits
            self._next_generation = 0
            self._asking.set()
            store = FileStore(str(where / "agents"), assignment.size)
            # Nobody listens there: workers meet by a file too, see ``torch_store``.
            return RendezvousInfo(
                store, assignment.rank, assignment.size, RendezvousStoreInfo(assignment.host or "localhost", 0)
            )

        def num_nodes_waiting(self) -> int:
            return int(self._next_generation > worker.assignment.generation)

        def is_closed(self) -> bool:
            return self._closed

        def set_closed(self) -> None:
            self._closed = True

        def shutdown(self) -> bool:
            return True

    return ConductorRendezvousHandler()
