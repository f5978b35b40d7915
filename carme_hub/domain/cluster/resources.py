"""GPUs, nodes and their free resources, as integers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: The type of shards (``gres/shard``), parts of GPUs: jobs from outside the hub may have them, sessions never do.
SHARD = "shard"


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs of one type. A request for GPUs is always typed.

    An untyped request (``gpu:2``) passes every limit that Slurm keeps on a type
    (seen on Slurm 22.05, 24.11, 25.11 and 26.05), so it cannot be expressed here.
    """

    type: str = ""
    count: int = 0

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("a GPU count is zero or more")
        if self.count and not self.type:
            raise ValueError("GPUs are always asked for by type")

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        return f"{self.count} × {self.type}" if self.count else "no GPU"

    @property
    def whole(self) -> int:
        """The number that limits on GPUs count: shards count as none."""
        return 0 if self.type == SHARD else self.count

    @property
    def gres(self) -> str:
        """The value of sbatch's ``--gres``; ``gpu:a100:2``. Empty for no GPU."""
        return f"gpu:{self.type}:{self.count}" if self.count else ""

    def per_node(self, nodes: int) -> Gpus:
        """Return the GPUs on each of a number of nodes."""
        if nodes < 1 or self.count % nodes:
            raise ValueError(f"{self} cannot be the same number on each of {nodes} nodes")
        return Gpus(self.type, self.count // nodes)


NO_GPUS = Gpus()


@dataclass(frozen=True, slots=True)
class Node:
    """One compute node as Slurm sees it now.

    Attributes:
        state: Slurm's base state in lower case without flags (idle, mixed, allocated, down, …).
        usable: new jobs can start here (not down, drained, in maintenance or not responding).
        flags: Slurm's flags of the state, in lower case (drain, reserved, maintenance, …).
        gpus: GPU type to number of GPUs; gpus_used: likewise, those allocated now.
        shards: GPU type to number of shards of its GPUs; "gpu" if Slurm names no type.
        memory_mib, memory_used_mib: in MiB.
        address: the address for connections to the node (NodeAddr).
        reason: why it is down or drained, as Slurm keeps it, without who set it and when; ``node_reasons`` has words.
    """

    name: str
    state: str
    usable: bool
    partitions: tuple[str, ...] = ()
    cpus: int = 0
    cpus_used: int = 0
    memory_mib: int = 0
    memory_used_mib: int = 0
    gpus: Mapping[str, int] = field(default_factory=dict)
    gpus_used: Mapping[str, int] = field(default_factory=dict)
    address: str = ""
    shards: Mapping[str, int] = field(default_factory=dict)
    flags: frozenset[str] = frozenset()
    reason: str = ""

    def free_gpus(self, type: str) -> int:
        """Return how many GPUs of a type a new job could get on this node now."""
        if not self.usable:
            return 0
        return max(0, self.gpus.get(type, 0) - self.gpus_used.get(type, 0))

    def fits(self, gpus: Gpus, cpus: int, memory_mib: int) -> bool:
        """Return whether a job of this size could start on this node now."""
        return (
            self.usable
            and self.cpus - self.cpus_used >= cpus
            and self.memory_mib - self.memory_used_mib >= memory_mib
            and (not gpus or self.free_gpus(gpus.type) >= gpus.count)
        )
