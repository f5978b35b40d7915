"""A probe of a session's server: one short HTTP request without retries, whose body is not read.

With ``internal_ssl`` one authority signs every session's certificate, which may name every node, so that the authority
alone proves nothing: any user can listen with a certificate of their own session. The probe compares the fingerprint
of the certificate on its own connection with the one that was issued for the session.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from urllib.parse import urlsplit

from carme_hub.errors import CarmeError

#: Largest size of the status line and headers in bytes. At most twice as much is in memory.
MAX_HEAD = 64 * 1024


class WrongCertificate(CarmeError):
    """The listener at the address does not show the certificate that was issued for the session."""


def fingerprint(der: bytes) -> str:
    """Return the SHA-256 of a certificate's DER form."""
    return hashlib.sha256(der).hexdigest()


async def answers(url: str, context: ssl.SSLContext | None, limit: float = 5.0, certificate: str = "") -> bool:
    """Return whether the answer is anything except a gateway error; the server's certificate is checked.

    It is called many times a second while a server starts: a refused connection costs very little.

    Args:
        certificate: fingerprint that the certificate must have; "" accepts any that the context accepts.

    Raises:
        WrongCertificate: the server shows another one.
    """
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    request = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(limit):
            reader, line = await asyncio.open_connection(parts.hostname, parts.port, ssl=context, limit=MAX_HEAD)
            try:
                if certificate:
                    check_certificate(line, certificate)
                line.write(request.encode("ascii"))
                head = await reader.readuntil(b"\r\n\r\n")
            finally:
                line.transport.abort()  # the body is not needed
    except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return False
    return 100 <= status_of(head) < 500


def check_certificate(line: asyncio.StreamWriter, certificate: str) -> None:
    """Raise ``WrongCertificate`` where a connection shows another certificate than the one with this fingerprint."""
    secured = line.get_extra_info("ssl_object")
    shown = secured.getpeercert(binary_form=True) if secured is not None else None
    if shown is None or fingerprint(shown) != certificate:
        raise WrongCertificate("The certificate shown is not the one of the session")


def status_of(head: bytes) -> int:
    """Return the status of an HTTP answer, 0 if it is not HTTP."""
    version, _, rest = head.partition(b" ")
    code = rest[:3]
    return int(code) if version.startswith(b"HTTP/1.") and len(code) == 3 and code.isdigit() else 0
