"""TensorBoard on a Unix socket: it follows the newest run, or shows all runs or one folder, without delay.

TensorBoard's own server listens on a port that everybody on the node can reach, and its page does not check for new
events. Here its WSGI application is served on a socket in a folder that only the user can open, the choice can change
while it runs, and an open page learns of a new event within a second.

The hub sends this file and ``files.py`` to the session, so an image needs only TensorBoard.
"""

from __future__ import annotations

import argparse
import html
import importlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

HERE = Path(__file__).parent
if TYPE_CHECKING or __package__:
    from .files import Choice, Files, NoFolder, choice_of_form, folders_of, read_error, runs
else:  # in a session
    sys.path.insert(0, str(HERE))
    from carme_tensorboard_files import Choice, Files, NoFolder, choice_of_form, folders_of, read_error, runs

POLL_INTERVAL, IDLE_POLL_INTERVAL, VIEWER_TIMEOUT = (
    0.25,
    3.0,
    60.0,
)  # seconds between checks; and without a viewer for the last
NEWS_TIMEOUT = 25.0  # seconds until a request for news is answered without news
MAX_FORM_BYTES = 1 << 16

Environ = dict[str, Any]
Wsgi = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


class MultiplexerProxy:
    """A proxy for TensorBoard's multiplexer, which is replaced at every new choice.

    Args:
        make: creates an empty multiplexer.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self.current = make()

    def renew(self) -> None:
        """Forget all runs."""
        self.current = self._make()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current, name)


class Follower(threading.Thread):
    """Reads new events as they are written, and wakes the requests that wait for them."""

    def __init__(self, multiplexer: MultiplexerProxy) -> None:
        super().__init__(name="follower", daemon=True)
        self.multiplexer = multiplexer
        self.choice = Choice()
        self.loaded = self.choice  # the choice that is shown; ``choice`` is the requested one
        self.folders: dict[str, Path] = {}
        self.news = 0
        self.error = ""
        self._files = Files()
        self._changed = threading.Condition()
        self._last_viewer = time.monotonic()
        self._wake = threading.Event()

    def choose(self, choice: Choice) -> None:
        """Change the choice."""
        self.choice = choice
        self._wake.set()

    def note_viewer(self) -> None:
        """Record that a page is open."""
        if time.monotonic() - self._last_viewer > VIEWER_TIMEOUT:
            self._wake.set()
        self._last_viewer = time.monotonic()

    def wait(self, seen: int, limit: float = NEWS_TIMEOUT) -> int:
        """Wait until the number of the last news is not ``seen``, or the time is over; return it."""
        self.note_viewer()
        with self._changed:
            self._changed.wait_for(lambda: self.news != seen, limit)
            return self.news

    def run(self) -> None:
        """Follow until the process ends."""
        due = pause = 0.0
        while True:
            watched = time.monotonic() - self._last_viewer < VIEWER_TIMEOUT
            if self._wake.wait(max(pause, POLL_INTERVAL if watched else IDLE_POLL_INTERVAL)):
                self._wake.clear()
                due = 0.0
            began = time.monotonic()
            try:
                changed = self.step(whole=began >= due)
                took = time.monotonic() - began
                # A large tree, or many runs that are written to, must not keep a CPU busy.
                due = began + 20 * took if began >= due else due
                pause = 2 * took if changed else 0.0
            except OSError as error:
                self.error, pause = read_error(error), IDLE_POLL_INTERVAL

    def step(self, *, whole: bool) -> bool:
        """Check once, read new events, and return whether there were any.

        Args:
            whole: search for new runs and files too.
        """
        choice = self.choice if whole else self.loaded
        folders = folders_of(choice) if whole else self.folders
        other = whole and ((folders, choice) != (self.folders, self.loaded) or bool(self.error))
        changed = self._files.walk(folders.values()) if whole else self._files.look()
        if not (changed or other):
            return False
        if other and not (choice.kind in ("all", "ever") and self.folders.items() <= folders.items()):
            self.multiplexer.renew()
        if whole:
            for name, top in folders.items():
                # Not by TensorBoard's AddRunsFromDirectory: one folder that it cannot read would hide all others.
                for folder in self._files.below(top):
                    self.multiplexer.AddRun(folder, "/".join(filter(None, (name, os.path.relpath(folder, top)))))
        self.multiplexer.Reload()
        self.folders, self.loaded, self.error = folders, choice, ""  # set when the events can be seen
        with self._changed:
            self.news += 1
            self._changed.notify_all()
        return True

    def status_text(self) -> str:
        """Return what is shown, as text."""
        if self.error:
            return self.error
        if self.loaded.kind == "folder" and not self._files:
            return self._files.error or f"No events in {self.loaded.value} yet; they show here once they are written"
        return self._shown_text() + (f", but {self._files.error}" if self._files.error else "")

    def _shown_text(self) -> str:
        if self.loaded.kind == "folder":
            return f"Showing {self.loaded.value}"
        if not self.folders:
            return "No run has written events yet; the first one will show here"
        if self.loaded.kind in ("all", "ever"):
            return f"Showing all runs{' of this session' * (self.loaded.kind == 'all')}: {len(self.folders)}"
        return f"Showing run {next(iter(self.folders))}" + (", the newest" if self.loaded.kind == "newest" else "")


class Pages:
    """The pages beside TensorBoard's own: news for its page, and the form."""

    def __init__(self, follower: Follower, app: Wsgi) -> None:
        self.follower, self.app = follower, app

    def __call__(self, environ: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""
        path, method = environ.get("PATH_INFO", ""), environ["REQUEST_METHOD"]
        self.follower.note_viewer()
        if path in ("/", "/index.html") and method == "GET":
            return self._index(environ, start)
        if path == "/carme/live.js":
            return _answer(start, (HERE / "carme-tensorboard.js").read_bytes(), "text/javascript")
        if path == "/carme/news":
            return self._news(environ, start)
        if path == "/carme/" and method == "POST":
            return self._choose(environ, start)
        if path == "/carme/":
            return self._form(start)
        return self.app(environ, start)

    def _index(self, environ: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        started: list[Any] = []
        answer = self.app(environ, lambda status, headers, *_: started.append((status, headers)))
        page = b"".join(answer)
        status, headers = started[0]
        page = page.replace(b"<head>", b'<head><script src="carme/live.js"></script>', 1)
        page = page.replace(b"url(/font-roboto/", b"url(font-roboto/")  # their path leads out of the prefix
        kept = [(name, value) for name, value in headers if name.lower() != "content-length"]
        start(status, [*kept, ("Content-Length", str(len(page)))])
        return [page]

    def _news(self, environ: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        seen = parse_qs(environ.get("QUERY_STRING", "")).get("seen", [""])[0]
        news = self.follower.wait(int(seen) if seen.isdecimal() else -1)
        document = {"news": news, "shows": self.follower.status_text()}
        return _answer(start, json.dumps(document).encode(), "application/json")

    def _choose(self, environ: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(min(length, MAX_FORM_BYTES)).decode("utf-8", "replace")
        fields = {name: values[-1] for name, values in parse_qs(body).items()}
        try:
            self.follower.choose(choice_of_form(fields))
        except (NoFolder, OSError) as error:
            return self._form(start, fields, str(error) if isinstance(error, NoFolder) else f"{read_error(error)}.")
        start("303 See Other", [("Location", "../"), ("Content-Length", "0")])
        return [b""]

    def _form(
        self, start: Callable[..., Any], fields: dict[str, str] | None = None, error: str = ""
    ) -> Iterable[bytes]:
        choice = self.follower.choice
        fields = fields or {"show": choice.kind, choice.kind: choice.value}
        names, none = [], "There is none yet"
        try:
            names = runs(ever=True)
        except OSError as unreadable:
            way = " Its owner can permit it by chmod." if isinstance(unreadable, PermissionError) else ""
            error = error or f"{read_error(unreadable)}.{way}"
            none = "They cannot be read"
        if not names and fields["show"] == "run":
            fields = {**fields, "show": "newest"}  # a disabled choice is not sent
        options = "".join(
            f"<option{' selected' if name == fields.get('run') else ''}>{html.escape(name)}</option>" for name in names
        )
        page = (HERE / "carme-tensorboard.html").read_text(encoding="utf-8")
        values = {
            "ERROR": f'<p class="error" role="alert" id="error">{html.escape(error)}</p>' if error else "",
            "SHOWS": html.escape(self.follower.status_text()),
            "RUNS": options or f"<option>{none}</option>",
            "NO_RUN": "" if names else " disabled",
            "ABOUT": "error hint" if error else "hint",
            "WRONG": ' aria-invalid="true"' if error and fields.get("show") == "folder" else "",
            "FOLDER": html.escape(fields.get("folder", ""), quote=True),
            **{kind.upper(): " checked" if fields["show"] == kind else "" for kind in ("newest", "all", "ever", "run")},
            "OTHER": " checked" if fields["show"] == "folder" else "",
        }
        page = re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], page)
        return _answer(start, page.encode(), "text/html; charset=utf-8", "400 Bad Request" if error else "200 OK")


def _answer(start: Callable[..., Any], body: bytes, kind: str, status: str = "200 OK") -> Iterable[bytes]:
    policy = "default-src 'self'; style-src 'unsafe-inline'; form-action 'self'"
    more = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Content-Security-Policy": policy}
    start(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *more.items()])
    return [body]


def make_application(prefix: str) -> tuple[Wsgi, Follower]:
    """Return TensorBoard's application with our pages, and the thread that feeds it."""
    backend = "tensorboard.backend"
    program = importlib.import_module("tensorboard.program")
    default = importlib.import_module("tensorboard.default")
    application = importlib.import_module(f"{backend}.application")
    ingester = importlib.import_module(f"{backend}.event_processing.data_ingester")
    provider = importlib.import_module(f"{backend}.event_processing.data_provider")
    multiplexer = importlib.import_module(f"{backend}.event_processing.plugin_event_multiplexer")

    tool = program.TensorBoard(default.get_plugins())
    # The ranks of a run write one file each, and a resumed run writes another one: all of them count.
    tool.configure(argv=["tensorboard", "--logdir=runs", f"--path_prefix={prefix}", "--reload_multifile=true"])
    tool.flags.logdir, tool.flags.window_title = "", "TensorBoard"

    def empty() -> Any:
        return multiplexer.EventMultiplexer(
            size_guidance=ingester.DEFAULT_SIZE_GUIDANCE,
            tensor_size_guidance={**ingester.DEFAULT_TENSOR_SIZE_GUIDANCE, **tool.flags.samples_per_plugin},
            purge_orphaned_data=tool.flags.purge_orphaned_data,
            max_reload_threads=1,
            event_file_active_filter=lambda written: written + 4000 >= time.time(),  # as --reload_multifile does
        )

    runs_shown = MultiplexerProxy(empty)
    follower = Follower(runs_shown)
    app = application.TensorBoardWSGIApp(
        tool.flags,
        tool.plugin_loaders,
        provider.MultiplexerDataProvider(runs_shown, ""),
        tool.assets_zip_provider,
        runs_shown,
        experimental_middlewares=[lambda inner: Pages(follower, inner)],
    )
    return app, follower


def main(argv: list[str] | None = None) -> None:
    """Serve until the session ends."""
    parser = argparse.ArgumentParser(prog="carme-tensorboard", description=__doc__)
    parser.add_argument("--socket", required=True, help="unix socket to listen on, in a folder of mode 0700")
    parser.add_argument("--prefix", default="", help="path of the page, such as /user/alice/tensorboard")
    arguments = parser.parse_args(argv)
    os.umask(0o077)
    serving = importlib.import_module("werkzeug.serving")

    class Quiet(serving.WSGIRequestHandler):  # type: ignore[misc, name-defined]
        """Does not log requests, which would fill the session's log."""

        def log_request(self, *_: Any) -> None:
            """Log nothing."""

    app, follower = make_application(arguments.prefix.rstrip("/"))
    follower.start()
    server = serving.make_server(f"unix://{arguments.socket}", 0, app, threaded=True, request_handler=Quiet)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
