"""What the hub says to another culler of a server: whether it may be culled (``carme_hub.activity.idle.culler``).

``GET /hub/api/carme/users/<name>/idle?server=<server>`` with the scope ``read:servers``, which jupyterhub-idle-culler
has.
"""

from __future__ import annotations

import json
from typing import Any

from jupyterhub.apihandlers.base import APIHandler
from jupyterhub.scopes import needs_scope
from tornado import web

from carme_hub.errors import StoreError
from carme_hub.spawners.hub.shared import started_hub

EVIDENCE = r"/api/carme/users/([^/]+)/idle"


class IdleEvidenceHandler(APIHandler):
    """Answers ``state`` ("ours", "busy", "unknown" or "free") and ``because``; nothing is changed."""

    @needs_scope("read:servers")
    async def get(self, user_name: str) -> None:
        """Send what is known of a server."""
        hub, server = started_hub(), self.get_query_argument("server", "")
        user = self.find_user(user_name)
        if hub is None or user is None or server not in user.spawners:
            raise web.HTTPError(404, "There is no such server.")
        sessions = hub.registry.open_of(user.name, server)
        state, because = "unknown", "it is no session of Slurm, or the hub measures nothing"
        if sessions and hub.idle is not None:
            try:
                state, because = await hub.idle.evidence(sessions[-1])
            except StoreError as error:
                raise web.HTTPError(503, "The database does not answer. Try it again in a moment.") from error
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps({"state": state, "because": because}))


HANDLERS: list[tuple[str, Any]] = [(EVIDENCE, IdleEvidenceHandler)]
