"""Shared folders for starts: which a user may mount, and the binds of a request. Read from the database at each start.

So a folder that is shared no more is in no session that starts after that, whatever its file system still says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from carme_hub.containers.runtime import Bind
from carme_hub.domain.folders.mounts import Mountable, destination
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import Refused, StoreError
from carme_hub.folders.settings import CarmeFolders
from carme_hub.spawners.job_script import Site
from carme_hub.store.folders.store import FolderStore
from carme_hub.store.threads import in_store_thread


class FolderAccess:
    """What users of this hub may mount."""

    def __init__(
        self,
        settings: CarmeFolders,
        store: FolderStore,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._store, self._log, self._clock = settings, store, log, clock

    async def mountable(self, user: str) -> tuple[Mountable, ...]:
        """Return the folders that a user may mount, published datasets included, by name."""
        found = {one.folder.id: one for one in await in_store_thread(self._store.published)}
        found |= {one.folder.id: one for one in await in_store_thread(self._store.of_user, user, (), ())}
        now = self._clock()
        rows = [self._settings.mountable(one, user, now) for one in found.values()]
        return tuple(sorted((row for row in rows if row is not None), key=lambda row: row.name))

    async def remembered(self, user: str) -> Mapping[str, str]:
        """Return the folders of a user's last starts, by profile."""
        return await in_store_thread(self._store.choices, user)

    async def remember(self, user: str, request: Request) -> None:
        """Store the folders of a start; that it is not stored stops no start."""
        value = ",".join(f"{mount['id']}:{mount['mode']}" for mount in request.folders)
        try:
            await in_store_thread(self._store.set_choice, user, request.profile, value)
        except StoreError as error:
            self._log.warning("The folders that %s chose are not remembered: %s", user, error)

    async def mounted(self, site: Site, user: str, request: Request) -> Site:
        """Return the settings of a container that has the request's folders.

        Raises:
            Refused: one of them is not shared with the user any more.
        """
        if not request.folders:
            return site
        offered = {one.id: one for one in await self.mountable(user)}
        binds = []
        for mount in request.folders:
            one = offered.get(mount["id"])
            if one is None or (mount["mode"] == "rw" and one.role != "rw"):
                name = one.name if one is not None else mount["id"]
                raise Refused(
                    f"The folder {name} is not shared with you any more in this way. Choose the folders again.",
                    reason="folder-not-shared",
                )
            binds.append(Bind(one.source, destination(one), "rw" if mount["mode"] == "rw" else "ro"))
        # Not the roots: a link of the user's, which a bind of the site follows, could lead to other folders there, and
        # a container engine that is root would mount what the user may not enter.
        roots = (bind.source for bind in binds)
        return replace(site, binds=(*site.binds, *binds), bind_roots=(*site.bind_roots, *roots))
