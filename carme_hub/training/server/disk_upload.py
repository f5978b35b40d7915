"""The disk use of the session's user, between session and hub; a session without a hub sends and asks nothing.

The largest folders of the home go to the hub, for its home page. What the hub warns of is shown in JupyterLab.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

#: Bytes of what is sent: the hub takes 64 KiB (``spawners.handlers.disk``), and names may be long.
MOST_BYTES = 60_000


def fitting(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was measured without the smallest of its folders, so that the hub takes it."""
    sent = {**found, "folders": list(found["folders"])}
    while sent["folders"] and len(json.dumps(sent)) > MOST_BYTES:
        sent["folders"].pop()
    return sent


def _hub() -> Any:
    from carme_hub.training.session.user_jobs import hub_of_user

    found = hub_of_user()
    return replace(found, url=found.url.removesuffix("batch-jobs") + "disk")


async def send(found: Mapping[str, Any]) -> None:
    """Send what was measured; a hub that does not answer, or is older, goes without."""

    def put() -> None:
        from carme_hub.training.session.companions import NoHub, Refused

        try:
            _hub().ask("PUT", "", fitting(found))
        except (NoHub, Refused):
            return

    if os.environ.get("JUPYTERHUB_API_URL"):
        await asyncio.to_thread(put)


class DiskOfHub:
    """What the hub says of the disk use of the session's user."""

    def __init__(self) -> None:
        #: ``path`` and ``text`` of each place that is nearly full or full, as of the last answer, at most an hour old.
        self.warnings: list[dict[str, str]] = []

    async def age(self) -> float | None:
        """Ask, and return the seconds since the hub got a measurement; None where there is no hub, or it is silent."""

        def ask() -> float | None:
            from carme_hub.training.session.companions import NoHub, Refused

            try:
                answer = _hub().ask("GET", "")
            except (NoHub, Refused):
                return None
            places = [each for each in answer.get("places") or () if each.get("warning")]
            self.warnings = [{"path": str(each["path"]), "text": str(each["warning"])} for each in places]
            return time.time() - float(answer.get("measured") or 0.0)

        return await asyncio.to_thread(ask) if os.environ.get("JUPYTERHUB_API_URL") else None
