"""Sends the largest folders of the user's home to the hub, for its home page; a session without a hub sends nothing."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any


def _hub() -> Any:
    from carme_hub.training.session.user_jobs import hub_of_user

    found = hub_of_user()
    return replace(found, url=found.url.removesuffix("batch-jobs") + "disk")


async def send(found: Mapping[str, Any]) -> None:
    """Send what was measured; a hub that does not answer, or is older, goes without."""

    def put() -> None:
        from carme_hub.training.session.companions import NoHub, Refused

        try:
            _hub().ask("PUT", "", dict(found))
        except (NoHub, Refused):
            return

    if os.environ.get("JUPYTERHUB_API_URL"):
        await asyncio.to_thread(put)


async def age() -> float | None:
    """Return the seconds since the hub got a measurement; None where there is no hub, or it does not say."""

    def ask() -> float | None:
        from carme_hub.training.session.companions import NoHub, Refused

        try:
            answer = _hub().ask("GET", "")
        except (NoHub, Refused):
            return None
        at = answer.get("measured") or 0.0
        return time.time() - float(at)

    return await asyncio.to_thread(ask) if os.environ.get("JUPYTERHUB_API_URL") else None
