"""By which network a rank reaches the others: that by which it reaches its conductor."""

from __future__ import annotations

import fcntl
import socket
import struct
import time

from carme_hub.training.run.messages import HELLO, RendezvousClient

_SIOCGIFADDR = 0x8915


class Alone(TimeoutError):
    """Rank 0 has not come."""


def local(there: RendezvousClient) -> str:
    """Return the address of this node by which it reaches the conductor, and the others reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((there.host, there.port))  # nothing is sent
        return str(asking.getsockname()[0])


def interface(there: RendezvousClient) -> str:
    """Return the name of the interface with that address, "" where it is none's first one: libraries then choose."""
    address = socket.inet_aton(local(there))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                said = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no IPv4 address
                continue
            if said[20:24] == address:
                return name
    return ""


def free_port() -> int:
    """Return a port that nobody listens on, for code that wants to; ours does not."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as asking:
        asking.bind(("", 0))
        return int(asking.getsockname()[1])


def of_rank_0(there: RendezvousClient, patience: float) -> tuple[str, int]:
    """Return address and port for ``MASTER_ADDR`` and ``MASTER_PORT``, when rank 0 is there.

    Args:
        patience: seconds to wait for it.

    Raises:
        Alone: it has not come.
    """
    end, pause = time.monotonic() + patience, 0.01
    while (said := there.get(HELLO, 0)) is None:
        if time.monotonic() > end:
            raise Alone(f"Rank 0 did not come within {patience:.0f} s.")
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
    return str(said["host"]), int(said["port"])
