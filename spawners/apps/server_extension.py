"""carme_apps: serves programs of a session's image as pages of its server, each on a Unix socket of its user.

It is an extension of the single-user server: one constant file in the data document, packed with others in
``carme-apps``. On the node they are in a folder of mode 0700, together with the sockets. It replaces
jupyter-server-proxy's own extension and uses that package's handlers: so there is no ``/proxy/<port>``, an app never
gets the user's cookies and tokens, and forged requests from other sites are refused.
It needs jupyter-server-proxy 4.1 or later and Python 3.9 or later.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib.util
import json
import os
import posixpath
import re
import shutil
import sys
import time
from html import escape
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import ensure_async, url_path_join
from jupyter_server_proxy.handlers import AddSlashHandler, LocalProxyHandler
from tornado import web
from tornado.httputil import HTTPServerRequest

FOLDER = Path(__file__).parent
#: Headers and arguments with credentials of the user.
SECRET_HEADERS = ("Cookie", "Authorization", "Proxy-Authorization", "X-XSRFToken")
SECRET_ARGUMENTS = ("token", "_xsrf")
#: Variables with credentials that an app does not get, except with ``"hub": true``.
SECRET_VARIABLES = ("JPY_API_TOKEN", "JUPYTER_TOKEN", "JUPYTERHUB_API_TOKEN", "JUPYTERHUB_OAUTH_SCOPES")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
START, PAUSE = 120.0, 0.05  # seconds
PAGE_WAIT = 2.0  # seconds until the page of a starting app appears
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'; base-uri 'none'"
#: The page for an app that starts or fails; Jupyter's own error page has one line of code, which a phone cuts off.
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
%(refresh)s<title>%(head)s</title>
<style>
:root { color-scheme: light dark; --main: #1f5fa8; --line: #b3471d; }
@media (prefers-color-scheme: dark) { :root { --main: #7db4f0; } }
body { font: 1rem/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 42rem; padding: 1rem; }
h1 { font-size: 1.6rem; margin: .5rem 0 1rem; overflow-wrap: anywhere; }
p { overflow-wrap: anywhere; }
.note { border-left: 4px solid var(--line); padding-left: .75rem; }
nav { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; }
a { color: var(--main); padding: .625rem 0; }
a:focus-visible { outline: 3px solid var(--main); outline-offset: 2px; }
</style>
</head>
<body>
<main>
<h1>%(head)s</h1>
%(text)s
<nav aria-label="From here">%(links)s</nav>
</main>
</body>
</html>
"""


