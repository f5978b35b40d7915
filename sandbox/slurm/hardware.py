"""The virtual hardware: the virtual nodes, and their virtual GPUs as device nodes or as links."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from carme_hub.errors import SandboxError

MOST_NODES = 64

#: Character device number 240 is in the range that Linux reserves for local use: no driver answers there.
_MAJOR = 240
_MINORS_PER_NODE = 16


@dataclass(frozen=True, slots=True)
class VirtualNode:
    """One virtual node.

    Attributes:
        number: 1 for the first. gpus: GPU type and count, in the order of the device files.
        shards: the number of shards that the GPUs offer, 0 for none.
    """

    number: int
    gpus: tuple[tuple[str, int], ...]
    shards: int = 0

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def gres(self) -> str:
        """The value of ``Gres=`` in slurm.conf."""
        parts = [f"gpu:{kind}:{count}" for kind, count in self.gpus]
        return ",".join([*parts, f"shard:{self.shards}"] if self.shards else parts)

    def devices(self) -> list[tuple[str, int, int]]:
        """Return GPU type, index of the first device file, and of the last, one tuple for each type."""
        found, first = [], 0
        for kind, count in self.gpus:
            found.append((kind, first, first + count - 1))
            first += count
        return found


def virtual_nodes(count: int) -> tuple[VirtualNode, ...]:
    """Return the nodes of a sandbox: the first four differ, all others are like the first."""
    if not 1 <= count <= MOST_NODES:
        raise SandboxError(f"A sandbox has 1 to {MOST_NODES} nodes, not {count}")
    a100 = (("a100", 4),)
    first = (
        VirtualNode(1, a100, 16),
        VirtualNode(2, a100, 16),
        VirtualNode(3, (("1g.10gb", 7), ("3g.40gb", 2))),
        VirtualNode(4, (("h100", 4),)),
    )
    return (*first[:count], *(VirtualNode(n, a100, 16) for n in range(5, count + 1)))


def make_devices(folder: Path, node: VirtualNode) -> str:
    """Create the device files of a node, and return their type: "device" or "link".

    Slurm accepts a device node with a number that no driver has as a GPU; where mknod is not allowed (ordinary user,
    container) a link to /dev/null works as well. No two may share a number, and none may have the number of
    /dev/null: a site that confines devices would deny /dev/null to every job.
    """
    own = folder / node.name
    own.mkdir(parents=True, exist_ok=True)
    kind = "device"
    for index in range(sum(count for _, count in node.gpus)):
        path = own / f"nvidia{index}"
        if path.is_symlink() or path.exists():
            kind = "link" if path.is_symlink() else kind
            continue
        try:
            if os.geteuid() != 0:
                raise PermissionError
            number = os.makedev(_MAJOR, node.number * _MINORS_PER_NODE + index)
            os.mknod(path, stat.S_IFCHR | 0o666, number)
            path.chmod(0o666)
        except PermissionError:
            path.symlink_to("/dev/null")
            kind = "link"
    return kind
