"""The hub's request to the reservations service to give a user access to a booking: its path and its signature.

The signature is an HMAC with the service's API token, which both know. The token itself is not sent: a process that
listens on the service's port while the service is down does not learn it.
"""

from __future__ import annotations

import hashlib
import hmac

#: The service's name at the hub, and the path below its prefix.
SERVICE, PATH = "reservations", "let-in"
#: The header with the signature.
SIGNATURE_HEADER = "X-Carme-Mark"


def sign(token: str, body: bytes) -> str:
    """Return the signature of a request with this body."""
    return hmac.new(token.encode(), body, hashlib.sha256).hexdigest()
