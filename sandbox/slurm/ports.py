"""The loopback ports of a sandbox: one block of a hundred, chosen by the path of its state folder.

A port that is free during the search may be taken before it is used, and two sandboxes that start together search at
the same time. The path decides where the search begins, so two folders begin at different blocks, and one folder
gets the same ports every time. Blocks lie below the ports that the kernel gives to outgoing connections.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from carme_hub.errors import SandboxError
from carme_hub.sandbox.slurm.hardware import VirtualNode

_FIRST, _BLOCKS, _SIZE = 12000, 180, 100
#: The step from a block that is taken to the next one to try: not an adjacent block, which another search may try.
_STRIDE = 11
DEFAULT_PORTS = {
    "public": 8000,
    "hub": 8081,
    "proxy_api": 8001,
    "quotas": 10102,
    "reservations": 10103,
    "activity": 10104,
    "images": 10105,
    "folders": 10106,
}


@dataclass(frozen=True, slots=True)
class Ports:
    """The loopback ports of one sandbox. Node n listens on ``first_node + n - 1``."""

    controller: int
    dbd: int
    database: int
    first_node: int

    @classmethod
    def block(cls, first: int) -> Ports:
        """Return the ports of a block: the hub's begin at ``first + 4``, the nodes' follow at 20."""
        return cls(first, first + 1, first + 2, first + 20)

    @property
    def hub(self) -> dict[str, int]:
        """The hub's ports in this block, for when the default ones are taken."""
        return {name: self.controller + 4 + place for place, name in enumerate(DEFAULT_PORTS)}

    def node(self, node: VirtualNode) -> int:
        """Return the port of a node's slurmd."""
        return self.first_node + node.number - 1

    def all(self, nodes: int) -> list[int]:
        """Return every port that a sandbox of that many nodes needs."""
        nodes_ports = range(self.first_node, self.first_node + nodes)
        return [self.controller, self.dbd, self.database, *self.hub.values(), *nodes_ports]


def free_block(state: Path, nodes: int) -> Ports:
    """Return the first block of free ports, searching from the one that belongs to this state folder.

    Raises:
        SandboxError: every block has a port that is taken.
    """
    start = sum(str(state).encode())  # names that differ in one digit begin at blocks that differ
    for step in range(_BLOCKS):
        ports = Ports.block(_FIRST + _SIZE * ((start + _STRIDE * step) % _BLOCKS))
        if all(is_free(port) for port in ports.all(nodes)):
            return ports
    raise SandboxError(f"No free loopback ports found between {_FIRST} and {_FIRST + _BLOCKS * _SIZE}")


def hub_ports(block: Ports, *, usual: bool) -> dict[str, int]:
    """Return the ports of hub and proxy: with ``usual`` the default ones if free, otherwise those of the block."""
    if usual and all(is_free(port) for port in DEFAULT_PORTS.values()):
        return dict(DEFAULT_PORTS)
    return block.hub


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
