"""Who reaches an address: this machine alone, or compute nodes too."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

_ALL_INTERFACES = ("", "0.0.0.0", "::")  # noqa: S104 - where a hub listens, not where we do


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches that host name or address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_for_nodes(app: Any) -> str:
    """Return the host by which compute nodes reach the hub of an application that does not run.

    A running hub has it in ``hub.api_url``; this is how JupyterHub 6 makes it (``JupyterHub.init_hub``).
    """
    host = (
        urlsplit(app.hub_connect_url).hostname
        or app.hub_connect_ip
        or urlsplit(app.hub_bind_url).hostname
        or ("" if app.hub_bind_url else app.hub_ip)
    )
    return socket.gethostname() if host in _ALL_INTERFACES else str(host)
