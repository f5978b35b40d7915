"""Placement of ranks: the nodes of a run, and whether the session's own job has room for it. No input or output."""

from __future__ import annotations

from dataclasses import dataclass

from .run_options import RunOptions


@dataclass(frozen=True, slots=True)
class JobCapacity:
    """The resources of a job.

    Attributes:
        nodes: number of nodes. gpus: on each.
    """

    nodes: int
    gpus: int


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
    each = options.gpus_per_task if options.gpus_per_task is not None else int(capacity.gpus > 0)
    for nodes in [options.nodes] if options.nodes else range(1, min(capacity.nodes, options.ranks) + 1):
        if nodes <= capacity.nodes and -(-options.ranks // nodes) * each <= capacity.gpus:
            return Placement(options.ranks, nodes, each, companion=False)
    # As many GPUs on each node as the session's own nodes have: other nodes are unknown here.
    per_node = max(1, capacity.gpus // each if each else options.ranks)
    return Placement(options.ranks, options.nodes or -(-options.ranks // per_node), each, companion=True)
