"""Which process of a Slurm step is which rank, in the words of Slurm, Horovod and torch. Pure.

Slurm tells each task its number, its node and how many tasks each node has (srun(1), OUTPUT ENVIRONMENT VARIABLES).
Horovod and torch are told the same by environment, so nothing but srun starts a process, and no ssh is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


class NoStep(ValueError):
    """The environment is not that of a task of a Slurm step; the message names the variable."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One process among all of a run.

    Attributes:
        number: from 0 to ``size`` - 1. local: its number on its node; local_size: how many are there.
        cross: how many nodes before its own have a process of the same local number; cross_size: how many of all.
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
        """Return what Horovod's gloo controller reads (horovod/common/gloo/gloo_context.cc).

        Args:
            address: of the rendezvous, with its secret: see ``Rendezvous.address``.
            timeout: seconds for others to come; also those after which a rank that died is noticed.
            interface: of the network between the nodes, "" = Horovod chooses.
        """
        said = {
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
        return {name: str(value) for name, value in said.items()} | (
            {"HOROVOD_GLOO_IFACE": interface} if interface else {}
        )

    def for_torch(self, host: str, port: int) -> dict[str, str]:
        """Return what ``torch.distributed.init_process_group("env://")`` reads, and what torchrun would add.

        Args:
            host: where rank 0 is. port: that it listens on.
        """
        said = {
            "RANK": self.number,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": self.local,
            "LOCAL_WORLD_SIZE": self.local_size,
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
        }
        return {name: str(value) for name, value in said.items()}


def tasks_of(text: str) -> tuple[int, ...]:
    """Return how many tasks each node has, from ``2(x2),1``.

    Raises:
        NoStep: it is not written so.
    """
    found: list[int] = []
    for word in text.split(","):
        match = _TASKS.fullmatch(word)
        if match is None:
            raise NoStep(f"SLURM_STEP_TASKS_PER_NODE={text[:60]!r} is not like 2(x2),1.")
        found += [int(match[1])] * int(match[2] or 1)
    return tuple(found)


def rank_of(environ: Mapping[str, str]) -> Rank:
    """Return which rank the task with this environment is.

    Raises:
        NoStep: it is of no Slurm step, or its numbers do not agree.
    """
    tasks = tasks_of(_word(environ, "SLURM_STEP_TASKS_PER_NODE"))
    number, local, node = (_number(environ, f"SLURM_{name}") for name in ("PROCID", "LOCALID", "NODEID"))
    if node >= len(tasks) or local >= tasks[node] or number >= sum(tasks):
        raise NoStep(f"Task {number} says that it is number {local} of node {node}; there are {tasks} tasks.")
    return Rank(
        number=number,
        size=sum(tasks),
        local=local,
        local_size=tasks[node],
        cross=sum(count > local for count in tasks[:node]),
        cross_size=sum(count > local for count in tasks),
        node=_word(environ, "SLURMD_NODENAME"),
    )


def _word(environ: Mapping[str, str], name: str) -> str:
    if not (word := environ.get(name, "")):
        raise NoStep(f"{name} is not set: ranks are started by srun.")
    return word


def _number(environ: Mapping[str, str], name: str) -> int:
    word = _word(environ, name)
    if not (word.isascii() and word.isdigit()):
        raise NoStep(f"{name}={word[:60]!r} is no number.")
    return int(word)
