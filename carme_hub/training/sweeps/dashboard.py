"""Optuna's dashboard on a Unix socket, below the prefix of the user's server.

``optuna-dashboard`` serves its page at the root of a host only, and on a port that everybody on the node can reach.
Here its WSGI application is served on a socket in a folder that only the user can open, and the addresses in its page
get the prefix. Optuna's extension of JupyterLab is no way around that: it answers without a log-in.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import os
import re
import socket
import socketserver
import sys
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

Environ = dict[str, Any]
Start = Callable[..., Any]
Wsgi = Callable[[Environ, Start], Iterable[bytes]]

#: Addresses in the script of the page. Each is found in release 0.21; one that is not found ends the program, since the
#: page would ask the hub in place of the dashboard.
ADDRESSES = (
    rb'(url_prefix:")(/dashboard")',
    rb'(this\.baseURL=\(\w+=>\{[^{}]{1,200}\}\)\(null!=\w+\?\w+:")("\))',
    rb"(`)(/artifacts/\$\{)",
    rb"(`)(/csv/\$\{)",
)
SCRIPT, PAGE = "/static/bundle.js", "/dashboard"


class CannotServe(Exception):
    """The page of this release cannot be served below a prefix."""


def with_prefix(script: bytes, prefix: str) -> bytes:
    """Return the script of the page with a prefix before its addresses.

    Raises:
        CannotServe: an address is not where it was.
    """
    for pattern in ADDRESSES:
        # The page compares its own path, decoded, with the first one; it asks for the others.
        inserted = json.dumps(unquote(prefix) if pattern == ADDRESSES[0] else prefix)[1:-1].encode()
        script, count = re.subn(pattern, partial(_between, inserted), script)
        if not count:
            raise CannotServe(pattern.decode())
    return script


def _between(text: bytes, found: re.Match[bytes]) -> bytes:
    return found[1] + text + found[2]


class BelowPrefix:
    """The dashboard's application, with a prefix before all addresses of its page.

    Args:
        app: the application. prefix: path of the page in the browser. script: of the page, as it is.
    """

    def __init__(self, app: Wsgi, prefix: str, script: bytes) -> None:
        self._app, self._prefix = app, prefix
        self._script = gzip.compress(with_prefix(script, prefix), 6)
        self._tag = f'"{sha256(self._script).hexdigest()[:32]}"'

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        """Answer one request."""
        path = environ.get("PATH_INFO", "").rstrip("/")
        if not path:
            # Without a slash before it: jupyter-server-proxy puts the prefix before all others.
            start("302 Found", [("Location", PAGE.lstrip("/")), ("Content-Length", "0")])
            return [b""]
        if path == SCRIPT:
            return self._answer_script(environ, start)
        if path == PAGE or path.startswith(f"{PAGE}/"):
            return self._answer_page(environ, start)
        return self._app(environ, start)

    def _answer_script(self, environ: Environ, start: Start) -> Iterable[bytes]:
        headers = [("ETag", self._tag), ("Cache-Control", "private, no-cache"), ("Vary", "Accept-Encoding")]
        if environ.get("HTTP_IF_NONE_MATCH") == self._tag:
            start("304 Not Modified", headers)
            return [b""]
        body = self._script
        if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            headers.append(("Content-Encoding", "gzip"))
        else:
            body = gzip.decompress(body)
        start("200 OK", [*headers, ("Content-Type", "text/javascript"), ("Content-Length", str(len(body)))])
        return [body]

    def _answer_page(self, environ: Environ, start: Start) -> Iterable[bytes]:
        started: list[Any] = []
        for name in ("HTTP_IF_MODIFIED_SINCE", "HTTP_RANGE"):  # of the file, which is not what is sent
            environ.pop(name, None)
        found = self._app(environ, lambda status, headers, *_: started.append((status, headers)))
        page = b"".join(found)
        if close := getattr(found, "close", None):
            close()
        status, headers = started[0]
        page = page.replace(f'src="{SCRIPT}"'.encode(), f'src="{self._prefix}{SCRIPT}"'.encode())
        changed = ("content-length", "last-modified", "etag", "accept-ranges")
        kept = [(name, value) for name, value in headers if name.lower() not in changed]
        start(status, [*kept, ("Content-Length", str(len(page))), ("Cache-Control", "no-store")])
        return [page]


class Server(socketserver.ThreadingMixIn, WSGIServer):
    """Listens on a Unix socket."""

    address_family = socket.AF_UNIX
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind, without a host name and a port."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", 80
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Return a connection; the peer of a Unix socket has no address."""
        connection, _ = super().get_request()
        return connection, ("", 0)


class Handler(WSGIRequestHandler):
    """Answers a request, and logs none: an open page asks every few seconds."""

    def address_string(self) -> str:
        """Return the name of the client: behind a Unix socket always the user's own server."""
        return "server"

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def make_application(journal: Path, prefix: str) -> Wsgi:
    """Return the dashboard of a journal, which is created where there is none.

    Raises:
        CannotServe: the release of optuna-dashboard is not known here.
    """
    dashboard = importlib.import_module("optuna_dashboard")
    journals = importlib.import_module("optuna.storages.journal")
    journal.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    storage = journals.JournalStorage(journals.JournalFileBackend(str(journal)))
    script = Path(str(dashboard.__file__)).with_name("public") / "bundle.js"
    return BelowPrefix(dashboard.wsgi(storage), prefix, script.read_bytes())


def serve(where: str, app: Wsgi) -> Server:
    """Return a listening server; only the owner can open its socket."""
    before = os.umask(0o077)
    try:
        Path(where).unlink(missing_ok=True)
        server = Server(where, Handler)  # type: ignore[arg-type]  # a path in place of host and port
    finally:
        os.umask(before)
    server.set_app(app)
    return server


def main(argv: list[str] | None = None) -> None:
    """Serve until the session ends."""
    parser = argparse.ArgumentParser(prog="carme-optuna", description="Serve Optuna's dashboard.")
    parser.add_argument("--socket", required=True, help="unix socket to listen on, in a folder of mode 0700")
    parser.add_argument("--prefix", default="", help="path of the page, such as /user/alice/optuna")
    parser.add_argument("--journal", required=True, type=Path, help="file of Optuna's journal")
    arguments = parser.parse_args(argv)
    os.umask(0o077)
    try:
        app = make_application(arguments.journal, arguments.prefix.rstrip("/"))
    except CannotServe as error:
        found = importlib.import_module("optuna_dashboard").__version__
        sys.exit(
            f"optuna-dashboard {found} cannot be served below the path of a session: its script has no {error}. "
            "Install a release that the documentation names (docs/howto/apps.md)."
        )
    with serve(arguments.socket, app) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
