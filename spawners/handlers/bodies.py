"""The small JSON bodies of our requests: anything else is refused before it is looked at."""

from __future__ import annotations

import json
from typing import Any

from tornado import web


def small_json(body: bytes, largest: int) -> Any:
    """Return what a body of at most ``largest`` bytes says; an HTTP error says what is wrong with any other."""
    if len(body) > largest:
        raise web.HTTPError(413, "The body is one small JSON object.")
    try:
        return json.loads(body)
    except ValueError as error:
        raise web.HTTPError(400, "The body is not JSON.") from error
