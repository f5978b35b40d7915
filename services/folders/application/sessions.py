"""Which sessions have a folder now, and whether their users still should."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from carme_hub.domain.folders.folder import NOTHING, desired_roles
from carme_hub.domain.folders.rules import FolderRefused
from carme_hub.services.hub_api import stop_server
from carme_hub.store.folders.store import WithMembers
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread


@dataclass(frozen=True, slots=True)
class MountingSession:
    """A session that has a folder.

    Attributes:
        lost: its user's access has ended since, or is less than it was. job: it is a companion or a batch job, which
            ends with its session or by itself.
    """

    session: str
    user: str
    server_name: str
    mode: str
    created: float
    lost: bool
    job: bool = False


class MountingSessions:
    """Open sessions by the folders of their requests.

    Args:
        consent: whether the site lets who manages a folder end sessions whose users' access has ended.
        stop: has the hub stop a server.
    """

    def __init__(
        self,
        store: SessionStore,
        cluster: str,
        *,
        consent: bool = False,
        stop: Callable[[str, str], Awaitable[None]] = stop_server,
    ) -> None:
        self._store, self._cluster, self.consent, self._stop = store, cluster, consent, stop

    async def end_lost(self, found: WithMembers) -> list[MountingSession]:
        """End the servers that have a folder which their users should not have any more; return them.

        Raises:
            FolderRefused: the site does not consent, or the hub does not do it; what was ended stays ended.
        """
        if not self.consent:
            raise FolderRefused("This site ends no sessions for a folder (CarmeFolders.end_sessions).")
        lost = [one for one in await self.of(found) if one.lost and not one.job]
        for one in lost:
            try:
                await self._stop(one.user, one.server_name)
            except Exception as error:
                raise FolderRefused(
                    f"The hub did not end the session of {one.user}: {error}. Try again in a moment.", reason="hub"
                ) from error
        return lost

    async def of(self, found: WithMembers) -> list[MountingSession]:
        """Return the sessions that have a folder, companions and batch jobs included, the oldest first."""
        roles = desired_roles(found.members, time.time())
        rows = []
        for one in await in_store_thread(self._store.open_sessions, self._cluster):
            mode = next((each["mode"] for each in one.request.folders if each["id"] == found.folder.id), "")
            if mode:
                role = roles.get(one.user, NOTHING)
                reads = bool(role) or found.folder.published
                lost = not reads or (mode == "rw" and role != "rw")
                about = (one.id, one.user, one.server_name, mode, one.created)
                rows.append(MountingSession(*about, lost, job=bool(one.parent)))
        return rows
