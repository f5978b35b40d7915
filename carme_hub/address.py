"""Find the client address of a request, in a way that the client cannot forge.

JupyterHub lets ``X-Real-Ip`` and ``X-Forwarded-For`` of any request override the address (tornado's ``xheaders``), and
its proxy passes ``X-Real-Ip`` on as the client sent it, so ``request.remote_ip`` is whatever the client chooses (a test
shows it). Therefore only the address of the socket is trusted, and if that is our own proxy, the last entry of
``X-Forwarded-For``, which the proxy itself has written. The authenticator's rate limits and the callback use it.

Other programs on the proxy's machine can write these headers, too. With ``internal_ssl`` the proxy's certificate tells
the proxy from them and from sessions, and nothing else is trusted. Without it, only the address is checked.
"""

from __future__ import annotations

import ssl
from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from tornado.httputil import HTTPServerRequest

#: JupyterHub's own authority for the proxy as a client, and the name of the one certificate that it signs.
_PROXY_AUTHORITY, _PROXY = "proxy-client-ca", "proxy-client"
#: The authorities for sessions and services: users hold the keys of these certificates.
_OTHERS_AUTHORITIES = frozenset({"notebooks-ca", "services-ca"})


def client_address(request: HTTPServerRequest, proxies: Iterable[str], hops: Collection[str] = ()) -> str:
    """Return the client's address, "" if it cannot be determined.

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
    """Return the key under which an address is counted: itself, or for IPv6 the /64 that one customer may use."""
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
    """Return whether the peer has shown a certificate that is not the proxy's."""
    sock = getattr(getattr(request.connection, "stream", None), "socket", None)
    if not isinstance(sock, ssl.SSLSocket):
        return False
    try:
        shown = sock.getpeercert()
    except (OSError, ValueError):
        return True
    if not shown:  # no certificate was requested: no internal_ssl
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
        # The connection is already closed: nobody receives the answer.
        return _parsed(request.remote_ip or ""), None
    ends = []
    for end in (sock.getpeername, sock.getsockname):
        try:
            name = end()
        except OSError:
            name = None
        ends.append(_parsed(str(name[0])) if isinstance(name, tuple) else None)
    return ends[0], ends[1]