class NoApp(web.HTTPError):
    """An app cannot be opened; the message says why, and what to do."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, "%s", message)
        self.message = message


class App:
    """One program with its command and socket. Its first visitor starts it.

    Args:
        entry: its entry in apps.json, see ``carme_hub.spawners.apps.settings``.
        base_url: the path of the server, "/user/alice/".
    """

    def __init__(self, entry: dict[str, Any], base_url: str) -> None:
        self.name: str = entry["name"]
        self.title: str = entry["title"]
        self.category: str = entry.get("category", "Notebook")  # JupyterLab shows an icon there and in "Console" only
        self.tab = bool(entry.get("browser_tab", True))
        self.needs: str = entry.get("needs", "")
        self.cookies: tuple[str, ...] = tuple(entry.get("cookies", ()))
        self.quiet: tuple[str, ...] = tuple(entry.get("quiet", ()))
        self.closed: tuple[str, ...] = tuple(entry.get("closed", ()))
        self.whole_path = bool(entry.get("whole_path", False))
        self.prefix = url_path_join(base_url, self.name)
        self.socket = str(FOLDER / f"{self.name}.sock")
        self._command: list[str] = entry["command"]
        self._environ: dict[str, str] = entry.get("environment", {})
        self._hub = bool(entry.get("hub", False))
        self._process: Any = None
        self._lock = asyncio.Lock()
        self._opening: asyncio.Task[None] | None = None

    @property
    def icon(self) -> Path:
        """The file of its icon, which may not exist."""
        return FOLDER / f"carme-app-{self.name}.svg"

    @property
    def missing(self) -> str:
        """What the image does not have of ``python:MODULE`` and ``program:NAME`` that it needs; "" = it has all."""
        for kind, _, name in (each.partition(":") for each in self.needs.split()):
            try:
                if importlib.util.find_spec(name) if kind == "python" else shutil.which(name):
                    continue
            except Exception:  # noqa: BLE001, S110  a part before the last dot is imported, and may fail in any way
                pass
            return name
        return ""

    def closes(self, path: str) -> bool:
        """Return whether a path of the server is one of the app's closed paths, in any spelling."""
        inner = posixpath.normpath("/" + unquote(path[len(self.prefix) :]).lstrip("/")).lower() + "/"
        return inner.startswith(self.closed or "\0")

    def filled(self, text: str) -> str:
        """Return an argument of its command with this session's values."""
        values = {"unix_socket": self.socket, "prefix": self.prefix, "python": sys.executable, "folder": str(FOLDER)}
        values["home"] = str(Path.home())
        for name, value in values.items():
            text = text.replace("{" + name + "}", value)
        return text

    def environ(self) -> dict[str, str]:
        """Return the environment in which it starts."""
        kept = {k: v for k, v in os.environ.items() if self._hub or k not in SECRET_VARIABLES}
        return {**kept, **{name: self.filled(value) for name, value in self._environ.items()}}

    async def wait_until_open(self, within: float) -> bool:
        """Return whether it answers within so many seconds; if not, its start continues."""
        if self._opening is None or (self._opening.done() and not self._opening.exception()):
            self._opening = asyncio.create_task(self.ready())
        opening = self._opening
        await asyncio.wait({opening}, timeout=within)
        if not opening.done():
            return False
        if self._opening is opening:  # its result is used here
            self._opening = None
        opening.result()
        return True

    async def ready(self) -> None:
        """Start it if it does not run, and wait until its socket answers. An app that has ended is started again."""
        async with self._lock:
            began, end = False, time.monotonic() + START
            while not await self._answers():
                if self._process is None or self._process.returncode is not None:
                    if began:
                        code = self._process.returncode
                        raise NoApp(502, f"{self.title} ended with {code} at its start. Its output is in {_log()}.")
                    await self._begin()
                    began = True
                elif time.monotonic() > end:
                    self.end()
                    late = f"{self.title} did not answer within {START:.0f} s, and was stopped."
                    raise NoApp(504, f"{late} Its output is in {_log()}.")
                await asyncio.sleep(PAUSE)

    async def _begin(self) -> None:
        if missing := self.missing:
            advice = f"Start a server with another image, or ask your administrator to add {missing} to this one."
            raise NoApp(502, f"{self.title} needs {missing}, which the image of this session does not have. {advice}")
        Path(self.socket).unlink(missing_ok=True)  # noqa: ASYNC240  one name of a folder in memory
        words = [self.filled(word) for word in self._command]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *words, env=self.environ(), stdin=asyncio.subprocess.DEVNULL
            )
        except OSError as error:
            why = f"{words[0]}: {error.strerror}"
            raise NoApp(502, f"{self.title} cannot be started: {why}. Ask your administrator to fix it.") from error

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(self.socket)
        except OSError:
            return False
        writer.close()
        return True

    def end(self) -> None:
        """End it, together with the server."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()


class AppHandler(LocalProxyHandler):
    """Forwards requests to one app, without credentials of the user."""

    app: App
    set_header: Any  # jupyter-server-proxy sets it on each object

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        plain = self.set_header

        def set_header(name: str, value: Any) -> None:
            for text in [value] if name.lower() != "set-cookie" else self._own_cookies(str(value)):
                plain(name, text)

        self.set_header = set_header  # streamed answers do not pass rewrite_cookies

    def initialize(self, app: App) -> None:
        """Set the app; the attributes are those of jupyter-server-proxy."""
        self.app = app
        self.proxy_base = app.name
        self.absolute_url = app.whole_path
        self.unix_socket = app.socket
        self.rewrite_response = lambda response: self.rewrite_cookies(response)  # by its argument's name

    async def prepare(self) -> None:
        """Require a login, and refuse requests that another site sends in the user's name."""
        await ensure_async(super().prepare())
        if self._finished:
            return
        if self.app.closes(self.request.path):
            raise web.HTTPError(404)
        if self.request.method not in SAFE_METHODS and not same_site(self.request):
            raise NoApp(403, "This request comes from another site, and is refused.")

    def proxy_request_headers(self) -> Any:
        """Return the headers that the app gets."""
        headers = self.request.headers.copy()
        for name in (*SECRET_HEADERS, "Referer"):
            headers.pop(name, None)
        kept = [f"{n}={m.coded_value}" for n, m in self.request.cookies.items() if n in self.app.cookies]
        if kept:
            headers["Cookie"] = "; ".join(kept)
        return headers

    def get_client_uri(self, *args: Any) -> str:
        """Return the URL that the app gets, without a token."""
        uri, _, query = str(super().get_client_uri(*args)).partition("?")
        kept = [(n, v) for n, v in parse_qsl(query, keep_blank_values=True) if n not in SECRET_ARGUMENTS]
        if not query or len(kept) == len(parse_qsl(query, keep_blank_values=True)):
            return uri + ("?" + query if query else "")  # unchanged
        return uri + ("?" + urlencode(kept) if kept else "")

    def rewrite_cookies(self, response: Any) -> None:
        """Limit an app's cookies to its own path, and forbid other sites to frame it."""
        ours = [text for line in response.headers.get_list("Set-Cookie") for text in self._own_cookies(line)]
        response.headers.pop("Set-Cookie", None)
        for text in ours:
            response.headers.add("Set-Cookie", text)
        response.headers.add("Content-Security-Policy", "frame-ancestors 'self'")

    def _own_cookies(self, line: str) -> list[str]:
        read = SimpleCookie()
        try:
            read.load(line)
        except CookieError:
            return []
        mine = [morsel for name, morsel in read.items() if name in self.app.cookies]
        for morsel in mine:
            morsel["path"], morsel["domain"] = self.app.prefix, ""
        return [morsel.OutputString() for morsel in mine]

    def _record_activity(self) -> None:
        # Requests that a page sends by itself do not show that a person is active.
        if not self.request.path[len(self.app.prefix) :].startswith(self.app.quiet or ("\0",)):
            super()._record_activity()

    def write_error(self, status_code: int, **more: Any) -> None:
        """Show why the app does not open, on a page with links to go on."""
        error = (more.get("exc_info") or (None, None))[1]
        if not isinstance(error, NoApp):
            super().write_error(status_code, **more)
            return
        again = f'<a href="{escape(self.app.prefix)}/">Try again</a>'
        self._page(status_code, f"{self.app.title} does not open", error.message, again)

    def _page(self, status: int, head: str, text: str, link: str = "", *, refresh: str = "") -> None:
        lab = f'<a href="{escape(url_path_join(self.base_url, "lab"))}">Back to JupyterLab</a>'
        note = f'<p role="status">{escape(text)}</p>' if refresh else f'<p class="note" role="alert">{escape(text)}</p>'
        self.set_status(status)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("Cache-Control", "no-store")
        self.finish(PAGE % {"refresh": refresh, "head": escape(head), "text": note, "links": link + lab})

    async def _forward(self, path: str) -> None:
        # A person gets the page of a starting app; requests of programs and scripts wait until the app answers.
        is_navigation = self.request.method == "GET" and self.request.headers.get("Sec-Fetch-Mode") == "navigate"
        if not await self.app.wait_until_open(PAGE_WAIT if is_navigation else 2 * START):
            text = (
                f"It opens here by itself as soon as it answers. After {START:.0f} s this page shows why it does not."
            )
            refresh = '<meta http-equiv="refresh" content="1">\n'
            self._page(202, f"{self.app.title} is starting", text, refresh=refresh)
            return
        await ensure_async(self.proxy(0, path if path.startswith("/") else "/" + path))

    async def http_get(self, path: str) -> None:
        """Forward an HTTP request to the app."""
        await self._forward(path)

    async def open(self, path: str) -> None:
        """Forward a websocket to the app."""
        await self.app.wait_until_open(2 * START)
        await super().open(0, path)

    post = put = patch = delete = head = options = http_get


