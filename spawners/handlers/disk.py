"""Disk use of a user: REST, what sessions measure, and what the home page shows of it.

- ``GET /hub/api/carme/users/<name>/disk``: places with limits, growth and warnings, and the largest folders.
- ``PUT``: a session sends the largest folders of its user (``carme_hub.files.measured``).

Allowed are the tokens of the user's own running servers, and everybody who may start servers for the user.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tornado import web

from carme_hub.disk.view import DiskView, as_json
from carme_hub.domain.disk_use import NEAR_PERCENT, Warning, size
from carme_hub.errors import StoreError
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.handlers.batch_jobs import UserHandler
from carme_hub.spawners.handlers.notices import NoticeLookup
from carme_hub.spawners.hub.shared import HubContext
from carme_hub.store.threads import in_store_thread

DISK = r"/api/carme/users/([^/]+)/disk"
#: The most folders that are kept of a user, those on the home page, and the largest body with them.
MAX_FOLDERS, SHOWN_FOLDERS, _LARGEST_BODY = 50, 5, 64 << 10
_Size = Annotated[int, Field(ge=0, lt=2**63)]


class Folder(BaseModel):
    """A folder and what is in it and below, in bytes on the disk."""

    model_config = ConfigDict(extra="forbid")

    path: Annotated[str, Field(min_length=1, max_length=1000)]
    bytes: _Size
    files: _Size


class Folders(BaseModel):
    """What a session has measured: all of ``root``, and its largest folders. ``complete``: nothing was left out."""

    model_config = ConfigDict(extra="forbid")

    root: Annotated[str, Field(min_length=1, max_length=1000)]
    bytes: _Size
    files: _Size
    complete: bool
    folders: Annotated[list[Folder], Field(max_length=MAX_FOLDERS)]


class DiskHandler(UserHandler):
    """One user's disk use."""

    async def get(self, name: str) -> None:
        """Answer with it."""
        await self._authorize(name)

    async def put(self, name: str) -> None:
        """Store what a session has measured."""
        await self._authorize(name)

    async def _answer(self, hub: HubContext, user: Any, *_more: str) -> None:
        try:
            if self.request.method == "PUT":
                await in_store_thread(hub.disk.store.put_folders, user.name, time.time(), self._sent())
                self.finish(json.dumps({}))
            else:
                self.finish(json.dumps(as_json(await hub.disk.view(user.name))))
        except StoreError as error:
            self.log.warning("The disk use of %s: %s", user.name, error)
            raise web.HTTPError(503, "The database does not answer. Try it again in a moment.") from error

    def _sent(self) -> dict[str, Any]:
        if len(self.request.body) > _LARGEST_BODY:
            raise web.HTTPError(413, f"A list of folders has at most {_LARGEST_BODY} bytes.")
        try:
            return Folders.model_validate_json(self.request.body).model_dump()
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "body"
            raise web.HTTPError(400, f"{where}: {first['msg']}") from error


@dataclass(frozen=True, slots=True)
class ShownPlace:
    """A place as the home page shows it."""

    path: str
    text: str
    percent: int
    near: bool


@dataclass(frozen=True, slots=True)
class ShownDisk:
    """The section *Your disk space* of the home page; ``measured`` is a time of day, "" = never."""

    places: Sequence[ShownPlace] = ()
    unknown: bool = False
    warnings: Sequence[Warning] = ()
    folders: Sequence[tuple[str, str]] = ()
    measured: str = ""
    incomplete: bool = False


class DiskLookup(NoticeLookup[ShownDisk]):
    """Reads a user's disk use for the home page."""

    def __init__(self) -> None:
        super().__init__(ShownDisk(), "Disk use")

    def _question(self, user: Any, hub: Any) -> Callable[[], Awaitable[ShownDisk]] | None:
        disk = getattr(hub, "disk", None)
        if disk is None:
            return None

        async def ask() -> ShownDisk:
            return shown(await disk.view(user.name), time.time())

        return ask


async def disk_for(handler: Any) -> ShownDisk:
    """Return the visitor's disk use, as far as it is known soon."""
    lookup: DiskLookup = handler.settings.setdefault("carme_disk", DiskLookup())
    return await lookup.for_user(handler.current_user)


def shown(view: DiskView, now: float) -> ShownDisk:
    """Return a view as the home page shows it."""
    places = []
    for each in view.places or ():
        use, limit = each.use, each.use.soft if each.use.soft is not None else each.use.limit
        text = f"{size(use.used)} used" + (f" of {size(limit)}" if limit is not None else "")
        if use.files is not None and use.file_limit is not None:
            text += f", {use.files:,} of {use.file_limit:,} files"
        if use.shared:
            text += ", by all users together"
        if each.growth is not None and abs(each.growth) >= 1 << 20:
            text += f"; it {'grows' if each.growth > 0 else 'shrinks'} by {size(int(abs(each.growth)))} a day"
        places.append(ShownPlace(use.path, text + ".", min(100, use.percent), use.percent >= NEAR_PERCENT))
    found = view.folders.get("folders", ())[:SHOWN_FOLDERS]
    return ShownDisk(
        places=places,
        unknown=view.places is None,
        warnings=view.warnings,
        folders=[(str(each["path"]), f"{size(each['bytes'])} in {each['files']:,} files") for each in found],
        measured=clock(view.measured, now) if view.measured else "",
        incomplete=not view.folders.get("complete", True),
    )


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [(DISK, DiskHandler)]
