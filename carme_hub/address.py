"""Which address a request comes from, in a way that the client cannot choose.

JupyterHub lets ``X-Real-Ip`` and ``X-Forwarded-For`` of any request override the address (tornado's ``xheaders``), and
its proxy hands ``X-Real-Ip`` through as the client sent it: with it, ``request.remote_ip`` is whatever the client likes
(a test shows it). So only the address of the socket is believed, and where that is a proxy of ours, the last entry of
``X-Forwarded-For``, which that proxy itself has written.

On the proxy's machine there may be others who can write headers. With ``internal_ssl`` the proxy is told from them, and
from sessions, by its certificate, so there nothing else is believed. Without it, an address is all there is.
"""

from __future__ import annotations

import ssl
from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from tornado.httputil import HTTPServerRequest

#: JupyterHub's own authority for the proxy as a client, and the name of the one certificate that it signs.
_PROXY_AUTHORITY, _PROXY = "proxy-client-ca", "proxy-client"
#: Those for sessions and services, whose certificates are in other people's hands.
_OTHERS_AUTHORITIES = frozenset({"notebooks-ca", "services-ca"})


def client_address(request: HTTPServerRequest, proxies: Iterable[str], hops: Collection[str] = ()) -> str:
    """Return the client's address, "" where none can be told.

    Args:
        proxies: addresses or networks of the hub's own proxy, besides this machine's.
        hops: addresses of further proxies before that one, skipped from the right.
    """
    peer, own = _socket_addresses(request)
    if peer is not None and ((peer != own and not _within(peer, proxies)) or _certified_stranger(request)):
        return str(peer)
    for entry in reversed(request.headers.get("X-Forwarded-For", "").split(",")):
        entry = entry.strip()
        if entry in hops:
            continue
        address = _parsed(entry)
        if address is not None:
            return str(address)
        break
    return str(peer) if peer is not None else ""


def address_key(address: str) -> str:
    """Return what an address is counted as: itself, or the /64 that one IPv6 customer can roam in."""
    parsed = _parsed(address)
    if isinstance(parsed, IPv6Address):
        return str(IPv6Network((parsed, 64), strict=False))
    return str(parsed) if parsed is not None else address[:64]


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _within(address: IPv4Address | IPv6Address, networks: Iterable[str]) -> bool:
    return any(address in ip_network(network, strict=False) for network in networks)


def _certified_stranger(request: HTTPServerRequest) -> bool:
    """Return whether the other end has shown a certificate, and not the proxy's."""
    sock = getattr(getattr(request.connection, "stream", None), "socket", None)
    if not isinstance(sock, ssl.SSLSocket):
        return False
    try:
        shown = sock.getpeercert()
    except (OSError, ValueError):
        return True
    if not shown:  # none was asked for: no internal_ssl
        return False
    authority = _common_name(shown.get("issuer"))
    # A site may bring its own authority for the proxy, of any name (JupyterHub.external_ssl_authorities).
    named = _common_name(shown.get("subject")) == _PROXY and authority not in _OTHERS_AUTHORITIES
    return authority != _PROXY_AUTHORITY and not named


def _common_name(name: Any) -> str:
    return next((str(value) for parts in name or () for key, value in parts if key == "commonName"), "")


def _socket_addresses(
    request: HTTPServerRequest,
) -> tuple[IPv4Address | IPv6Address | None, IPv4Address | IPv6Address | None]:
    """Return the addresses of both ends; None for a unix socket, which only a proxy of ours can reach."""
    stream: Any = getattr(request.connection, "stream", None)
    sock = getattr(stream, "socket", None)
    if sock is None:
        # No socket to ask (a connection already gone): the request is answered to nobody.
        return _parsed(request.remote_ip or ""), None
    ends = []
    for end in (sock.getpeername, sock.getsockname):
        try:
            name = end()
        except OSError:
            name = None
        ends.append(_parsed(str(name[0])) if isinstance(name, tuple) else None)
    return ends[0], ends[1]
