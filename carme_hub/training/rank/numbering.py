"""The numbers of a rank: from Slurm's variables to those of Horovod and torch. No input or output.

Slurm gives each task its number, its node and the tasks of each node (srun(1), OUTPUT ENVIRONMENT VARIABLES). Horovod
and torch read the same from the environment, so srun alone starts processes, and no ssh is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


class NoStep(ValueError):
    """The environment is not that of a task in a Slurm step; the message names the variable."""


@dataclass(frozen=True, slots=True)
class Rank:
    """The numbers of one rank.

    Attributes:
        number: from 0 to ``size`` - 1. local: its number on its node; local_size: ranks on its node.
        cross: earlier nodes that have a rank with the same local number; cross_size: all such nodes.
        node: name of its node.
    """

    number: int
    size: int
    local: int
    local_size: int
    cross: int
    cross_size: int
    node: str

    def for_horovod(self, address: str, port: int, *, timeout: int = 120, interface: str = "") -> dict[str, str]:
        """Return the variables of Horovod's gloo controller (horovod/common/gloo/gloo_context.cc).

        Args:
            address: of the rendezvous, with its secret: see ``Rendezvous.address``.
            timeout: seconds for other ranks to start, and after which a dead rank is noticed.
            interface: of the network between the nodes, "" = Horovod chooses.
        """
        values = {
            "HOROVOD_RANK": self.number,
            "HOROVOD_SIZE": self.size,
            "HOROVOD_LOCAL_RANK": self.local,
            "HOROVOD_LOCAL_SIZE": self.local_size,
            "HOROVOD_CROSS_RANK": self.cross,
            "HOROVOD_CROSS_SIZE": self.cross_size,
            "HOROVOD_HOSTNAME": self.node,
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
            "HOROVOD_GLOO_TIMEOUT_SECONDS": timeout,
        }
        return {name: str(value) for name, value in values.items()} | (
            {"HOROVOD_GLOO_IFACE": interface} if interface else {}
        )

    def for_torch(self, host: str, port: int) -> dict[str, str]:
        """Return the variables of ``torch.distributed.init_process_group("env://")``, and those that torchrun adds.

        Args:
            host: address of rank 0. port: of rank 0.
        """
        values = {
            "RANK": self.number,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": self.local,
            "LOCAL_WORLD_SIZE": self.local_size,
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
        }
        return {name: str(value) for name, value in values.items()}


def parse_tasks(text: str) -> tuple[int, ...]:
    """Return the number of tasks on each node, from ``2(x2),1``.

    Raises:
        NoStep: the text has another form.
    """
    found: list[int] = []
    for word in text.split(","):
        match = _TASKS.fullmatch(word)
        if match is None:
            raise NoStep(f"SLURM_STEP_TASKS_PER_NODE={text[:60]!r} is not of the form 2(x2),1.")
        found += [int(match[1])] * int(match[2] or 1)
    return tuple(found)


def rank_from_environ(environ: Mapping[str, str]) -> Rank:
    """Return the numbers of the task with this environment.

    Raises:
        NoStep: it is no task of a Slurm step, or its numbers contradict each other.
    """
    tasks = parse_tasks(_required(environ, "SLURM_STEP_TASKS_PER_NODE"))
    number, local, node = (_required_number(environ, f"SLURM_{name}") for name in ("PROCID", "LOCALID", "NODEID"))
    if node >= len(tasks) or local >= tasks[node] or number >= sum(tasks):
        raise NoStep(f"Task {number} says that it is number {local} of node {node}; there are {tasks} tasks.")
    return Rank(
        number=number,
        size=sum(tasks),
        local=local,
        local_size=tasks[node],
        cross=sum(count > local for count in tasks[:node]),
        cross_size=sum(count > local for count in tasks),
        node=_required(environ, "SLURMD_NODENAME"),
    )


def _required(environ: Mapping[str, str], name: str) -> str:
    if not (word := environ.get(name, "")):
        raise NoStep(f"{name} is not set: srun starts ranks.")
    return word


def _required_number(environ: Mapping[str, str], name: str) -> int:
    word = _required(environ, name)
    if not (word.isascii() and word.isdigit()):
        raise NoStep(f"{name}={word[:60]!r} is not a number.")
    return int(word)
