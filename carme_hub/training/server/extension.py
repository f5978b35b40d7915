"""Jupyter server extension: the state of a run for its display in JupyterLab, and what the display's buttons ask for.

A kernel sends its run to the pages that are open. A page that is opened later, or after the kernel ended, has only what
the notebook was saved with, so it asks the server, which reads the run's folder and its conductor's socket as
``distributed`` does. Enabled by ``etc/jupyter/jupyter_server_config.d/carme-hub.json``.

- ``GET <base>/carme/runs/<id>``: the bundle of media types that the kernel would send.
- ``POST <base>/carme/runs/<id>`` with ``{"ask": "stop" | "stacks" | "+1" | "-1"}``: ``{"message": …}``.
- ``GET <base>/carme/runs.css``: the style sheet.
- ``GET``, ``POST <base>/carme/activity``: what the session uses and what is left of it (``activity``).
- ``POST <base>/carme/end``: the hub has the session put in order before it ends it (``orderly_end``).

- ``carme/images``: what the session has installed, kept as an image (``image_builds``).
- ``carme/files``, ``carme/uploads``: the page *Files* (``carme_hub.files``).

The page *Runs* (``runs_page``) asks at the same addresses for all runs.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from html import escape
from threading import Lock
from typing import Any
from urllib.parse import quote

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.ioloop import IOLoop, PeriodicCallback

from carme_hub.files.routes import PATHS, FileRoutes

from .activity import SessionActivity, kernel_pids
from .disk_upload import DiskOfHub, send
from .end_handler import EndHandler, orderly_end_of
from .image_builds import ImageHandler, ImagesHandler, SessionImages
from .runs_page import ACTIONS, PAGE, POLICY, TIMELINE, TIMELINE_POLICY, RunsPage
from .upload import INTERVAL, JITTER, RunsUpload
from .work import INTERVAL as WORK_INTERVAL
from .work import WorkFile

#: Runs whose logs are kept open for the next request: reading a long log anew takes longer than its new lines.
MOST_RUNS = 16
#: How much of a profile is read at once.
PIECE_BYTES = 1 << 20


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    base = server.web_app.settings["base_url"]
    runs, page = Runs(), RunsPage()
    disk = DiskOfHub()
    activity = SessionActivity(lambda: kernel_pids(server.kernel_manager), disk=lambda: disk.warnings)
    files = FileRoutes(server.web_app, base, send, disk.age)
    IOLoop.current().add_callback(files.measure_daily)
    shared = {"runs": runs, "page": page, "activity": activity}
    images = {"images": SessionImages(), "threads": runs.askers}
    upload = RunsUpload(lambda: page.rows()["runs"])
    PeriodicCallback(
        lambda: IOLoop.current().run_in_executor(runs.readers, upload.look), 1000 * INTERVAL, JITTER
    ).start()
    _keep_work_file(server, runs, page)
    server.web_app.add_handlers(
        ".*$",
        [
            (url_path_join(base, r"carme/runs/([^/]+)"), RunHandler, shared),
            (url_path_join(base, "carme/runs"), RunsHandler, shared),
            (url_path_join(base, "carme/comparison"), ComparisonHandler, shared),
            (url_path_join(base, "carme/runs.html"), PageHandler),
            (url_path_join(base, r"carme/timeline/([^/]+)/(\d{1,6})"), TimelineHandler),
            (url_path_join(base, r"carme/profile/([^/]+)/(\d{1,6})"), ProfileHandler, shared),
            (url_path_join(base, "carme/runs.css"), StyleHandler),
            (url_path_join(base, "carme/activity"), ActivityHandler, shared),
            (url_path_join(base, "carme/images"), ImagesHandler, images),
            (url_path_join(base, r"carme/images/([^/]+)"), ImageHandler, images),
            (url_path_join(base, "carme/end"), EndHandler, {"orderly_end": orderly_end_of(server, page)}),
            (url_path_join(base, PATHS), files),
        ],
    )


def _keep_work_file(server: Any, runs: Runs, page: RunsPage) -> None:
    """Write what is at work in this session, while it lasts (``work``)."""
    settings = server.web_app.settings

    def terminals() -> list[Any]:
        manager = settings.get("terminal_manager")  # None where terminals are switched off
        return list(manager.terminals.values()) if manager is not None else []

    file = WorkFile(server.kernel_manager.list_kernels, terminals, lambda: page.rows()["runs"])

    async def look() -> None:
        await IOLoop.current().run_in_executor(runs.readers, file.write, file.look())

    if file.path is not None:
        PeriodicCallback(look, 1000 * WORK_INTERVAL).start()


class Runs:
    """The runs that pages ask for. What it needs of ``carme_hub.training`` is imported at the first request."""

    def __init__(self) -> None:
        self._logs: OrderedDict[tuple[str, float], tuple[Any, Lock]] = OrderedDict()
        self._lock, self._jobs = Lock(), None  # type: Lock, Any
        # A home that does not answer, or a long log, keeps nobody from the server, and no look a button.
        self.readers, self.askers = (ThreadPoolExecutor(4, f"carme-runs-{word}") for word in ("read", "ask"))

    def bundle(self, id: str) -> dict[str, Any]:
        """Return a run by media type.

        Raises:
            NoRun: there is none with this id.
        """
        from carme_hub.training.notebook.display import as_bundle
        from carme_hub.training.notebook.follow import Logs
        from carme_hub.training.records.batch_jobs import Refresher
        from carme_hub.training.run.description import ENDED
        from carme_hub.training.run.run_folder import Run

        run = Run.by_id(id)
        self._jobs = self._jobs or Refresher()
        self._jobs.refresh([run])
        state = run.state()
        key = (run.id, float(state.get("began") or 0))  # a run that was deleted may have had the same id
        with self._lock:
            logs, lock = self._logs.pop(key, None) or (Logs(run), Lock())
            if state["state"] not in ENDED:
                self._logs[key] = logs, lock
                while len(self._logs) > MOST_RUNS:
                    self._logs.popitem(last=False)
        with lock:
            return as_bundle(logs.view(state, time.time(), whole=state["state"] in ENDED))

    def ask(self, id: str, word: str) -> str:
        """Do what a button asks for, and return what to tell the user.

        Raises:
            NoRun: there is none with this id. ValueError: there is no such button.
        """
        from carme_hub.training.run import control
        from carme_hub.training.run.description import stacks_text
        from carme_hub.training.run.run_folder import Run

        run = Run.by_id(id)
        try:
            if word == "stacks":
                return stacks_text(run.stacks())
            if word == "stop":
                run.request_end("stop")
                return "Stop requested."
            if word in ("+1", "-1"):
                return str(run.resize(int(word)).get("message") or "Resize requested.")
        except (control.NoConductor, control.RequestRefused) as error:
            return str(error)
        raise ValueError(f"{word[:40]!r} is none of stop, stacks, +1 and -1.")


class _Handler(APIHandler):
    """Answers in a thread."""

    auth_resource = "kernels"  # whoever may not run code may not stop it either
    #: A page that only looks on is no work: it would keep an idle server.
    _track_activity = False

    def initialize(self, runs: Runs, page: RunsPage, activity: SessionActivity) -> None:
        """Keep what all requests share."""
        self._runs, self._page, self._activity = runs, page, activity

    async def _answer(self, threads: ThreadPoolExecutor, of: Callable[[], dict[str, Any]]) -> None:
        from carme_hub.training.run.run_folder import NoRun

        try:
            answer = await IOLoop.current().run_in_executor(threads, of)
        except NoRun as error:
            raise web.HTTPError(404, str(error)) from None
        except ValueError as error:
            raise web.HTTPError(400, str(error)) from None
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(answer, allow_nan=False))


class RunHandler(_Handler):
    """One run."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Answer with the run by media type."""
        await self._answer(self._runs.readers, lambda: self._runs.bundle(id))

    @web.authenticated
    @authorized
    async def post(self, id: str) -> None:
        """Do what a button asks for."""
        body = self.get_json_body() or {}
        if body.get("ask") in ACTIONS:
            await self._answer(self._runs.askers, lambda: self._page.do(id, body))
        else:
            await self._answer(self._runs.askers, lambda: {"message": self._runs.ask(id, str(body.get("ask")))})


