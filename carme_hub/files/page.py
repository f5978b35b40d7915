"""The page *Files* of a session, ``GET <base>/carme/files``: a folder, what to download of it, and uploads into it.

It is complete HTML: folders open and archives are downloaded without JavaScript. Uploads need the script
(share/jupyter/labextensions/carme-hub/static/files.js), which speaks tus with ``<base>/carme/uploads``.
"""

from __future__ import annotations

import os
from html import escape
from pathlib import Path

from jupyter_server.auth.decorator import authorized
from jupyter_server.utils import url_path_join
from tornado import web

from carme_hub.files.handlers import LISTINGS, FilesHandler
from carme_hub.files.listing import MOST_ENTRIES, MOST_REACHED, Listing, Row, listing, size_text, time_text
from carme_hub.files.measurements import Measurements
from carme_hub.files.places import folder_of, quoted, shown

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'self'"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Files: {title}</title>
<link rel="stylesheet" href="{static}/files.css">
<script type="module" src="{static}/files.js"></script>
</head>
<body data-uploads="{uploads}" data-folder="{code}">
<main>
<nav aria-label="From here"><a href="{lab}">JupyterLab</a> {places}</nav>
<h1>Files</h1>
<nav aria-label="Folder" class="crumbs">{crumbs}</nav>
<p class="space">{space}</p>
{upload}
{full}{unfinished}
<form method="get" action="{archive}">
<input type="hidden" name="folder" value="{folder}">
<table>
<caption>{caption}</caption>
<thead>
<tr><td></td><th scope="col">Name</th><th scope="col" class="size">Size</th><th scope="col">Changed (UTC)</th></tr>
</thead>
<tbody>
{rows}
</tbody>
</table>
{more}
{download}
</form>
{largest}
</main>
</body>
</html>
"""
_UPLOAD = """<section aria-labelledby="upload">
<h2 id="upload">Upload into this folder</h2>
<noscript>
<p class="note">Uploads need JavaScript here, or any program that speaks tus 1.0; downloads do not.</p>
</noscript>
<div id="drop" hidden>
<p><label for="files">Files</label> <input type="file" id="files" multiple>
<label for="folders">or a folder</label> <input type="file" id="folders" webkitdirectory multiple></p>
<p>You can also drop files here. An upload that breaks off goes on where it stopped: choose the same file again.</p>
<p><label><input type="checkbox" id="overwrite"> Replace files of the same name</label></p>
</div>
<ul id="transfers" aria-label="Uploads"></ul>
<p id="said" role="status" aria-live="polite"></p>
</section>"""
_DOWNLOAD = """<fieldset class="act">
<legend>Download what is chosen, or all of this folder</legend>
<button type="submit" name="format" value="tar">As tar</button>
<button type="submit" name="format" value="zip">As zip</button>
</fieldset>"""


#: What a session says that has started with a full home (carme_hub/node/batch_parts/full_home.py).
_FULL = """<p class="note" role="alert">Your home was full when this session started. Its own files are on the node
until it ends; nothing can be saved into the home before you remove something.</p>
"""


class _MeasuringHandler(FilesHandler):
    """A handler that knows what was measured."""

    measurements: Measurements

    def initialize(self, measurements: Measurements) -> None:
        """Keep what all requests share."""
        self.measurements = measurements


class MeasureHandler(_MeasuringHandler):
    """Measures a folder; the page shows the result."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Begin, and lead back to the page of the folder."""
        raw = (self.request.body_arguments.get("path") or [b""])[-1]
        folder = await self.blocking(LISTINGS, folder_of, raw, self.home)
        self.measurements.start(folder)
        self.redirect(f"{url_path_join(self.base_url, 'carme/files')}?path={quoted(folder)}#largest", status=303)


class PageHandler(_MeasuringHandler):
    """The page."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Show a folder."""
        raw, text = self.raw_argument("path"), self.raw_argument("from").decode("ascii", "replace")
        folder = await self.blocking(LISTINGS, folder_of, raw, self.home)
        seen = await self.blocking(LISTINGS, listing, folder, int(text) if text.isdecimal() and len(text) < 10 else 0)
        places = await self.blocking(LISTINGS, _places, self.home)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("Cache-Control", "no-store")
        token = self.xsrf_token.decode()
        largest = _largest(self.measurements, folder, self.base_url, token)
        self.finish(render(seen, self.base_url, places, largest))


def _places(home: Path) -> list[Path]:
    """Return the folders that the page offers: the home, and what else sessions have."""
    return [home, *(path for path in (Path("/shared"), Path("/scratch")) if path.is_dir())]


def _largest(measurements: Measurements, folder: Path, base: str, xsrf: str) -> str:
    """Return the section on what takes the space of a folder."""
    said, known = "", measurements.of(folder)
    if measurements.runs(folder):
        said = '<p role="status">It is being measured. Load the page again to see the result.</p>'
    elif known is not None:
        at, found = known
        rows = "".join(
            f"<li>{_link(url_path_join(base, 'carme/files'), folder / each['path'], each['path'])}: "
            f"{size_text(each['bytes'])} in {each['files']:,} files</li>"
            for each in found["folders"]
        )
        part = "" if found["complete"] else " Not all of it could be measured."
        said = (
            f"<p>{size_text(found['bytes'])} in {found['files']:,} files, measured "
            f"{time_text(at)} UTC.{part}</p><ul>{rows}</ul>"
        )
    form = (
        f'<form method="post" action="{escape(url_path_join(base, "carme/files/measure"))}">'
        f'<input type="hidden" name="_xsrf" value="{escape(xsrf)}">'
        f'<input type="hidden" name="path" value="{escape(str(folder))}">'
        "<button>Measure this folder</button></form>"
    )
    if not _is_text(folder) or measurements.runs(folder):
        form = ""
    return f'<section aria-labelledby="largest"><h2 id="largest">What takes the space</h2>{said}{form}</section>'


