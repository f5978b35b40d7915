"""Parses the small JSON bodies of REST requests; a body that is too large is refused before it is parsed."""

from __future__ import annotations

import json
from typing import Any

from tornado import web


def small_json(body: bytes, largest: int) -> Any:
    """Parse a JSON body of at most ``largest`` bytes; raise an HTTP error for any other."""
    if len(body) > largest:
        raise web.HTTPError(413, "The body is one small JSON object.")
    try:
        return json.loads(body)
    except ValueError as error:
        raise web.HTTPError(400, "The body is not JSON.") from error
