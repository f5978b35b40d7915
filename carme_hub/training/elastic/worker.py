"""A rank of a run whose number of ranks changes: a worker with a name of its own, whose rank comes and goes.

With Horovod the process stays, and Horovod starts anew in it. With torch the process below torch's agent is started
anew; agent and worker are this same program, and the worker is the one that is told a generation.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import NoReturn

from carme_hub.training.rank import network, torch_store
from carme_hub.training.rank.program import Process, RankConfig, common, play, share_processors, started, take_gpus
from carme_hub.training.run.messages import TOLD

from . import horovod, torch
from .rendezvous import Worker

_PR_SET_PDEATHSIG = 1
#: Name of a worker: its number, how many had it before, and the number of its GPUs on its node.
_NAME = re.compile(r"w(\d+)-(\d+)-(\d+)")


def name_of(number: int, life: int, local: int) -> str:
    """Return the name of a worker, which no other of the run ever has."""
    return f"w{number}-{life}-{local}"


def number_of(name: str) -> tuple[int, int]:
    """Return a worker's number, and that of its GPUs on its node.

    Raises:
        ValueError: that is no worker's name.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name[:60]!r} is no name of a worker.")
    return int(match[1]), int(match[3])


def beside_of(number: int) -> str:
    """Return under which key a worker is told how many share the processors of its node."""
    return f"beside-{number}"


#: -P: see ``Conductor.argv``.
RANK = (sys.executable, "-P", "-m", "carme_hub.training.elastic.worker")


def store(told: RankConfig) -> Path:
    """Return the folder of what workers share by files."""
    return told.folder / "generations"


def main(words: list[str]) -> int:
    """Be one worker, or torch's agent above it."""
    told, name = started(words)
    number, local = number_of(name)
    said = json.loads((told.folder / "run.json").read_text())["places"]
    worker = Worker(said["address"], said["port"], name)
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    generation = os.environ.get("CARME_GENERATION")
    if told.backend != "horovod" and generation is None:
        prepare(told, node, number, local)
        os.environ["CARME_AGENT"] = str(os.getpid())
        return torch.run(worker, store(told), [*RANK, *sys.argv[1:3]])

    def begin() -> NoReturn:
        if generation is not None:
            die_with_agent()
            torch_store.install(torch.store_of(store(told), int(generation)), "workers")
        else:
            interface = prepare(told, node, number, local)
            horovod.install(worker, interface)
        run(told, number)
        raise SystemExit(0)  # ``Process`` would run the code under this worker's number

    return Process(told, number, node).run(begin)


def run(told: RankConfig, number: int) -> None:
    """Run the code. Each worker that comes to its end writes the variables of ``--pull``: nobody knows who will."""
    play(told, number if told.kind == "call" else 0)


def die_with_agent() -> None:
    """Have the kernel kill this process when torch's agent is killed, which started it in a session of its own."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.environ.get("CARME_AGENT") != str(os.getppid()):
        os.kill(os.getpid(), signal.SIGKILL)  # it was killed before


def prepare(told: RankConfig, node: str, number: int, local: int) -> str:
    """Say in the environment what is true of this worker as long as it lives; return the interface to the others."""
    os.environ.update(common(told))
    os.environ.update({"CARME_NODE": node, "CARME_LOCAL_RANK": "0", "CARME_LOCAL_SIZE": "1", "LOCAL_RANK": "0"})
    interface = network.interface(told.telling)
    if interface:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    take_gpus(local, told.gpus_per_task)
    share_processors((told.telling.get(TOLD, beside_of(number)) or {}).get("beside", 1))
    return interface


if __name__ == "__main__":
    # Under its own name, so that whoever imports it has the same classes.
    sys.exit(importlib.import_module("carme_hub.training.elastic.worker").main(sys.argv[1:]))
