"""A step broker that starts ranks on this machine, each with the environment of a Slurm task; what conducts with it.

``python started_here.py FOLDER NODES GPUS BROKER`` conducts the run of a folder as
``carme_hub.training.conduct`` does, of a session that has so many nodes, with so many GPUs each.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from carme_hub.node.rank import END_MARK
from carme_hub.training.conduct import conduct
from carme_hub.training.conductor import step
from carme_hub.training.conductor.conductor import Conductor
from carme_hub.training.conductor.fixed_size import FixedSizeRun
from carme_hub.training.run import stall
from carme_hub.training.run.placement import Placement
from carme_hub.training.run.run_folder import Run
from carme_hub.training.session.step_broker import Allocation, Broker, RunningStep, Step

#: Seconds for ranks to end after INT, more than in a session: a machine full of tests may take long to wake them.
INTERRUPT_SECONDS = 8.0


class StepHere(RunningStep):
    """Ranks that are processes of this machine, in the words of ``srun --label`` and of carme-rank.

    Args:
        late: seconds after which the node reports the end of a rank, and again as many for Slurm.
    """

    def __init__(
        self, step: Step, nodes: tuple[str, ...], gpus: int, out: int, err: int, late: tuple[float, float] = (0, 0)
    ) -> None:
        place = Placement(step.ranks, len(nodes), 0, companion=False)
        tasks = [sum(place.node_of(rank) == node for rank in range(step.ranks)) for node in range(len(nodes))]
        self.messages: tuple[str, ...] = ()
        self._err = os.dup(err)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[threading.Thread] = []
        for rank in range(step.ranks):
            node = place.node_of(rank)
            environ = {
                **os.environ,
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(rank - sum(tasks[:node])),
                "SLURM_NODEID": str(node),
                "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, tasks)),
                "SLURMD_NODENAME": nodes[node],
                "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus))),
                "CARME_SLOT": step.slot,
            }
            process = subprocess.Popen(
                list(step.argv), env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
            )
            self._processes.append(process)
            for pipe, to in ((process.stdout, out), (process.stderr, err)):
                assert pipe is not None
                thread = threading.Thread(target=label, args=(pipe, rank, os.dup(to)), daemon=True)
                thread.start()
                self._pipes.append(thread)
        self._ended = threading.Event()
        self._status, self._late, self._kill_on_bad_exit = 0, late, step.kill_on_bad_exit
        threading.Thread(target=self._watch, args=(nodes, place), daemon=True).start()

    def _watch(self, nodes: tuple[str, ...], place: Placement) -> None:
        lines: list[tuple[float, str]] = []  # each with the time from which it is known
        left = set(range(len(self._processes)))
        while left or lines:
            for rank in sorted(left):
                status = self._processes[rank].poll()
                if status is None:
                    continue
                left.discard(rank)
                status = 128 - status if status < 0 else status
                now, (node_takes, slurm_takes) = time.monotonic(), self._late
                report = {"status": status, "out_of_memory": False, "memory_mib": 0}
                lines.append((now + node_takes, f"{rank}: {END_MARK}{json.dumps(report)}\n"))
                if status:
                    line = f"srun: error: {nodes[place.node_of(rank)]}: task {rank}: Exited with exit code {status}\n"
                    lines.append((now + node_takes + slurm_takes, line))
                    self._status = max(self._status, status)
                    if self._kill_on_bad_exit:
                        self.signal("TERM")
            due = [each for each in lines if each[0] <= time.monotonic()]
            lines = [each for each in lines if each not in due]
            for _, line in due:
                os.write(self._err, line.encode())
            time.sleep(0.01)
        for thread in self._pipes:
            thread.join()
        os.close(self._err)
        self._ended.set()

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the highest status, None while a rank runs."""
        return self._status if self._ended.wait(timeout) else None

    def signal(self, name: str) -> None:
        """Send a signal to all ranks and what is below them."""
        for process in self._processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.Signals[f"SIG{name}"])

    def close(self) -> None:
        """Kill what is left."""
        self.signal("KILL")


def label(pipe: object, rank: int, to: int) -> None:
    """Copy lines with a rank's number before each."""
    with pipe, os.fdopen(to, "wb") as out:  # type: ignore[attr-defined]
        for line in pipe:  # type: ignore[attr-defined]
            out.write(f"{rank}: ".encode() + line.rstrip(b"\n") + b"\n")
            out.flush()


class BrokerThatStartsHere(Broker):
    """Starts ranks on this machine, which says that it is many nodes."""

    def __init__(self, nodes: int = 1, gpus: int = 0) -> None:
        super().__init__("/nowhere")
        self._nodes, self._gpus = tuple(f"n{number}" for number in range(1, nodes + 1)), gpus

    def allocation(self, companion: str = "") -> Allocation:
        """Return this machine."""
        assert not companion
        return Allocation(1, self._nodes, 2, self._gpus, "a100", time.time() + 3600, "127.0.0.1")

    def start(self, step: Step, out: int, err: int) -> RunningStep:
        """Start the ranks."""
        return StepHere(step, step.nodes or self._nodes, step.gpus_per_node, out, err)


class BrokerThatHearsLate(BrokerThatStartsHere):
    """Learns of a rank's end long after the other ranks: a container takes a while to end, and Slurm longer."""

    def start(self, step: Step, out: int, err: int) -> RunningStep:
        """Start the ranks."""
        return StepHere(step, step.nodes or self._nodes, step.gpus_per_node, out, err, (0.4, 1.0))


class BrokerThatLosesARank(BrokerThatStartsHere):
    """Starts all ranks but the last, which hangs before it is a rank, as on a node that is overloaded."""

    def start(self, step: Step, out: int, err: int) -> RunningStep:
        """Start a program in its place that sleeps."""
        program = "import os, sys, time; os.environ['SLURM_PROCID'] == sys.argv[1] and time.sleep(99)"
        program += "; os.execv(sys.argv[2], sys.argv[2:])"
        argv = (sys.executable, "-c", program, str(step.ranks - 1), *step.argv)
        return super().start(Step(step.run, step.ranks, argv, step.nodes), out, err)


def main(folder: str, nodes: str, gpus: str, broker: str) -> None:
    """Conduct a run."""
    kinds = {kind.__name__: kind for kind in (BrokerThatStartsHere, BrokerThatHearsLate, BrokerThatLosesARank)}

    def make(run: Run) -> Conductor:
        return FixedSizeRun(run, kinds[broker](int(nodes), int(gpus)))

    step.INTERRUPT_SECONDS = INTERRUPT_SECONDS
    stall.STALL_SECONDS = float(os.environ.get("STALL_SECONDS", stall.STALL_SECONDS))  # a clock that a test moves
    conduct(Run(Path(folder)), lambda: print("ready", flush=True), make)


if __name__ == "__main__":
    main(*sys.argv[1:])