def render(seen: Listing, base: str, places: list[Path], largest: str) -> str:
    """Return the page of a folder."""
    own, static = url_path_join(base, "carme/files"), url_path_join(base, "lab/extensions/carme-hub/static")
    crumbs = [_link(own, path, path.name or "/") for path in reversed(seen.folder.parents)]
    crumbs.append(f'<span aria-current="page">{escape(shown(seen.folder.name or "/"))}</span>')
    last = seen.first + len(seen.rows)
    more = ""
    if seen.first or last < seen.count:
        links = []
        if seen.first:
            links.append(_page_link(own, seen, max(0, seen.first - MOST_ENTRIES), "Before"))
        if last < min(seen.count, MOST_REACHED):
            links.append(_page_link(own, seen, last, "After"))
        elif last < seen.count:
            links.append(f"The page shows the first {MOST_REACHED:,} only; a terminal shows all.")
        more = f"<p>{seen.first + 1} to {last} of {seen.count} {' '.join(links)}</p>"
    space = f"{size_text(seen.free)} of {size_text(seen.total)} are free on this file system."
    if not seen.writable:
        space += " You may not write into this folder."
    return _PAGE.format(
        title=escape(shown(seen.folder.name or "/")),
        static=escape(static),
        uploads=escape(url_path_join(base, "carme/uploads")),
        code=escape(quoted(seen.folder)),
        lab=escape(url_path_join(base, "lab")),
        places=" ".join(_link(own, path, "Home" if path == places[0] else str(path)) for path in places),
        crumbs=" / ".join(crumbs),
        space=escape(space),
        upload=_UPLOAD if seen.writable else "",
        unfinished=_unfinished(seen, url_path_join(base, "carme/uploads")),
        full=_FULL if os.environ.get("CARME_HOME_FULL") else "",
        archive=escape(url_path_join(own, "archive")),
        folder=escape(str(seen.folder), quote=True) if _is_text(seen.folder) else "",
        caption=f"{seen.count} {'entry' if seen.count == 1 else 'entries'}",
        rows="\n".join(_row(each, seen.folder, own) for each in seen.rows),
        more=more,
        # A form sends text: a folder whose name is none can be downloaded from the one above it, by its link.
        largest=largest,
        download=_DOWNLOAD if seen.rows and _is_text(seen.folder) else "",
    )


def _link(own: str, path: Path, name: str) -> str:
    return f'<a href="{escape(own)}?path={escape(quoted(path))}">{escape(shown(name))}</a>'


def _page_link(own: str, seen: Listing, first: int, text: str) -> str:
    return f'<a href="{escape(own)}?path={escape(quoted(seen.folder))}&amp;from={first}">{text}</a>'


def _is_text(path: Path | str) -> bool:
    return shown(str(path)) == str(path)


def _row(row: Row, folder: Path, own: str) -> str:
    path, name = folder / row.name, escape(shown(row.name))
    changed = time_text(row.changed) if row.changed else ""
    choice = ""
    if _is_text(row.name):
        choice = f'<input type="checkbox" name="name" value="{escape(row.name)}" aria-label="Choose {name}">'
    if row.is_folder:
        link, size = f"{_link(own, path, row.name)}/", ""
    elif row.is_file:
        link = f'<a href="{escape(own)}/file?path={escape(quoted(path))}" download>{name}</a>'
        size = size_text(row.size or 0)
    else:
        link, size = name, ""
    if not choice and row.is_folder:
        archive = f"{escape(own)}/archive?folder={escape(quoted(path))}&amp;format=tar"
        size = f'<a href="{archive}">as tar</a>'
    return f'<tr><td>{choice}</td><td class="name">{link}</td><td class="size">{size}</td><td>{changed}</td></tr>'


def _unfinished(seen: Listing, uploads: str) -> str:
    if not seen.uploads:
        return ""
    rows = []
    for each in seen.uploads:
        name, until = escape(shown(each.name)), time_text(each.expires)
        percent = each.offset * 100 // max(each.length, 1)
        said = f"{size_text(each.offset)} of {size_text(each.length)} ({percent} %), kept until {until} UTC"
        address = escape(f"{uploads}/{each.address}")
        rows.append(
            f'<li data-upload="{address}"><span class="name">{name}</span>: {said} '
            f'<button type="button" class="cancel" aria-label="Cancel the upload of {name}" hidden>Cancel</button></li>'
        )
    return (
        '<section aria-labelledby="unfinished"><h2 id="unfinished">Uploads that are not complete</h2>'
        "<p>Choose the same file again, and its upload goes on.</p>"
        f'<ul id="unfinished-list">{"".join(rows)}</ul></section>'
    )
