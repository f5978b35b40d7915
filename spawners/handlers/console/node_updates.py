"""REST by which ``carme-hub nodes update`` has in the audit log what it does on nodes by itself.

Draining, resuming and messages go through the console's own REST, which records them. The site's command and the health
check run on the host of the command: ``POST nodes/NODE/updates`` records them.
"""

from __future__ import annotations

from typing import Any

from carme_hub.domain.administration.scopes import OPERATE
from carme_hub.spawners.console import acts
from carme_hub.spawners.handlers.console.base import actor_of
from carme_hub.spawners.handlers.console.rest import API, ConsoleApi


class NodeUpdatesApi(ConsoleApi):
    """Records what an update did on a node."""

    async def post(self, node: str) -> None:
        """Record it."""
        hub = self.checked_hub(OPERATE)
        body = self.body("reason", "did", "outcome")

        async def note() -> dict[str, Any]:
            await acts.note_update(hub, actor_of(self, "rest"), node, **body)
            return {"node": node}

        await self.answered(note(), 201)


HANDLERS: list[tuple[str, Any]] = [(f"{API}/nodes/([^/]+)/updates", NodeUpdatesApi)]
