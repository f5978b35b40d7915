"""Uploads that resume, by the protocol tus 1.0 (https://tus.io/protocols/resumable-upload), within the user's rights.

- ``POST <base>/carme/uploads``: begin one. ``Upload-Length``; ``Upload-Metadata`` with ``filename`` (or
  ``relativePath``, whose folders are made), ``folder`` (default: the home) and ``overwrite`` (``true``).
- ``HEAD``, ``PATCH``, ``DELETE <base>/carme/uploads/<address>``: how much has arrived, more of it, cancel it.
- ``OPTIONS``: what the server can do. Extensions: creation, creation-with-upload, expiration, checksum, termination.

A body is written in pieces while it arrives, so the server's memory does not grow with the file. Whoever sends the next
bytes of an upload takes it over from a connection that is still open and silent: a laptop that was closed leaves one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import os
from collections import OrderedDict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.utils import url_path_join
from tornado import web

from carme_hub.files.handlers import TRANSFERS, FilesHandler, as_answer
from carme_hub.files.places import NotPossible, folder_of, name_of, refused, relative_of
from carme_hub.files.tus_headers import CHECKSUMS, checksum_of, expires, metadata, number
from carme_hub.files.uploads import Upload, UploadFolder, place_of

VERSION, EXTENSIONS = "1.0.0", "creation,creation-with-upload,expiration,checksum,termination"
BODY = "application/offset+octet-stream"
#: Bytes of a body that are read and thrown away before a refusal is sent.
DRAINED = 64 << 20
#: Bytes that are written at once, seconds for an older request to let go of an upload, and uploads that are remembered
#: after their end: a client that did not get the last answer asks for them.
PIECE, TAKE_OVER, REMEMBERED = 1 << 20, 10.0, 1000


class Transfers:
    """What the requests of one server share: who writes to which upload, and what was completed lately."""

    def __init__(self) -> None:
        self.active: dict[str, UploadHandler] = {}
        self._complete: OrderedDict[str, int] = OrderedDict()

    @property
    def count(self) -> int:
        """How many uploads are being written."""
        return len(self.active)

    def completed(self, upload: Upload) -> None:
        """Remember an upload."""
        self._complete[upload.address] = upload.length
        while len(self._complete) > REMEMBERED:
            self._complete.popitem(last=False)

    def length_of(self, address: str) -> int | None:
        """Return the length of an upload that is complete."""
        return self._complete.get(address)


@web.stream_request_body
class UploadHandler(FilesHandler):
    """All of tus; one class, because a request may name its method in X-HTTP-Method-Override."""

    transfers: Transfers

    def initialize(self, transfers: Transfers) -> None:
        """Keep what all requests share; a request that is refused has no body to write."""
        self.transfers = transfers
        self._upload: Upload | None = None
        self._fd, self._begin, self._offset = -1, 0, 0
        self._pending = bytearray()
        self._checksum: tuple[Any, bytes] | None = None
        self._failed: NotPossible | None = None
        self._released = asyncio.Event()
        self._writing = asyncio.Lock()
        self._lost = False

    def set_default_headers(self) -> None:
        """Name the version in every answer, also of errors."""
        super().set_default_headers()
        self.set_header("Tus-Resumable", VERSION)
        self.set_header("Tus-Version", VERSION)
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")

    # -- the head of a request ----------------------------------------------------------------------------------------

    async def prepare(self) -> None:  # type: ignore[override]
        """Check the request before its body is read, and open what the body goes to."""
        override = self.request.headers.get("X-HTTP-Method-Override", "").upper()
        if self.request.method == "POST" and override in ("PATCH", "DELETE", "HEAD"):
            self.request.method = override  # what follows, the check for forged requests too, sees the real method
        await super().prepare()
        if self._finished or self.request.method == "OPTIONS":
            return
        if self.request.headers.get("Tus-Resumable") != VERSION:
            raise web.HTTPError(412, f"This server speaks tus {VERSION}; send the header Tus-Resumable: {VERSION}.")
        try:
            if self.request.method == "POST":
                await self._create()
            elif self.request.method == "PATCH":
                await self._resume()
        except NotPossible as error:
            await self._release()
            if not 0 < self._body_length() <= DRAINED:
                raise as_answer(error) from error
            # Who is still sending would see the connection break, and not the answer.
            self.request.connection.set_max_body_size(DRAINED)  # type: ignore[union-attr]
            self._failed = error

    async def _create(self) -> None:
        length = number(self.request.headers, "Upload-Length")
        text = self.request.headers.get("Upload-Metadata", "")
        given = metadata(text)
        with_body = self.request.headers.get("Content-Type") == BODY
        checksum = checksum_of(self.request.headers) if with_body else None

        def create() -> Upload:
            folder = folder_of(given.get("folder", b""), Path.home())
            relative, folders = given.get("relativePath") or b"", list[str]()
            if relative and relative != b"null":  # tus-js-client's users send null where there is none
                *folders, name = relative_of(relative)
            else:
                name = name_of(given.get("filename") or given.get("name") or b"")
            with UploadFolder(folder, tuple(folders)) as opened:
                overwrite = given.get("overwrite") == b"true"
                return opened.create(name, length, metadata=text, overwrite=overwrite)

        upload = await self._in_thread(create)
        self.set_status(201)
        self.set_header("Location", url_path_join(self.base_url, "carme/uploads", upload.address))
        self.set_header("Upload-Expires", expires(upload))
        if with_body or length == 0:
            try:
                await self._open(upload.address, 0, checksum)
            except NotPossible:  # nobody is told its address
                await self._in_thread(cancel, upload.address)
                raise
        if not with_body:
            self.request.connection.set_max_body_size(0)  # type: ignore[union-attr]

    async def _resume(self) -> None:
        if not self.path_args:
            raise NotPossible(404, "There is no such upload.")
        if self.request.headers.get("Content-Type") != BODY:
            raise NotPossible(415, f"The body's Content-Type has to be {BODY}.")
        await self._open(
            self.path_args[0], number(self.request.headers, "Upload-Offset"), checksum_of(self.request.headers)
        )

    async def _open(self, address: str, offset: int, checksum: tuple[Any, bytes] | None) -> None:
        """Take the upload, and check that the request goes on where it stands."""
        await self._take_over(address)
        self.transfers.active[address] = self
        self._address = address
        upload = await self._in_thread(find, address)
        if offset != upload.offset:
            raise NotPossible(409, f"{upload.offset} bytes have arrived, and the request begins at {offset}.")
        left = upload.length - offset
        if self._body_length() > left:
            raise NotPossible(413, f"The body is longer than what is missing, {left} bytes.")
        self._fd = await self._in_thread(open_part, upload)
        self._upload, self._begin, self._offset, self._checksum = upload, offset, offset, checksum
        self.request.connection.set_max_body_size(left + 1)  # type: ignore[union-attr]

    def _body_length(self) -> int:
        """Return the length that the request says its body has; 0 where it says none, or what is no number."""
        text = self.request.headers.get("Content-Length", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0

    async def _take_over(self, address: str) -> None:
        older = self.transfers.active.get(address)
        if older is None:
            return
        older.let_go()
        try:
            await asyncio.wait_for(older._released.wait(), TAKE_OVER)
        except TimeoutError:
            raise NotPossible(423, "Another request writes to this upload. Try again in a minute.") from None

    def let_go(self) -> None:
        """End this request for another one that goes on with its upload."""
        stream = getattr(self.request.connection, "stream", None)
        if stream is not None:
            stream.close()

    # -- the body -----------------------------------------------------------------------------------------------------

    async def data_received(self, chunk: bytes) -> None:
        """Take a part of the body; the next one is not read before this one has been dealt with."""
        if self._upload is None or self._failed is not None:
            return
        self._pending += chunk
        if len(self._pending) >= PIECE:
            await self._write()

    async def _write(self) -> None:
        async with self._writing:
            if not self._pending or self._fd < 0 or self._upload is None or self._failed is not None:
                return
            piece, self._pending = self._pending, bytearray()
            if self._offset + len(piece) > self._upload.length:
                self._failed = NotPossible(413, "The body is longer than the file.")
                return
            try:
                await self._in_thread(self._append, piece)
            except NotPossible as error:
                self._failed = error
            self.settings["api_last_activity"] = datetime.now(UTC)

    def _append(self, piece: bytearray) -> None:
        if self._checksum is not None:
            self._checksum[0].update(piece)
        view = memoryview(piece)
        try:
            while view:
                count = os.write(self._fd, view)
                self._offset += count
                view = view[count:]
        except OSError as error:
            raise refused(error, self._upload.folder if self._upload else "") from error

    def on_connection_close(self) -> None:
        """Keep what has arrived before the connection was lost, unless its checksum was still to come."""
        super().on_connection_close()
        self._lost = True
        asyncio.get_running_loop().create_task(self._end_of_connection())

    async def _end_of_connection(self) -> None:
        if self._fd >= 0:
            await self._write()
            if self._checksum is not None:
                await self._back_to_begin()
        await self._release()

    async def _back_to_begin(self) -> None:
        def truncate() -> None:
            os.ftruncate(self._fd, self._begin)

        with contextlib.suppress(OSError):
            await self._in_thread(truncate)

    async def _release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:  # before anybody else is told to go on: it has the lock
            await self._in_thread(os.close, fd)
        if self.transfers.active.get(getattr(self, "_address", "")) is self:
            del self.transfers.active[self._address]
        self._released.set()

    def on_finish(self) -> None:
        """Give the upload back, however the request has ended."""
        super().on_finish()
        if not self._released.is_set():
            asyncio.get_running_loop().create_task(self._release())

    # -- the answer ---------------------------------------------------------------------------------------------------

    async def _finish_body(self) -> None:
        """Write the rest, compare the checksum, and make a complete upload the file."""
        upload = self._upload
        if upload is None:
            if self._failed is not None:
                raise as_answer(self._failed)
            return
        try:
            await self._write()
            if self._failed is not None:
                raise self._failed
            if self._checksum is not None and not hmac.compare_digest(self._checksum[0].digest(), self._checksum[1]):
                await self._back_to_begin()
                raise NotPossible(460, "The body does not have the checksum that was sent; nothing of it is kept.")
            self.set_header("Upload-Offset", str(self._offset))
            if self._offset == upload.length:
                name = await self._in_thread(finish, upload, self._fd)
                self.transfers.completed(upload)
                self.set_header("Carme-File-Name", base64.b64encode(os.fsencode(name)).decode())
            else:
                self.set_header("Upload-Expires", expires(await self._in_thread(find, upload.address)))
        except NotPossible as error:
            if error.status == 460:
                raise web.HTTPError(460, "%s", str(error), reason="Checksum Mismatch") from error
            raise as_answer(error) from error
        finally:
            await self._release()

    @web.authenticated
    @authorized
    async def post(self, address: str = "") -> None:  # noqa: ARG002  for the method that was overridden
        """Answer that the upload has begun."""
        await self._finish_body()
        self.finish()

    @web.authenticated
    @authorized
    async def patch(self, address: str) -> None:  # noqa: ARG002  prepare has opened it
        """Answer with the offset."""
        await self._finish_body()
        self.set_status(204)
        self.finish()

    @web.authenticated
    @authorized
    async def head(self, address: str) -> None:
        """Answer with how much has arrived."""
        complete = self.transfers.length_of(address)
        if complete is not None:
            self.set_header("Upload-Offset", str(complete))
            self.set_header("Upload-Length", str(complete))
        else:
            active = self.transfers.active.get(address)
            if active is not None:  # what it has in memory shall count
                await active._write()
            upload = await self.blocking(TRANSFERS, find, address)
            self.set_header("Upload-Offset", str(upload.offset))
            self.set_header("Upload-Length", str(upload.length))
            self.set_header("Upload-Expires", expires(upload))
            if upload.metadata:
                self.set_header("Upload-Metadata", upload.metadata)
        self.finish()

    @web.authenticated
    @authorized
    async def delete(self, address: str) -> None:
        """Cancel an upload."""
        try:
            await self._take_over(address)
        except NotPossible as error:
            raise as_answer(error) from error
        await self.blocking(TRANSFERS, cancel, address)
        self.set_status(204)
        self.finish()

    @web.authenticated
    async def options(self, address: str = "") -> None:  # noqa: ARG002
        """Say what this server can do."""
        self.set_header("Tus-Extension", EXTENSIONS)
        self.set_header("Tus-Checksum-Algorithm", ",".join(CHECKSUMS))
        self.set_status(204)
        self.finish()

    async def _in_thread(self, work: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(TRANSFERS, work, *args)


def find(address: str) -> Upload:
    """Return an upload by the last part of its URL."""
    folder, id = place_of(address)
    with UploadFolder(folder) as opened:
        return opened.find(id)


def open_part(upload: Upload) -> int:
    """Return a descriptor to append to it."""
    with UploadFolder(upload.folder) as opened:
        return opened.open_part(upload.id)


def finish(upload: Upload, fd: int) -> str:
    """Make it the file, and return the file's name."""
    with UploadFolder(upload.folder) as opened:
        return opened.finish(upload, fd)


def cancel(address: str) -> None:
    """Remove it."""
    folder, id = place_of(address)
    with UploadFolder(folder) as opened:
        opened.cancel(id)
