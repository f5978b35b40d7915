"""A worker of an elastic run: its name stays, its rank changes from generation to generation.

With Horovod the process stays, and Horovod restarts in it. With torch the agent restarts the process below it; agent
and worker process are both this program, and ``CARME_GENERATION`` is set only for the worker process.
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

from carme_hub.training.rank import network
from carme_hub.training.rank.devices import take_gpus
from carme_hub.training.rank.libraries import mlflow, torch_store
from carme_hub.training.rank.numbering import remove_slurm
from carme_hub.training.rank.program import (
    Process,
    RankConfig,
    common_environ,
    run_code,
    share_processors,
    start_rank,
)
from carme_hub.training.run.messages import BROADCAST

from . import horovod, torch
from .rendezvous import WorkerClient

_PR_SET_PDEATHSIG = 1
#: Name of a worker: its number, how many workers had that number before, and the number of its GPUs on the node.
_NAME = re.compile(r"w(\d+)-(\d+)-(\d+)")


def worker_name(number: int, life: int, local: int) -> str:
    """Return the name of a worker, which is unique in the run."""
    return f"w{number}-{life}-{local}"


def parse_worker_name(name: str) -> tuple[int, int]:
    """Return a worker's number, and the number of its GPUs on the node.

    Raises:
        ValueError: the name is not that of a worker.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name[:60]!r} is no name of a worker.")
    return int(match[1]), int(match[3])


def sharing_key(number: int) -> str:
    """Return the rendezvous key that tells a worker how many workers share the processors of its node."""
    return f"beside-{number}"


#: -P: see ``Conductor.argv``.
COMMAND = (sys.executable, "-P", "-m", "carme_hub.training.elastic.worker")


def store_folder(config: RankConfig) -> Path:
    """Return the folder of the files that workers share."""
    return config.folder / "generations"


def main(words: list[str]) -> int:
    """Run one worker, or torch's agent above it."""
    config, name = start_rank(words)
    number, local = parse_worker_name(name)
    places = json.loads((config.folder / "run.json").read_text())["places"]
    worker = WorkerClient(places["address"], places["port"], name)
    node = os.environ.get("CARME_NODE") or os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    generation = os.environ.get("CARME_GENERATION")
    if config.backend != "horovod" and generation is None:
        set_environ(config, node, number, local)
        os.environ["CARME_AGENT"] = str(os.getpid())
        return torch.run(worker, number, store_folder(config), [*COMMAND, *sys.argv[1:3]])

    def begin() -> NoReturn:
        if generation is not None:
            die_with_agent()
            torch_store.install(torch.generation_folder(store_folder(config), int(generation)), "workers")
        else:
            interface = set_environ(config, node, number, local)
            horovod.install(worker, interface)
        mlflow.install()
        run(config, number)
        raise SystemExit(0)  # or ``Process`` would run the code again, under this worker's number

    return Process(config, number, node).run(begin)


def run(config: RankConfig, number: int) -> None:
    """Run the code. Each worker that finishes writes the variables of ``--pull``: which one finishes is unknown."""
    run_code(config, number if config.kind == "call" else 0)


def die_with_agent() -> None:
    """Have the kernel kill this process when torch's agent, which gave it a process session of its own, is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.environ.get("CARME_AGENT") != str(os.getppid()):
        os.kill(os.getpid(), signal.SIGKILL)  # the agent was killed before


def set_environ(config: RankConfig, node: str, number: int, local: int) -> str:
    """Set the environment that stays the same for this worker; return the interface to the other nodes."""
    remove_slurm(os.environ)
    os.environ.update(common_environ(config))
    os.environ.update({"CARME_NODE": node, "CARME_LOCAL_RANK": "0", "CARME_LOCAL_SIZE": "1", "LOCAL_RANK": "0"})
    interface = network.interface_name(config.rendezvous_client)
    if interface:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    take_gpus(local, config.gpus_per_task)
    share_processors((config.rendezvous_client.get(BROADCAST, sharing_key(number)) or {}).get("beside", 1))
    return interface


if __name__ == "__main__":
    # Run it under its module name, so that importers get the same classes.
    sys.exit(importlib.import_module("carme_hub.training.elastic.worker").main(sys.argv[1:]))
