"""The network between ranks: the interface by which a rank reaches its conductor."""

from __future__ import annotations

import fcntl
import socket
import struct
import time

from carme_hub.training.run.messages import HELLO, RendezvousClient

_SIOCGIFADDR = 0x8915


class RankZeroMissing(TimeoutError):
    """Rank 0 has not started in time."""


def local_address(client: RendezvousClient) -> str:
    """Return the address of this node by which it reaches the conductor, and other nodes reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((client.host, client.port))  # nothing is sent
        return str(probe.getsockname()[0])


def interface_name(client: RendezvousClient) -> str:
    """Return the interface whose first address this is, "" where there is none: libraries choose one then."""
    address = socket.inet_aton(local_address(client))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no IPv4 address
                continue
            if answer[20:24] == address:
                return name
    return ""


def free_port() -> int:
    """Return a free port, for code that reads ``MASTER_PORT``; this package does not use it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def rank_zero_address(client: RendezvousClient, timeout: float) -> tuple[str, int]:
    """Return address and port for ``MASTER_ADDR`` and ``MASTER_PORT``, when rank 0 has started.

    Args:
        timeout: seconds to wait for rank 0.

    Raises:
        RankZeroMissing: it has not started.
    """
    end, pause = time.monotonic() + timeout, 0.01
    while (answer := client.get(HELLO, 0)) is None:
        if time.monotonic() > end:
            raise RankZeroMissing(f"Rank 0 did not come within {timeout:.0f} s.")
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
    return str(answer["host"]), int(answer["port"])
