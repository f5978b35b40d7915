"""REST of images that users build.

``/hub/api/carme/users/<name>/image-builds``: GET lists, POST builds by user options of a server, ``…/<uuid>`` is one,
DELETE removes it, ``…/<uuid>/log?from=N`` is what its log has from an offset on. Callers are those of batch jobs.
``/hub/api/carme/sessions/<uuid>/image-builds``: POST builds on top of a running session's image, GET says what that is.
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote, urlencode

from jupyterhub.scopes import needs_scope
from tornado import web

from carme_hub.domain.images.builds import BuildState
from carme_hub.errors import SlurmError
from carme_hub.spawners.companions.image_builds import (
    Asked,
    as_json,
    build_of,
    builds_of,
    open_build,
    remove_build,
    removed_of,
    terms_of,
)
from carme_hub.spawners.companions.outside import origin_of
from carme_hub.spawners.handlers.batch_jobs import UserHandler
from carme_hub.spawners.handlers.bodies import small_json
from carme_hub.spawners.handlers.companions import SessionHandler, idempotency_key
from carme_hub.spawners.hub.shared import HubContext, started_hub
from carme_hub.spawners.jobs.output import NEW, NoOutput, Outputs, Place

_UUID = "[0-9a-f-]{36}"
BUILDS = r"/api/carme/users/([^/]+)/image-builds"
ONE, LOG = rf"{BUILDS}/({_UUID})", rf"{BUILDS}/({_UUID})/log"
OF_SESSION = rf"/api/carme/sessions/({_UUID})/image-builds"
_LARGEST_BODY = 512 << 10
#: What is said of a build whose job has written nothing.
WAITS = "The job waits in the queue, or begins."
_FIELDS = {"name": str, "kind": str, "text": str, "minutes": int, "description": str, "context": str}


def asked_of(body: dict[str, Any]) -> Asked:
    """Return what a body asks for; unknown fields and other types are errors."""
    if unknown := sorted(set(body) - set(_FIELDS)):
        raise web.HTTPError(400, f"Unknown: {', '.join(unknown)[:100]}. Known: {', '.join(_FIELDS)}.")
    for name, value in body.items():
        if type(value) is not _FIELDS[name]:
            raise web.HTTPError(400, f"{name} is a {'number' if name == 'minutes' else 'text'}.")
    if missing := [name for name in ("name", "kind", "text") if name not in body]:
        raise web.HTTPError(400, f"{missing[0]} is missing.")
    return Asked(**body)


def _body(raw: bytes) -> dict[str, Any]:
    body = small_json(raw, _LARGEST_BODY)
    if not isinstance(body, dict):
        raise web.HTTPError(
            400, 'Send a JSON object, such as {"name": "tools", "kind": "requirements", "text": "rich"}.'
        )
    return body


class BuildsHandler(UserHandler):
    """Lists a user's images, and builds one."""

    async def get(self, name: str) -> None:
        """List them, the newest first."""
        await self._authorize(name)

    async def post(self, name: str) -> None:
        """Build one by user options of a server; with an ``Idempotency-Key`` only once."""
        await self._open(user_name=name)

    @needs_scope("start:servers")
    async def _open(self, user_name: str) -> None:
        await self._found(started_hub(), user_name, "open")

    async def _answer(self, hub: HubContext, user: Any, *more: str) -> None:
        if more == ("open",):
            body = _body(self.request.body)
            options = body.pop("options", {})
            asked = asked_of(body)
            origin = await origin_of(hub, user.spawner, options)
            build, warnings = await open_build(hub, user.spawner, origin, asked, idempotency_key(self))
            self.set_status(201)
            self.finish(json.dumps({**as_json(hub, build), "warnings": list(warnings)}))
            return
        found = await builds_of(hub, user.name)
        gone = await removed_of(hub, user.name)
        said = [as_json(hub, each) for each in found]
        self.finish(json.dumps({"image_builds": said, "removed": gone}))


