"""“New from template”: a page with a card for each template; its buttons copy a template into the working folder.

It is served on a Unix socket behind the user's own server, which admits only the user and keeps their cookies. Only
known templates are copied; no part of a request becomes a path. A form on another site is rejected: by the browser's
headers about the origin, and by a token that only this page has.
"""

from __future__ import annotations

import argparse
import hmac
import os
import re
import secrets
import socket
import socketserver
from collections.abc import Mapping
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from carme_hub.training.templates import UNAVAILABLE, Template, TemplateError, copy, templates
from carme_hub.training.templates.kernels import images_with

MAX_FORM_BYTES = 4096
POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'self'; base-uri 'none'"
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>New from template</title>
<style>
:root { color-scheme: light dark; --line: #8a8f98; --quiet: #5b616b; --card: #f6f7f9; --main: #1f5fa8; }
@media (prefers-color-scheme: dark) { :root { --quiet: #aab1bd; --card: #23262b; --main: #7db4f0; } }
body { font: 1rem/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1rem; }
h1 { font-size: 1.6rem; margin: .5rem 0; }
main > p { max-width: 46rem; }
h2 { font-size: 1.1rem; margin: 0 0 .5rem; }
ul { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(22rem, 100%), 1fr));
  list-style: none; margin: 1.5rem 0; padding: 0; }
li { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; display: flex;
  flex-direction: column; min-width: 0; padding: 1rem; }
p { margin: 0 0 .75rem; overflow-wrap: anywhere; }
form { display: flex; flex-wrap: wrap; gap: .5rem; margin-top: auto; }
button { background: transparent; border: 2px solid var(--main); border-radius: .4rem; color: var(--main);
  cursor: pointer; font: inherit; min-height: 2.75rem; padding: .25rem 1rem; }
button.first { background: var(--main); color: Canvas; }
a { color: var(--main); display: inline-block; padding: .5rem 0; }
a:focus-visible, button:focus-visible { outline: 3px solid var(--main); outline-offset: 2px; }
.quiet { color: var(--quiet); }
.note { border-left: 4px solid #b3471d; padding-left: .75rem; }
.hidden { clip-path: inset(50%); height: 1px; overflow: hidden; position: absolute; white-space: nowrap; width: 1px; }
</style>
</head>
<body>
<main>
<h1>New from template</h1>
<p>Each template trains on a CPU, on one GPU, or on the GPUs of many nodes; only the number of ranks changes.
The buttons put a copy into <strong>@FOLDER@</strong> and open it.</p>
<p><a href="@LAB@">Back to JupyterLab</a></p>
@ERROR@
@CARDS@
</main>
</body>
</html>
"""
#: After a copy: JupyterLab in another tab of the browser opens it (share/jupyter/labextensions/carme-hub). Where none
#: answers, this tab becomes JupyterLab. Two of them would share a workspace.
OPEN = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@FILE@</title>
<noscript><meta http-equiv="refresh" content="0; url=@PLACE@"></noscript>
<style>:root { color-scheme: light dark; } body { font: 1rem/1.5 system-ui, sans-serif; margin: 2rem; }</style>
</head>
<body data-file="@FILE@" data-place="@PLACE@" data-server="@SERVER@/">
<main>
<p role="status">Opening <strong>@FILE@</strong> …</p>
<p><a href="@PLACE@">Open it in this tab</a></p>
</main>
<script nonce="@NONCE@">
const { file, place, server } = document.body.dataset;
const channel = new BroadcastChannel("carme-hub");
const alone = setTimeout(() => location.replace(place), 1500);
channel.onmessage = ({ data }) => {
  if (data.opened !== file || data.server !== server) return;
  clearTimeout(alone);
  document.querySelector("p").textContent = `${file} is open in JupyterLab, in its own tab. You can close this one.`;
  window.close();
};
channel.postMessage({ open: file, server });
</script>
</body>
</html>
"""
CARD = """<li>
<h2 id="@NAME@">@TITLE@</h2>
@ABOUT@
<form method="post" action="@ACTION@" target="_top">
<input type="hidden" name="word" value="@WORD@">
<input type="hidden" name="name" value="@NAME@">
<button class="first" name="kind" value="notebook">Notebook<span class="hidden"> of @TITLE@</span></button>
<button name="kind" value="script">Script<span class="hidden"> of @TITLE@</span></button>
</form>
</li>"""


class Gallery:
    """The page and its forms.

    Args:
        prefix: path of the page in the browser. folder: of the copies, the root of the user's server.
    """

    def __init__(self, prefix: str, folder: Path) -> None:
        self.prefix, self.folder = prefix.rstrip("/"), folder
        self._server = self.prefix.rpartition("/")[0]
        self._token = secrets.token_urlsafe(24)

    def page(self, error: str = "") -> str:
        """Return the page; without templates it has an error message and no cards."""
        try:
            found = templates()
        except TemplateError as lacking:
            found, error = [], error or str(lacking)
        cards = [self._card(template) for template in found if not template.broken]
        absent = [(each.title, f"It cannot be used: {each.broken}") for each in found if each.broken]
        absent += [(title, f"Not available. {why}") for title, why in (UNAVAILABLE if cards else ())]
        cards += [f'<li>\n<h2>{escape(title)}</h2>\n<p class="quiet">{escape(why)}</p>\n</li>' for title, why in absent]
        alert = f'<p class="note" role="alert">{escape(error)}</p>' if error else ""
        shown = "your home folder" if self.folder == Path.home() else self.folder.name
        listed = "\n".join(["<ul>", *cards, "</ul>"]) if cards else ""
        return _fill(PAGE, FOLDER=escape(shown), LAB=escape(f"{self._server}/lab"), ERROR=alert, CARDS=listed)

    def _card(self, template: Template) -> str:
        about = "\n".join(f"<p>{_markdown_to_html(part)}</p>" for part in template.about.split("\n\n"))
        if template.missing:
            about += f'\n<p class="note">{_markdown_to_html(template.missing)}</p>'
            links = [_server_link(image) for image in images_with(template.backend)]
            about += f"\n<p>When this server has been stopped: {' '.join(links)}</p>" if links else ""
        return _fill(
            CARD,
            NAME=escape(template.name),
            TITLE=_markdown_to_html(template.title),
            ABOUT=about,
            ACTION=escape(f"{self.prefix}/"),
            WORD=self._token,
        )

    def copy_from_form(self, fields: Mapping[str, str]) -> str:
        """Copy the template of a form, and return the address of the page that opens it in the user's JupyterLab.

        Raises:
            PermissionError: the form has a wrong token. TemplateError: it cannot be copied.
        """
        if not hmac.compare_digest(fields.get("word", "").encode(), self._token.encode()):
            raise PermissionError(
                "Nothing was copied: the page is from before a restart of this server. Press the button again."
            )
        target = copy(fields.get("name", ""), self.folder, script=fields.get("kind") == "script")
        return f"{self.prefix}/open/{quote(target.relative_to(self.folder).as_posix())}"

    def open_page(self, file: str, nonce: str) -> str:
        """Return the page that has a file opened.

        Args:
            nonce: of its script.
        """
        place = f"{self._server}/lab/tree/{quote(file)}"
        return _fill(OPEN, FILE=escape(file), PLACE=escape(place), SERVER=escape(self._server), NONCE=nonce)


def is_cross_site(headers: Mapping[str, str]) -> bool:
    """Return whether the browser says that a page of another site made the request."""
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site != "same-origin"
    origin = headers.get("Origin")
    hosts = {headers.get("X-Forwarded-Host", ""), headers.get("Host", "")} - {""}
    return origin is not None and urlsplit(origin).netloc not in hosts


class Handler(BaseHTTPRequestHandler):
    """Serves a ``Gallery``."""

    gallery: Gallery
    timeout = 30
    server_version = "carme-gallery"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the page."""
        path = urlsplit(self.path).path
        if path.startswith(f"{self.gallery.prefix}/open/"):
            file, nonce = unquote(path.removeprefix(f"{self.gallery.prefix}/open/")), secrets.token_urlsafe(16)
            return self._answer(HTTPStatus.OK, self.gallery.open_page(file, nonce), f"; script-src 'nonce-{nonce}'")
        if path.rstrip("/") != self.gallery.prefix:
            return self._answer(HTTPStatus.NOT_FOUND, self.gallery.page("There is no such page here."))
        return self._answer(HTTPStatus.OK, self.gallery.page())

    def do_POST(self) -> None:
        """Copy a template."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_FORM_BYTES:
            return self._answer(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, self.gallery.page("This form is not from this page.")
            )
        form = parse_qs(self.rfile.read(int(length)).decode("utf-8", "replace"))
        if is_cross_site(dict(self.headers.items())):
            return self._answer(HTTPStatus.FORBIDDEN, self.gallery.page("A request from another site is refused."))
        try:
            place = self.gallery.copy_from_form({name: values[-1] for name, values in form.items()})
        except PermissionError as error:
            return self._answer(HTTPStatus.FORBIDDEN, self.gallery.page(str(error)))
        except TemplateError as error:
            return self._answer(HTTPStatus.CONFLICT, self.gallery.page(str(error)))
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", place)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def _answer(self, status: HTTPStatus, page: str, policy: str = "") -> None:
        body = page.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY + policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        """Return the name of the client: behind a Unix socket always the user's own server."""
        return "server"

    def log_message(self, *_: Any) -> None:
        """Log nothing: every request would be a line in the session's log."""


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Listens on a Unix socket."""

    daemon_threads = True

    def get_request(self) -> tuple[socket.socket, Any]:
        """Return a connection; the peer of a Unix socket has no address."""
        connection, _ = super().get_request()
        return connection, ("", 0)


def serve(where: str, gallery: Gallery) -> Server:
    """Return a listening server; only the owner can open its socket."""
    before = os.umask(0o077)
    try:
        Path(where).unlink(missing_ok=True)
        return Server(where, type("OneGallery", (Handler,), {"gallery": gallery}))
    finally:
        os.umask(before)


def _server_link(image: str) -> str:
    """Return a link to the form that starts a server, with this image filled in."""
    form = f"{os.environ.get('JUPYTERHUB_BASE_URL', '/')}hub/spawn?{urlencode({'opt-image': image})}"
    return f'<a href="{escape(form)}" target="_top">start one with the image “{escape(image)}”</a>'


def _fill(text: str, **values: str) -> str:
    """Replace the placeholders of a text; the values are inserted as they are."""
    return re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], text)


def _markdown_to_html(markdown: str) -> str:
    """Return a paragraph of Markdown as HTML; templates use only code and emphasis."""
    made = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(markdown))
    return re.sub(r"\*([^*\s][^*]*)\*", r"<em>\1</em>", made)


def main(argv: list[str] | None = None) -> None:
    """Serve until the session ends."""
    parser = argparse.ArgumentParser(prog="carme-gallery", description="Serve the gallery of templates.")
    parser.add_argument("--socket", required=True, help="unix socket to listen on, in a folder of mode 0700")
    parser.add_argument("--prefix", default="", help="path of the page, such as /user/alice/templates")
    arguments = parser.parse_args(argv)
    with serve(arguments.socket, Gallery(arguments.prefix, Path.cwd())) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
