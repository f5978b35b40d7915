"""Disk use of a user by REST, and what sessions measure (the home page: ``home.disk``).

- ``GET /hub/api/carme/users/<name>/disk``: places with limits, growth and warnings, and the largest folders.
- ``PUT``: a session sends the largest folders of its user (``carme_hub.files.measured``).

Allowed are the tokens of the user's own running servers, and everybody who may start servers for the user.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tornado import web

from carme_hub.disk.view import as_json
from carme_hub.errors import StoreError
from carme_hub.spawners.handlers.batch_jobs import UserHandler
from carme_hub.spawners.hub.shared import HubContext

DISK = r"/api/carme/users/([^/]+)/disk"
#: The most folders that are kept of a user, and the largest body with them.
MAX_FOLDERS, _LARGEST_BODY = 50, 64 << 10
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
                await hub.disk.keep(user.name, self._sent())
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


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [(DISK, DiskHandler)]