class SessionBuildsHandler(SessionHandler):
    """Builds an image on top of a session's, and says beforehand what it would be."""

    not_known = "The database or Slurm does not answer. Look at your images before you try again."

    async def get(self, id: str) -> None:
        """Send its base and the limits, or why none can be built; nothing is written."""
        await self._authorize(id, "terms")

    async def post(self, id: str) -> None:
        """Build it; with an ``Idempotency-Key`` only once."""
        await self._authorize(id)

    async def _answer(self, hub: HubContext, spawner: Any, session: Any, *more: str) -> None:
        if more == ("terms",):
            self.finish(json.dumps(await terms_of(hub, spawner, session)))
            return
        asked = asked_of(_body(self.request.body))
        build, warnings = await open_build(hub, spawner, session, asked, idempotency_key(self))
        self.set_status(201)
        said = as_json(hub, build)
        self.finish(json.dumps({**said, "warnings": list(warnings)}))


class BuildHandler(UserHandler):
    """One image of a user."""

    async def get(self, name: str, id: str) -> None:
        """Send its state."""
        await self._authorize(name, id)

    async def delete(self, name: str, id: str) -> None:
        """Remove it."""
        await self._authorize(name, id, "remove")

    async def _answer(self, hub: HubContext, user: Any, *more: str) -> None:
        act = remove_build if more[1:] else build_of
        found = await act(hub, user.name, more[0])
        start = start_path(user, found.name, named=self.allow_named_servers)
        self.finish(json.dumps({**as_json(hub, found), "start": start}))


def start_path(user: Any, image: str, *, named: bool, profile: str = "") -> str:
    """Return the page on which a user starts a server with an image, below the hub's prefix; "" = stop one before.

    The form of a server that runs leads into that server, so it is another one's form then.

    Args:
        named: whether users may have servers beside their default one.
    """
    words = {**({"opt-profile": profile} if profile else {}), "opt-image": image}
    if not user.spawner.active:
        return f"spawn?{urlencode(words)}"
    return f"spawn/{quote(str(user.name), safe='')}/{_server_name(image)}?{urlencode(words)}" if named else ""


def _server_name(image: str) -> str:
    """Return a name for a server with an image, as JupyterHub takes it: letters, digits and single hyphens."""
    plain = re.sub("[^a-z0-9]+", "-", image.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"image-{plain}")[:30].rstrip("-")


def log_of(user: Any, id: str) -> Place:
    """Return where the log of a build is: the batch script's, in the user's home."""
    return Place(f"{user.spawner.owner().home}/.carme/sessions/{id}/job.log", "the build")


class LogHandler(UserHandler):
    """The log of a build from an offset on: for the command, and for the page's script."""

    async def get(self, name: str, id: str) -> None:
        """Send it as JSON, as the output of jobs (``handlers.jobs.output``)."""
        await self._authorize(name, id)

    async def _answer(self, hub: HubContext, user: Any, *more: str) -> None:
        await answer_log(self, hub, user, more[0])


async def answer_log(handler: Any, hub: HubContext, user: Any, id: str) -> None:
    """Answer with what the log of a user's build has from ``from`` on."""
    since = handler.get_argument("from", "0")
    if not (since.isascii() and since.isdigit() and len(since) < 20):
        raise web.HTTPError(400, "from is a number.")
    build = await build_of(hub, user.name, id)
    live = build.state is BuildState.BUILDING
    handler.set_header("Content-Type", "application/json")
    try:
        part = await Outputs().part(hub, user.name, log_of(user, id), offset=int(since), length=NEW)
    except NoOutput as error:
        if error.reason != "missing":
            raise
        nothing = {"text": "", "end": int(since), "size": 0, "inode": "", "replaced": False}
        handler.finish(json.dumps({**nothing, "live": live, "said": WAITS if live else error.message}))
        return
    except SlurmError as error:
        raise web.HTTPError(503, "The log is not read now. Try it again in a minute.") from error
    more = part.end < part.size
    answer = {"text": part.text, "end": part.end, "size": part.size, "inode": str(part.inode), "replaced": False}
    handler.finish(json.dumps({**answer, "live": live or more}))


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [
    (BUILDS, BuildsHandler),
    (ONE, BuildHandler),
    (LOG, LogHandler),
    (OF_SESSION, SessionBuildsHandler),
]
