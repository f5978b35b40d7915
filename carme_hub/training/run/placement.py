"""On which nodes the ranks of a run are, and whether the session's own job has room for them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .run_options import RunOptions


@dataclass(frozen=True, slots=True)
class Room:
    """What a job has.

    Attributes:
        nodes: how many. gpus: of each.
    """

    nodes: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run goes.

    Attributes:
        ranks: processes. nodes: on how many. gpus_per_task: GPUs of each rank.
        companion: whether the session's own job has no room, so that another one is asked for.
    """

    ranks: int
    nodes: int
    gpus_per_task: int
    companion: bool

    @property
    def per_node(self) -> int:
        """Return the most ranks of one node."""
        return -(-self.ranks // self.nodes)

    @property
    def gpus_per_node(self) -> int:
        """Return the GPUs that a node needs."""
        return self.per_node * self.gpus_per_task

    @property
    def gpus(self) -> int:
        """Return the GPUs of the job that is asked for: all nodes have the same number."""
        return self.nodes * self.gpus_per_node

    def node_of(self, rank: int) -> int:
        """Return the number of a rank's node: srun fills nodes one after the other, the first ones have one more."""
        few, more = divmod(self.ranks, self.nodes)
        within = more * (few + 1)
        return rank // (few + 1) if rank < within else more + (rank - within) // few


def place(asked: RunOptions, room: Room) -> Place:
    """Return where a run goes, of a session whose job has this room.

    Ranks without GPUs share processors, so there is room for any number of them; ranks of one run never
    share GPUs. What other runs of the session use is not looked at: who shares is told (``sharing``).
    """
    each = asked.gpus_per_task if asked.gpus_per_task is not None else int(room.gpus > 0)
    for nodes in [asked.nodes] if asked.nodes else range(1, min(room.nodes, asked.ranks) + 1):
        if nodes <= room.nodes and -(-asked.ranks // nodes) * each <= room.gpus:
            return Place(asked.ranks, nodes, each, companion=False)
    # As many GPUs for each node as the session's own has: of other nodes nothing is known here.
    per_node = max(1, room.gpus // each if each else asked.ranks)
    return Place(asked.ranks, asked.nodes or -(-asked.ranks // per_node), each, companion=True)
