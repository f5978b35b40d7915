"""Keep what a session has installed as an image: what JupyterLab's panel shows of it, and what its form asks for.

- ``GET <base>/carme/images``: the packages that would be in it, what it would be built on, and why not (``problem``);
  ``last``: id of the image that was begun here last, also in another tab, "" = none.
- ``POST <base>/carme/images`` with ``{"name": …, "description": …, "key": …}``: build it, once for each key.
- ``GET <base>/carme/images/<id>?from=N``: how far it is, and what its log has from an offset on.

The job is the user's, opened as ``carme-hub image build --installed`` does. The token stays in the server.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web
from tornado.ioloop import IOLoop

#: Seconds for an answer of the hub to a look; an image that is opened may have longer. Bytes of a log at once.
LOOK_LIMIT, MOST_LOG = 10.0, 64 << 10
_KEY, _ID = re.compile("[0-9A-Za-z-]{8,64}"), re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: What a build is for the page; the others are not known to an older one.
_SHOWN = ("id", "name", "state", "problem", "base", "job", "start")
_SILENT = "The hub does not answer. Try again in a minute."


class SessionImages:
    """The images that are built of what this session has installed."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ, self._last = environ, ""

    def view(self) -> dict[str, Any]:
        """Return what would be in an image, and on what it would be built."""
        from carme_hub.training.images.hub_builds import builds_of_session
        from carme_hub.training.images.wanted import of_session
        from carme_hub.training.run.failures import CannotRun
        from carme_hub.training.session.companions import NoHub, Refused

        packages, problem = list[str](), ""
        try:
            packages = of_session(self._environ).text.splitlines()
        except CannotRun as error:
            problem = str(error)
        terms: Mapping[str, Any] = {}
        try:
            terms = builds_of_session(self._environ, LOOK_LIMIT).ask("GET", "")
            problem = str(terms.get("problem") or "") or problem
        except Refused as error:
            problem = str(error)
        except NoHub:
            problem = _SILENT
        shown = {name: terms.get(name, "") for name in ("base", "base_digest", "below", "days")}
        return {"packages": packages, "problem": problem, "last": self._last, **shown}

    def build(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Have an image built; ``message`` says why not, where it is not ``done``.

        Raises:
            ValueError: the request is none.
        """
        from carme_hub.training.images.hub_builds import builds_of_session, open_build
        from carme_hub.training.images.wanted import of_session
        from carme_hub.training.run.failures import CannotRun
        from carme_hub.training.session.companions import NoHub, Refused

        name, description, key = (body.get(each) for each in ("name", "description", "key"))
        texts = isinstance(name, str) and isinstance(description, str) and isinstance(key, str)
        if not texts or not _KEY.fullmatch(str(key)):
            raise ValueError('Send {"name": "…", "description": "…", "key": "…"}.')
        try:
            wanted = of_session(self._environ)
            asked = {"kind": wanted.kind, "text": wanted.text, "name": name, "description": description}
            opened = open_build(builds_of_session(self._environ), asked, str(key))
        except (CannotRun, Refused) as error:
            return {"done": False, "message": str(error)}
        except NoHub:
            return {"done": False, "message": f"{_SILENT} It is not known whether the image is being built."}
        self._last = str(opened.get("id", ""))
        return {"done": True, "message": " ".join(map(str, opened.get("warnings") or ())), "build": _shown(opened)}

    def progress(self, id: str, since: int) -> dict[str, Any]:
        """Return how far a build is: ``build``, and ``text`` and ``end`` of its log; ``problem``: why not.

        Raises:
            ValueError: this is no id.
        """
        from carme_hub.training.images.hub_builds import builds_of_user, log_part
        from carme_hub.training.session.companions import NoHub, Refused

        if not _ID.fullmatch(id):
            raise ValueError("This is no id of an image.")
        try:
            hub = builds_of_user(self._environ, LOOK_LIMIT)
            build = hub.ask("GET", f"/{id}")
        except Refused as error:
            return {"build": None, "text": "", "end": since, "problem": str(error)}
        except NoHub:
            return {"build": {}, "text": "", "end": since, "problem": _SILENT}
        text, end = log_part(hub, id, since, MOST_LOG)
        return {"build": _shown(build), "text": text, "end": end, "problem": ""}


def _shown(build: Mapping[str, Any]) -> dict[str, Any]:
    return {name: build.get(name, "") for name in _SHOWN}


class _Handler(APIHandler):
    """Answers in a thread; looking on is no work."""

    auth_resource = "kernels"
    _track_activity = False

    def initialize(self, images: SessionImages, threads: ThreadPoolExecutor) -> None:
        """Keep what all requests share."""
        self._images, self._threads = images, threads

    async def _answer(self, of: Callable[[], dict[str, Any]]) -> None:
        try:
            answer = await IOLoop.current().run_in_executor(self._threads, of)
        except ValueError as error:
            raise web.HTTPError(400, str(error)) from None
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(answer))


class ImagesHandler(_Handler):
    """What would be in an image, and the form's request."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with it; nothing is changed."""
        await self._answer(self._images.view)

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Have an image built."""
        body = self.get_json_body()
        asked = body if isinstance(body, dict) else {}
        await self._answer(lambda: self._images.build(asked))


class ImageHandler(_Handler):
    """One build."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Answer with how far it is."""
        since = self.get_argument("from", "0")
        if not (since.isascii() and since.isdigit() and len(since) < 16):
            raise web.HTTPError(400, "from is a number.")
        await self._answer(lambda: self._images.progress(id, int(since)))
