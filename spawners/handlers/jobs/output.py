"""The output of one job of the visitor's own: its end, what is new, a search, and the whole file.

``/hub/carme/jobs/output?job=9_3&stream=error`` is the page; ``…/new`` what was written since, for the page's script;
``…/file`` the download. All are read as the visitor (``spawners/jobs/output.py``).
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

from jupyterhub.handlers.base import BaseHandler
from tornado import web
from tornado.iostream import StreamClosedError

from carme_hub.domain.cluster.own_jobs.targets import Target, target_of
from carme_hub.errors import SlurmError
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.hub.shared import HubContext, started_hub
from carme_hub.spawners.jobs.acts import chosen
from carme_hub.spawners.jobs.output import DOWNLOAD, NEW, STREAMS, TAIL, NoOutput, Outputs, Place

OUTPUT, MORE, FILE = r"/carme/jobs/output", r"/carme/jobs/output/new", r"/carme/jobs/output/file"
_SILENT = "Slurm does not answer at the moment, so it is not known where the output is. Try it again in a minute."


class OutputBase(BaseHandler):
    """What the three have in common."""

    def _asked(self) -> tuple[HubContext, Target, str]:
        hub, target = started_hub(), target_of(self.get_argument("job", ""))
        stream = self.get_argument("stream", "output")
        if hub is None or target is None or stream not in STREAMS:
            raise web.HTTPError(404, "There is no such job of yours.")
        self.set_header("Cache-Control", "no-store")
        return hub, target, stream

    @property
    def _outputs(self) -> Outputs:
        found: Outputs = self.settings.setdefault("carme_outputs", Outputs())
        return found

    def _is_live(self, hub: HubContext, target: Target) -> bool:
        """Return whether the job may still write, as far as the queue was last seen."""
        latest = hub.watcher.latest
        return latest is None or bool(chosen(hub, latest, self.current_user.name, [target])[0].jobs)


class OutputHandler(OutputBase):
    """The page."""

    @web.authenticated
    async def get(self) -> None:
        """Show the end of the file, or the lines that are looked for."""
        hub, target, stream = self._asked()
        words = self.get_argument("find", "", strip=True)[:200]
        values: dict[str, Any] = {
            "target": str(target),
            "stream": stream,
            "streams": STREAMS,
            "find": words,
            "live": self._is_live(hub, target),
            "most_mib": DOWNLOAD >> 20,
        }
        place = None
        try:
            place = await self._outputs.place(hub, self.current_user.name, target, stream)
            values |= {"path": place.path, "what": place.name}
            if words:
                values["found"] = await self._outputs.find(hub, self.current_user.name, place, words)
            else:
                part = await self._outputs.part(hub, self.current_user.name, place, offset=-TAIL)
                values |= {"part": part, "written": clock(part.modified, time.time())}
        except NoOutput as error:
            if error.reason == "unknown":
                raise web.HTTPError(404, error.message) from error
            values["why"] = error.message
        except SlurmError as error:
            hub.log.warning("The output of job %s of %s is not read: %s", target, self.current_user.name, error)
            self.set_status(503)
            values["why"] = _SILENT if place is None else f"{place.path} was not read in time. Try it again."
        self.finish(await self.render_template("carme_job_output.html", **values))


class NewHandler(OutputBase):
    """What was written since: for the page's script."""

    async def get(self) -> None:
        """Send it as JSON: ``text``, the offset of its end, ``replaced`` where the file is another one now."""
        if self.current_user is None:
            raise web.HTTPError(403)
        hub, target, stream = self._asked()
        since = self._number("from")
        try:
            place = await self._outputs.place(hub, self.current_user.name, target, stream)
            live = self._is_live(hub, target)
            part = await self._outputs.part(hub, self.current_user.name, place, offset=since, length=NEW)
            replaced = part.size < since or str(part.inode) != self.get_argument("inode", "")
            if replaced:
                part = await self._outputs.part(hub, self.current_user.name, place, offset=-TAIL)
        except NoOutput as error:
            self.set_status(404)
            self.finish(json.dumps({"message": error.message}))
            return
        except SlurmError as error:
            self.set_status(503)
            hub.log.debug("The output of job %s of %s is not read: %s", target, self.current_user.name, error)
            self.finish(json.dumps({"message": _SILENT}))
            return
        more = part.end < part.size
        answer = {"text": part.text, "end": part.end, "size": part.size, "inode": str(part.inode), "replaced": replaced}
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({**answer, "live": live or more}))

    def _number(self, name: str) -> int:
        text = self.get_argument(name, "0")
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise web.HTTPError(400, f"{name} is a number.")
        return int(text)


class FileHandler(OutputBase):
    """The download."""

    @web.authenticated
    async def get(self) -> None:
        """Send the file, as text that no browser runs."""
        hub, target, stream = self._asked()
        user = self.current_user.name
        begun = False
        try:
            place = await self._outputs.place(hub, user, target, stream)
            async for piece in self._outputs.pieces(hub, user, place):
                if not begun:
                    begun = True
                    self._begin(place, target, stream)
                self.write(piece)
                await self.flush()
        except NoOutput as error:
            if not begun:
                raise web.HTTPError(404, error.message) from error
            self._break_off(error)
            return
        except SlurmError as error:
            if not begun:
                raise web.HTTPError(503, _SILENT) from error
            self._break_off(error)
            return
        except StreamClosedError:
            return
        if not begun:
            self._begin(Place("", ""), target, stream)
        self.finish()

    def _break_off(self, error: Exception) -> None:
        """Close the connection without an end of the body, so that nobody takes a part for the file."""
        self.log.warning("A download of %s breaks off: %s", self.current_user.name, error)
        self._auto_finish = False
        self.request.connection.close()

    def _begin(self, place: Place, target: Target, stream: str) -> None:
        name = (
            re.sub(r"[^A-Za-z0-9._-]", "_", place.path.rpartition("/")[2])[:100] or f"job-{target.number}-{stream}.txt"
        )
        self.set_header("Content-Type", "application/octet-stream")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Disposition", f'attachment; filename="{name}"')


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [
    (OUTPUT, OutputHandler),
    (MORE, NewHandler),
    (FILE, FileHandler),
]
