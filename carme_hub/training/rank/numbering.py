"""The numbers of a rank: from Slurm's variables to those of Horovod and torch. No input or output.

Slurm gives each task its number, its node and the tasks of each node (srun(1), OUTPUT ENVIRONMENT VARIABLES). Horovod
and torch read the same from the environment, so srun alone starts processes, and no ssh is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence
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
        node: name of its node. node_number: of its node, from 0 to ``nodes`` - 1. job: names the step where the run has
            more than one, "" otherwise: two of them may be on one node, and still count as two nodes.
    """

    number: int
    size: int
    local: int
    local_size: int
    cross: int
    cross_size: int
    node: str
    node_number: int = 0
    nodes: int = 1
    job: str = ""

    @property
    def host(self) -> str:
        """Return a name for the node that the ranks of another step do not have, also where they are on that node."""
        return f"{self.node}-{self.job}" if self.job else self.node

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
            # Horovod takes ranks with the same name of a host for those of one node (gloo_context.cc).
            "HOROVOD_HOSTNAME": self.host,
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
            "HOROVOD_GLOO_TIMEOUT_SECONDS": timeout,
        }
        return {name: str(value) for name, value in values.items()} | (
            {"HOROVOD_GLOO_IFACE": interface} if interface else {}
        )

    def for_torch(self, host: str, port: int, run: str, restarts: tuple[int, int] = (0, 0)) -> dict[str, str]:
        """Return the variables that torchrun sets, by which torch and the libraries on top of it know a launched rank.

        Source: torch/distributed/elastic/agent/server/local_elastic_agent.py; NODE_RANK is that of Composer's launcher.
        Where a part is missing, Lightning takes a rank for one of srun, and accelerate for a process alone.

        Args:
            host: address of rank 0. port: of rank 0. run: its id. restarts: so far, and at most.
        """
        values: dict[str, object] = {
            "RANK": self.number,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": self.local,
            "LOCAL_WORLD_SIZE": self.local_size,
            "GROUP_RANK": self.node_number,
            "GROUP_WORLD_SIZE": self.nodes,
            "NODE_RANK": self.node_number,
            "ROLE_NAME": "default",
            "ROLE_RANK": self.number,
            "ROLE_WORLD_SIZE": self.size,
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "TORCHELASTIC_RUN_ID": run,
            "TORCHELASTIC_RESTART_COUNT": restarts[0],
            "TORCHELASTIC_MAX_RESTARTS": restarts[1],
            # "True" would have every rank connect to a store of torchrun's agent, which does not exist here.
            "TORCHELASTIC_USE_AGENT_STORE": False,
        }
        if self.job:
            # NCCL would look for shared memory and for GPUs that only the containers of the other job have.
            values["NCCL_HOSTID"] = self.host
        return {name: str(value) for name, value in values.items()}

    def for_jax(self, host: str, port: int) -> dict[str, str]:
        """Return the variables of ``jax.distributed.initialize()``: its coordinator, which only binds this address.

        The numbers of a rank come by ``rank.libraries.jax``, since JAX reads no variables for them.
        """
        return {"JAX_COORDINATOR_ADDRESS": f"{host}:{port}", "JAX_COORDINATOR_BIND_ADDRESS": f"{host}:{port}"}


#: What is left of Slurm's variables in a rank: those of a job array, by which the code of a sweep chooses its part.
_KEPT = "SLURM_ARRAY_"


def remove_slurm(environ: MutableMapping[str, str]) -> None:
    """Remove Slurm's variables: a library that finds some of them takes the rank for a task of an srun of its own."""
    for name in [name for name in environ if name.startswith(("SLURM", "SRUN_")) and not name.startswith(_KEPT)]:
        del environ[name]


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


def rank_from_environ(environ: Mapping[str, str], parts: Sequence[Sequence[int]] = ()) -> Rank:
    """Return the numbers of the task with this environment.

    Args:
        parts: the tasks on each node of each step of the run, where it has more than one; the variable CARME_SLOT names
            the first rank of this task's step, as ``r4``.

    Raises:
        NoStep: it is no task of a Slurm step, or its numbers contradict each other.
    """
    tasks = parse_tasks(_required(environ, "SLURM_STEP_TASKS_PER_NODE"))
    number, local, node = (_required_number(environ, f"SLURM_{name}") for name in ("PROCID", "LOCALID", "NODEID"))
    if node >= len(tasks) or local >= tasks[node] or number >= sum(tasks):
        raise NoStep(f"Task {number} says that it is number {local} of node {node}; there are {tasks} tasks.")
    if parts:
        own = _find_part(environ.get("CARME_SLOT", ""), parts, tasks)
        before, after = ([count for part in each for count in part] for each in (parts[:own], parts[own + 1 :]))
        number, node, tasks = number + sum(before), node + len(before), (*before, *tasks, *after)
    return Rank(
        number=number,
        size=sum(tasks),
        local=local,
        local_size=tasks[node],
        cross=sum(count > local for count in tasks[:node]),
        cross_size=sum(count > local for count in tasks),
        node=_required(environ, "SLURMD_NODENAME"),
        node_number=node,
        nodes=len(tasks),
        job=environ.get("CARME_SLOT", "") if parts else "",
    )


def _find_part(slot: str, parts: Sequence[Sequence[int]], tasks: tuple[int, ...]) -> int:
    """Return the number of this step; Slurm may have put its tasks on the nodes in another order."""
    first = 0
    for number, part in enumerate(parts):
        if slot == f"r{first}" and (len(part), sum(part)) == (len(tasks), sum(tasks)):
            return number
        first += sum(part)
    raise NoStep(f"CARME_SLOT={slot[:60]!r} with {tasks} tasks is no step of this run, which has {parts}.")


def _required(environ: Mapping[str, str], name: str) -> str:
    if not (word := environ.get(name, "")):
        raise NoStep(f"{name} is not set: srun starts ranks.")
    return word


def _required_number(environ: Mapping[str, str], name: str) -> int:
    word = _required(environ, name)
    if not (word.isascii() and word.isdigit()):
        raise NoStep(f"{name}={word[:60]!r} is not a number.")
    return int(word)
