"""Placement of ranks: the nodes of a run, and whether the session's own job has room for it. No input or output.

A run whose session has no room for all of its ranks gets a companion with as few nodes as possible. The first ranks
stay in the session's own job, so that its GPUs are used, unless that saves no GPU, the user asks for a companion only,
or MPI starts all ranks as one step. Where the user asks for a number of nodes, the session's are counted in, and the
companion gets others. How many GPUs one node may have is known to the hub: before the run is created, ``divide_ranks``
sets the number of nodes, and what stays, by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from .run_options import RunOptions


@dataclass(frozen=True, slots=True)
class JobCapacity:
    """The resources of a job.

    Attributes:
        nodes: number of nodes. gpus, cpus: on each; 0 CPUs = unknown.
    """

    nodes: int
    gpus: int
    cpus: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of a run in one job: the session's own, or a companion, beside which the session may have a part.

    Attributes:
        ranks: ranks in this job. nodes: its nodes. gpus_per_task: GPUs of each rank.
        companion: whether it is a companion, because the session's own job has no room.
        own: of the first ranks, which stay in the session's own job; None = all ranks are in this one.
    """

    ranks: int
    nodes: int
    gpus_per_task: int
    companion: bool
    own: Placement | None = None

    @property
    def parts(self) -> tuple[Placement, ...]:
        """Return the parts of the run by job, in the order of their ranks."""
        return (self.own, self) if self.own else (self,)

    @property
    def size(self) -> int:
        """Return the number of all ranks."""
        return sum(part.ranks for part in self.parts)

    @property
    def per_node(self) -> int:
        """Return the most ranks on one node."""
        return -(-self.ranks // self.nodes)

    @property
    def gpus_per_node(self) -> int:
        """Return the GPUs for one node."""
        return self.per_node * self.gpus_per_task

    @property
    def gpus(self) -> int:
        """Return the GPUs of the job to request: all nodes have the same number."""
        return self.nodes * self.gpus_per_node

    def tasks(self) -> list[int]:
        """Return the ranks on each node: the first nodes have one more."""
        few, more = divmod(self.ranks, self.nodes)
        return [few + 1] * more + [few] * (self.nodes - more)

    def node_of(self, rank: int) -> int:
        """Return the index of a rank's node among all nodes: srun fills one node after another."""
        node = 0
        for tasks in (tasks for part in self.parts for tasks in part.tasks()):
            if rank < tasks:
                break
            rank, node = rank - tasks, node + 1
        return node


def place_ranks(options: RunOptions, capacity: JobCapacity) -> Placement:
    """Return the placement of a run, for a session whose job has this capacity.

    Ranks without GPUs share processors, so there is room for any number of them; ranks of one run never share GPUs.
    GPUs that other runs of the session use are not considered; ``sharing`` reports them.
    """
    each, room = gpus_of_rank(options, capacity), ranks_of_node(options, capacity)
    for nodes in [options.nodes] if options.nodes else range(1, min(capacity.nodes, options.ranks) + 1):
        if nodes <= capacity.nodes and -(-options.ranks // nodes) <= room:
            return Placement(options.ranks, nodes, each, companion=False)
    ranks, nodes = options.own
    if ranks and ranks < options.ranks and nodes < options.nodes:
        own = Placement(ranks, nodes, each, companion=False)
        return Placement(options.ranks - ranks, options.nodes - nodes, each, companion=True, own=own)
    # As many GPUs on each node as the session's own nodes have: where the hub tells more, ``options.nodes`` is set.
    most = min(capacity.gpus, options.gpus_per_node or capacity.gpus)
    per_node = max(1, most // each if each else options.ranks)
    return Placement(options.ranks, options.nodes or -(-options.ranks // per_node), each, companion=True)


def may_stay(options: RunOptions) -> bool:
    """Return whether ranks of a run that needs a companion may be in the session's own job."""
    # How much memory the session has for each GPU is unknown here.
    return not (options.only_companion or options.dry_run or options.mem_per_gpu or options.backend == "mpi")


def divide_ranks(
    options: RunOptions, capacity: JobCapacity, allowed: Sequence[int], *, other_nodes: bool = False
) -> RunOptions | None:
    """Return the options of a run that needs a companion, with its number of nodes, and of the ranks that stay.

    None = there is no number of nodes that gives every node a number of GPUs that it may have.

    Args:
        allowed: numbers of GPUs that one node of a companion may have; () = unknown, and ``nodes`` stays as it is.
        other_nodes: whether the hub can give a companion other nodes than those of the session.
    """
    each = gpus_of_rank(options, capacity)
    if options.nodes:
        tasks = Placement(options.ranks, options.nodes, each, companion=True).tasks()
        fits = capacity.nodes < options.nodes and tasks[0] <= ranks_of_node(options, capacity)
        if not (other_nodes and fits and may_stay(options)):
            return options  # the companion has all of them, and may have the session's node too
        return replace(options, own=(sum(tasks[: capacity.nodes]), capacity.nodes), other_nodes=True)
    if not each or not allowed:
        return options
    nodes = fewest_nodes(options.ranks, each, allowed, options.gpus_per_node)
    stay = ranks_of_node(options, capacity) * capacity.nodes
    if may_stay(options) and 0 < stay < options.ranks:
        rest = options.ranks - stay
        fewer = fewest_nodes(rest, each, allowed, options.gpus_per_node)
        if fewer and (not nodes or (fewer <= nodes and fewer * -(-rest // fewer) < nodes * -(-options.ranks // nodes))):
            return replace(options, nodes=fewer + capacity.nodes, own=(stay, capacity.nodes), gpus_per_node=0)
    return replace(options, nodes=nodes, gpus_per_node=0) if nodes else None


def ranks_of_node(options: RunOptions, capacity: JobCapacity) -> int:
    """Return how many ranks of a run a node of the session's own job has room for."""
    each, room = gpus_of_rank(options, capacity), options.ranks
    if each:
        room = min(room, min(capacity.gpus, options.gpus_per_node or capacity.gpus) // each)
    if options.cpus_per_task and capacity.cpus:
        room = min(room, capacity.cpus // options.cpus_per_task)
    return room


def gpus_of_rank(options: RunOptions, capacity: JobCapacity) -> int:
    """Return the GPUs of each rank."""
    return options.gpus_per_task if options.gpus_per_task is not None else int(capacity.gpus > 0)


def fewest_nodes(ranks: int, each: int, allowed: Sequence[int], most: int = 0) -> int:
    """Return the fewest nodes for so many ranks with GPUs, where all nodes have the same number; 0 = there is none.

    Args:
        each: GPUs of each rank. allowed: numbers of GPUs that one node may have. most: limit for one node, 0 = none.
    """
    for nodes in range(1, ranks + 1):
        gpus = -(-ranks // nodes) * each
        if gpus in allowed and (not most or gpus <= most):
            return nodes
    return 0


class CompanionSize(TypedDict):
    """The size of a companion, as ``Hub.quote`` and ``Hub.open`` take it."""

    nodes: int
    gpus: int
    cpus: int
    memory_mib: int


def companion_size(options: RunOptions, placement: Placement) -> CompanionSize:
    """Return the size of a run's companion, as ``Hub.quote`` and ``Hub.open`` take it."""
    return {
        "nodes": placement.nodes,
        "gpus": placement.gpus,
        "cpus": options.cpus_per_task * placement.per_node,
        "memory_mib": options.mem_per_gpu * placement.gpus_per_node,
    }