class ListHandler(JupyterHandler):
    """The list that JupyterLab's launcher reads from jupyter-server-proxy."""

    def initialize(self, apps: list[App]) -> None:
        """Set the apps."""
        self.apps = apps

    @web.authenticated
    async def get(self) -> None:
        """Send the apps that are available."""
        self.write({"server_processes": [self._entry(app) for app in self.apps if not app.missing]})

    def _entry(self, app: App) -> dict[str, Any]:
        entry = {"enabled": True, "title": app.title, "path_info": app.name + "/", "category": app.category}
        if app.icon.exists():
            entry["icon_url"] = url_path_join(self.base_url, "server-proxy", "icon", app.name)
        return {"name": app.name, "launcher_entry": entry, "new_browser_tab": app.tab}


class IconHandler(JupyterHandler):
    """The launcher's icons."""

    def initialize(self, apps: list[App]) -> None:
        """Set the icons."""
        self.icons = {app.name: app.icon for app in apps}

    @web.authenticated
    async def get(self, name: str) -> None:
        """Send one icon."""
        if name not in self.icons or not self.icons[name].exists():
            raise web.HTTPError(404)
        self.set_header("Content-Type", "image/svg+xml")
        self.write(self.icons[name].read_bytes())


def _log() -> str:
    """Return the path of the session's log, for people."""
    folder = os.environ.get("CARME_SESSION_FOLDER", "")
    return f"{folder}/job.log" if folder else "job.log"


def same_site(request: HTTPServerRequest) -> bool:
    """Return whether the request comes from the server's own pages, or from a program with a token."""
    site = request.headers.get("Sec-Fetch-Site")
    if site:
        return site in ("same-origin", "none")
    origin = request.headers.get("Origin")
    if origin:
        return urlsplit(origin).netloc == request.host
    return "Cookie" not in request.headers


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "carme_apps"}]


def _load_jupyter_server_extension(server: Any) -> None:
    """Add the pages of all apps to a server."""
    base_url = server.web_app.settings["base_url"]
    apps = [App(entry, base_url) for entry in json.loads((FOLDER / "apps.json").read_text(encoding="utf-8"))]

    def end() -> None:
        for app in apps:
            app.end()
        shutil.rmtree(FOLDER, ignore_errors=True)

    atexit.register(end)
    handlers: list[Any] = [
        (url_path_join(base_url, "server-proxy/servers-info"), ListHandler, {"apps": apps}),
        (url_path_join(base_url, "server-proxy/icon/([a-z0-9-]+)"), IconHandler, {"apps": apps}),
    ]
    for app in apps:
        path = re.escape(app.prefix)
        handlers += [(path, AddSlashHandler), (path + "(/.*)", AppHandler, {"app": app})]
    server.web_app.add_handlers(".*", handlers)
    server.log.info("Apps of this session: %s", ", ".join(app.name for app in apps if not app.missing) or "none")
