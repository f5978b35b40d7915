"""Whether a session's own server answers at an address: one short request, no retries, nothing of the body taken.

With ``internal_ssl`` every session's certificate is signed by one authority and may name every node, so that the
authority alone proves nothing: any user can listen with the certificate of a session of theirs. A server is known by
the fingerprint of the certificate that was issued for its session, seen on the very connection that is asked on.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from urllib.parse import urlsplit

from carme_hub.errors import CarmeError

#: Bytes that a status line with its headers may take. No more than twice this is ever held.
LARGEST = 64 * 1024


class SomethingElseAnswers(CarmeError):
    """Whoever listens at the address does not show the certificate that was issued for the session."""


def fingerprint(der: bytes) -> str:
    """Return by what a certificate is known: the SHA-256 of its DER form."""
    return hashlib.sha256(der).hexdigest()


async def answers(url: str, context: ssl.SSLContext | None, limit: float = 5.0, certificate: str = "") -> bool:
    """Return whether anything but an error of a gateway comes back; the server's certificate is checked.

    Asked many times a second while a server starts: a refused connection costs next to nothing.

    Args:
        certificate: fingerprint that the certificate must have; "" takes any that the context takes.

    Raises:
        SomethingElseAnswers: it has another.
    """
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    request = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(limit):
            reader, line = await asyncio.open_connection(parts.hostname, parts.port, ssl=context, limit=LARGEST)
            try:
                if certificate:
                    _check(line, certificate)
                line.write(request.encode("ascii"))
                head = await reader.readuntil(b"\r\n\r\n")
            finally:
                line.transport.abort()  # whatever else it wants to send is not wanted
    except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return False
    return 100 <= _status(head) < 500


def _check(line: asyncio.StreamWriter, certificate: str) -> None:
    secured = line.get_extra_info("ssl_object")
    shown = secured.getpeercert(binary_form=True) if secured is not None else None
    if shown is None or fingerprint(shown) != certificate:
        raise SomethingElseAnswers("The certificate shown is not the one of the session")


def _status(head: bytes) -> int:
    """Return the status of an HTTP answer, 0 when it is none."""
    version, _, rest = head.partition(b" ")
    code = rest[:3]
    return int(code) if version.startswith(b"HTTP/1.") and len(code) == 3 and code.isdigit() else 0
