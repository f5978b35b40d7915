"""Asks the reservations service to add a user to a booking's Slurm reservation before their session starts in it.

Slurm has the users of a reservation as of the service's last reconciliation. A user who joined the class since then is
missing, so the service checks again before the job is submitted. An error prevents no start: most users are in the
reservation already, and Slurm refuses the job of one who is not.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import ssl
from typing import Any

import aiohttp
from jupyterhub.utils import make_ssl_context, url_path_join

from carme_hub.booking.hub_access import PATH, SERVICE, SIGNATURE_HEADER, sign

#: Seconds for which a start waits for the service.
TIMEOUT = 5.0


async def request_access(user: Any, booking: str, log: logging.Logger, *, max_wait: float = TIMEOUT) -> bool:
    """Return whether the service has confirmed in time that the user is in the booking's Slurm reservation.

    Args:
        user: JupyterHub's. booking: its id.
    """
    settings = getattr(user, "settings", None) or {}
    service = settings.get("services", {}).get(SERVICE)
    if service is None or service.server is None or not service.api_token:
        return False  # the site runs the service elsewhere, and its URL and token are not known here
    body = json.dumps({"user": user.name, "booking": booking}).encode()
    headers = {"Content-Type": "application/json", SIGNATURE_HEADER: sign(service.api_token, body)}
    try:
        async with (
            asyncio.timeout(max_wait),
            aiohttp.ClientSession() as session,
            session.post(
                url_path_join(service.server.url, PATH), data=body, headers=headers, ssl=_trusted(settings)
            ) as answer,
        ):
            said = await answer.json() if answer.status == 200 else {}
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        log.warning("The calendar was not asked to let %s into booking %s: %s", user.name, booking, _text(error))
        return False
    inside = isinstance(said, dict) and said.get("let_in") is True
    if not inside:
        log.warning("The calendar does not let %s into booking %s (status %s)", user.name, booking, answer.status)
    return inside


def _trusted(settings: dict[str, Any]) -> ssl.SSLContext | bool:
    files = tuple(settings.get(f"internal_ssl_{name}") or "" for name in ("key", "cert", "ca"))
    return _context(*files) if all(files) else True


@functools.cache
def _context(key: str, certificate: str, authority: str) -> ssl.SSLContext:
    context: ssl.SSLContext = make_ssl_context(key, certificate, cafile=authority)
    return context


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
