"""Which sessions have a folder now, and whether their users still should."""

from __future__ import annotations

import time
from dataclasses import dataclass

from carme_hub.domain.folders.folder import NOTHING, wishes
from carme_hub.store.folders.store import WithMembers
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread


@dataclass(frozen=True, slots=True)
class MountingSession:
    """A session that has a folder. ``lost``: its user's access has ended since, or is less than it was."""

    session: str
    user: str
    server_name: str
    mode: str
    created: float
    lost: bool


class MountingSessions:
    """Open sessions by the folders of their requests."""

    def __init__(self, store: SessionStore, cluster: str) -> None:
        self._store, self._cluster = store, cluster

    async def of(self, found: WithMembers) -> list[MountingSession]:
        """Return the sessions that have a folder, companions and batch jobs included, the oldest first."""
        roles = wishes(found.members, time.time())
        rows = []
        for one in await in_store_thread(self._store.open_sessions, self._cluster):
            mode = next((each["mode"] for each in one.request.folders if each["id"] == found.folder.id), "")
            if mode:
                role = roles.get(one.user, NOTHING)
                reads = bool(role) or found.folder.published
                lost = not reads or (mode == "rw" and role != "rw")
                rows.append(MountingSession(one.id, one.user, one.server_name, mode, one.created, lost))
        return rows
