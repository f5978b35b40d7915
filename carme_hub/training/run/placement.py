"""Placement of ranks: the nodes of a run, and whether the session's own job has room for it. No input or output.

A run whose session has no room gets a companion with as few nodes as possible. How many GPUs one node may have is known
to the hub: before the run is created, ``fewest_nodes`` sets the number of nodes by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """The placement of a run.

    Attributes:
        ranks: number of ranks. nodes: number of nodes. gpus_per_task: GPUs of each rank.
        companion: whether it needs a companion, because the session's own job has no room.
    """

    ranks: int
    nodes: int
    gpus_per_task: int
    companion: bool

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

    def node_of(self, rank: int) -> int:
        """Return the index of a rank's node: srun fills one node after another; the first ones have one rank more."""
        few, more = divmod(self.ranks, self.nodes)
        within = more * (few + 1)
        return rank // (few + 1) if rank < within else more + (rank - within) // few


def place_ranks(options: RunOptions, capacity: JobCapacity) -> Placement:
    """Return the placement of a run, for a session whose job has this capacity.

    Ranks without GPUs share processors, so there is room for any number of them; ranks of one run never share GPUs.
    GPUs that other runs of the session use are not considered; ``sharing`` reports them.
    """
    each = gpus_of_rank(options, capacity)
    for nodes in [options.nodes] if options.nodes else range(1, min(capacity.nodes, options.ranks) + 1):
        per_node = -(-options.ranks // nodes)
        gpus, cpus = min(capacity.gpus, options.gpus_per_node or capacity.gpus), capacity.cpus
        enough = per_node * each <= gpus and (not cpus or per_node * options.cpus_per_task <= cpus)
        if nodes <= capacity.nodes and enough:
            return Placement(options.ranks, nodes, each, companion=False)
    # As many GPUs on each node as the session's own nodes have: where the hub tells more, ``options.nodes`` is set.
    most = min(capacity.gpus, options.gpus_per_node or capacity.gpus)
    per_node = max(1, most // each if each else options.ranks)
    return Placement(options.ranks, options.nodes or -(-options.ranks // per_node), each, companion=True)


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


def companion_size(options: RunOptions, placement: Placement) -> dict[str, int]:
    """Return the size of a run's companion, as ``Hub.quote`` and ``Hub.open`` take it."""
    return {
        "nodes": placement.nodes,
        "gpus": placement.gpus,
        "cpus": options.cpus_per_task * placement.per_node,
        "memory_mib": options.mem_per_gpu * placement.gpus_per_node,
    }