class RunsHandler(_Handler):
    """All runs."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the table."""
        await self._answer(self._runs.readers, self._page.rows)


class ActivityHandler(_Handler):
    """What the session uses, and what is left of it."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with it."""
        with_curve = bool(self.get_argument("curve", ""))
        await self._answer(self._runs.readers, lambda: self._activity.view(with_curve=with_curve))

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Do what a button asks for."""
        body = self.get_json_body() or {}
        await self._answer(self._runs.askers, lambda: self._activity.do(body))


class ComparisonHandler(_Handler):
    """Runs side by side."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with what differs between the runs of the query."""
        ids, everything = self.get_arguments("run"), bool(self.get_argument("everything", ""))
        await self._answer(self._runs.readers, lambda: self._page.comparison(ids, everything=everything))


class PageHandler(JupyterHandler):
    """The page *Runs*."""

    @web.authenticated
    def get(self) -> None:
        """Answer with it."""
        self.xsrf_token  # noqa: B018  sets the cookie that the page's requests need
        static = url_path_join(self.base_url, "lab/extensions/carme-hub/static")
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", f"{POLICY}; frame-ancestors 'self'")
        self.finish(PAGE.format(base=escape(self.base_url), static=escape(static)))


class TimelineHandler(JupyterHandler):
    """The page of a profile."""

    @web.authenticated
    def get(self, id: str, rank: str) -> None:
        """Answer with it."""
        self.xsrf_token  # noqa: B018  as above
        static = url_path_join(self.base_url, "lab/extensions/carme-hub/static")
        events = url_path_join(self.base_url, "carme/profile", quote(id), rank)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", f"{TIMELINE_POLICY}; frame-ancestors 'self'")
        title = escape(f"{id}, rank {int(rank)}")
        self.finish(TIMELINE.format(static=escape(static), events=escape(events), title=title))


class ProfileHandler(_Handler):
    """The events of a profile."""

    @web.authenticated
    @authorized
    async def get(self, id: str, rank: str) -> None:
        """Answer with them, as they are: in gzip."""
        from carme_hub.training.run.run_folder import NoRun

        loop = IOLoop.current()
        try:
            path = await loop.run_in_executor(self._runs.readers, self._page.profile, id, int(rank))
            file = await loop.run_in_executor(self._runs.readers, path.open, "rb")
        except (NoRun, OSError) as error:
            raise web.HTTPError(404, str(error)) from None
        with file:
            self.set_header("Content-Type", "application/gzip")
            self.set_header("Content-Disposition", f'attachment; filename="rank-{int(rank)}.json.gz"')
            self.set_header("Cache-Control", "no-store")
            while piece := await loop.run_in_executor(self._runs.readers, file.read, PIECE_BYTES):
                self.write(piece)
                await self.flush()


class StyleHandler(JupyterHandler):
    """The style sheet of a run."""

    @web.authenticated
    def get(self) -> None:
        """Answer with it."""
        from carme_hub.training.notebook.display_style import STYLE

        self.set_header("Content-Type", "text/css; charset=utf-8")
        self.finish(STYLE.removeprefix("<style>").removesuffix("</style>"))
