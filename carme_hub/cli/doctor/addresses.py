"""Who reaches an address: this machine alone, or compute nodes too; and what is wrong with where jobs report."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from .findings import Finding, unsafe

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


def url_of_node_api(app: Any) -> str:
    """Return an address of the hub with the host by which compute nodes reach it."""
    host = host_for_nodes(app)
    return f"http://{f'[{host}]' if ':' in host else host}"


def check_reports(
    app: Any, setting: str, url: str, *, own: bool, what: str, forged: str, mend: str
) -> Iterator[Finding]:
    """Yield why what jobs report to a service does not arrive, or could be read and forged on its way.

    Args:
        setting: the one that names the address. url: the address. own: whether the site has set it.
        what: jobs report. forged: what who reads it can do.
    """
    host, reached, listens = host_for_nodes(app), urlsplit(url).hostname or "", urlsplit(app.bind_url).hostname or ""
    if not own and not app.public_url and is_loopback(listens) and not is_loopback(reached):
        yield unsafe(setting, url, f"the proxy listens on {listens} alone, so no job can report there {what}", mend)
    elif is_loopback(reached) and not is_loopback(host):
        yield unsafe(
            setting, url, f"to a compute node this address is the node itself, so {what} does not arrive", mend
        )
    elif urlsplit(url).scheme == "http" and not is_loopback(reached):
        yield unsafe(setting, url, f"the secrets with which jobs report travel unencrypted: {forged}", mend)
