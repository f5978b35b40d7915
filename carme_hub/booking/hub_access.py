"""How the hub asks the calendar to let somebody in: where, and the mark by which the calendar knows that it is the hub.

The mark is made with the service's API token, which the hub has given it. The token itself is not sent: whoever listens
at the service's port while the service is away learns nothing.
"""

from __future__ import annotations

import hashlib
import hmac

#: The service's name at the hub, and the path below its prefix.
SERVICE, PATH = "reservations", "let-in"
#: The header with the mark.
MARK = "X-Carme-Mark"


def mark(token: str, body: bytes) -> str:
    """Return the mark of a request with this body."""
    return hmac.new(token.encode(), body, hashlib.sha256).hexdigest()
