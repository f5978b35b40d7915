"""Downloads: an archive that is made while it is sent, and one file, of which a part may be asked for.

- ``GET <base>/carme/files/archive?folder=F&name=A&name=B&format=tar|zip``; without names the folder itself.
- ``GET <base>/carme/files/file?path=P``: with ``Range: bytes=N-M`` from there on, so that a download can go on.

The next piece is read when the one before has been sent: a slow visitor costs one piece of memory.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import formatdate
from io import FileIO
from pathlib import Path
from urllib.parse import quote

from jupyter_server.auth.decorator import authorized
from tornado import web
from tornado.iostream import StreamClosedError

from carme_hub.files.archive import FORMATS, MOST_ZIPPED, PIECE, has_more_than, pieces
from carme_hub.files.handlers import TRANSFERS, FilesHandler, as_answer
from carme_hub.files.places import NotPossible, folder_of, name_of, path_of, refused

_RANGE = re.compile(r"bytes=(\d{1,19})-(\d{0,19})\Z")
#: The last second that a date of HTTP can have: a file system may have later ones.
_LATEST = 253_402_300_799


class _Download(FilesHandler):
    """Sends pieces one after the other."""

    def _begin(self, name: str, kind: str) -> None:
        self.set_header("Content-Type", kind)
        self.set_header("Content-Disposition", f"attachment; filename*=UTF-8''{quote(os.fsencode(name))}")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("X-Accel-Buffering", "no")
        self.set_header("Content-Security-Policy", "sandbox; default-src 'none'")

    async def _send(self, source: Iterator[bytes]) -> None:
        loop = asyncio.get_running_loop()
        try:
            while (piece := await loop.run_in_executor(TRANSFERS, next, source, None)) is not None:
                self.write(piece)
                await self.flush()
                self.settings["api_last_activity"] = datetime.now(UTC)  # a long download is no idle session
        except StreamClosedError:
            return  # the visitor has left
        finally:
            close = getattr(source, "close", None)
            if close is not None:
                await loop.run_in_executor(TRANSFERS, close)
        self.finish()


class ArchiveHandler(_Download):
    """An archive of what is chosen in a folder."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Send it."""
        kind = self.raw_argument("format").decode("ascii", "replace") or "tar"
        try:
            if kind not in FORMATS:
                raise NotPossible(400, "The format is tar or zip.")
            names = [name_of(raw) for raw in self.raw_arguments("name")]
        except NotPossible as error:
            raise as_answer(error) from error
        folder = await self.blocking(TRANSFERS, folder_of, self.raw_argument("folder"), self.home)
        if not names:
            if folder == folder.parent:
                raise web.HTTPError(400, "Choose folders: all of the machine is no archive.")
            folder, names = folder.parent, [folder.name]
        if kind == "zip" and await self.blocking(TRANSFERS, has_more_than, MOST_ZIPPED, folder, names):
            raise web.HTTPError(400, f"These are more than {MOST_ZIPPED:,} files, too many for a zip. Choose tar.")
        self._begin(f"{names[0] if len(names) == 1 else folder.name or 'files'}.{kind}", FORMATS[kind])
        await self._send(pieces(folder, names, kind))


class FileHandler(_Download):
    """One file."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Send it, or the part that is asked for."""
        try:
            path = path_of(self.raw_argument("path"), self.home)
        except NotPossible as error:
            raise as_answer(error) from error
        file, size, changed = await self.blocking(TRANSFERS, open_file, path)
        with file:
            await self._send_part(path.name, file, size, changed)

    async def _send_part(self, name: str, file: FileIO, size: int, changed: int) -> None:
        first, last = 0, size - 1
        wanted = _RANGE.match(self.request.headers.get("Range", ""))
        mark = f'"{changed:x}-{size:x}"'
        if wanted and self.request.headers.get("If-Range", mark) == mark:
            first, last = int(wanted[1]), min(int(wanted[2] or size), size - 1)
            if first > last:
                self.set_header("Content-Range", f"bytes */{size}")
                self.set_status(416)
                self.finish()
                return
            self.set_status(206)
            self.set_header("Content-Range", f"bytes {first}-{last}/{size}")
        self._begin(name, "application/octet-stream")
        self.set_header("Accept-Ranges", "bytes")
        self.set_header("ETag", mark)
        self.set_header("Last-Modified", formatdate(min(max(changed / 1e9, 0), _LATEST), usegmt=True))
        self.set_header("Content-Length", str(last - first + 1))
        await self._send(_part(file.fileno(), first, last + 1))


def open_file(path: Path) -> tuple[FileIO, int, int]:
    """Return a file that is open, its size, and when it changed, in ns."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(fd)
    except OSError as error:
        raise refused(error, path) from error
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise NotPossible(400, "That is no file. Folders are downloaded as archives.")
    return FileIO(fd), status.st_size, status.st_mtime_ns


def _part(fd: int, first: int, end: int) -> Iterator[bytes]:
    """Yield a part of a file. A file that became shorter ends the connection: its length was promised."""
    while first < end:
        piece = os.pread(fd, min(PIECE, end - first), first)
        if not piece:
            return
        first += len(piece)
        yield piece
