"""Uploads that have begun and are not complete: their state is beside their data, in the folder that the file goes to.

An upload with the id ID has two files in its folder: ``.ID.carme-upload``, the bytes that have arrived, and
``.ID.carme-upload.json``, its name and length. So it counts in that folder's quota, outlives the session, needs no
space in the home, and becomes the file by a rename. The offset is the size of the first file. Anybody who may write
into the folder may exchange names there: files are opened without following links, and must belong to this user.

An upload that nobody has written to for a week has expired; it is removed when somebody next uploads to the folder.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carme_hub.files.places import NAME_MAX, NotPossible, name_of, no_space, refused, shown

PART, INFO = ".{}.carme-upload", ".{}.carme-upload.json"
_ID = re.compile(r"[0-9a-f]{32}\Z")
_FILES = re.compile(r"\.([0-9a-f]{32})\.carme-upload(?:\.json)?\Z")
#: Seconds after the last byte for which an upload is kept.
KEPT_SECONDS = 7 * 86_400
#: The largest length of a file, and bytes of the state.
LENGTH_MAX, INFO_MAX = 2**63 - 1, 65_536
#: Numbers that are tried for the name of a file whose own name was taken while it arrived.
NUMBERS = 1000
#: Uploads that one look at a folder finds: others may have put any number of such names there.
MOST_FOUND = 1000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Upload:
    """One upload as it stands. ``offset`` and ``length`` in bytes, ``expires`` in seconds since 1970 (UTC)."""

    folder: Path
    id: str
    name: str
    length: int
    offset: int
    expires: float
    metadata: str = ""
    overwrite: bool = False

    @property
    def address(self) -> str:
        """Its last part of the URL, from which ``find`` finds it: the folder, then the id."""
        return base64.urlsafe_b64encode(os.fsencode(self.folder)).decode().rstrip("=") + "." + self.id


def place_of(address: str) -> tuple[Path, str]:
    """Return the folder and the id in the last part of an upload's URL."""
    code, _, id = address.partition(".")
    try:
        raw = base64.b64decode(code + "=" * (-len(code) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raw = b""
    folder = Path(os.fsdecode(raw)) if b"\0" not in raw else Path()
    if not _ID.match(id) or not folder.is_absolute():
        raise NotPossible(404, "There is no such upload.")
    return folder, id


class UploadFolder:
    """A folder that is open for uploads. Use it as a context manager; its methods block.

    Args:
        parts: folders below it, which are made and entered one after the other. Each is opened in the one above, and
            not by its path: whoever may write there could exchange it for a link to a folder of the user.

    Raises:
        NotPossible: on entry, where the folder does not exist, may not be opened, or a part of it is a link.
    """

    def __init__(self, folder: Path, parts: tuple[str, ...] = ()) -> None:
        self.folder, self._parts, self._fd = folder, parts, -1

    def __enter__(self) -> UploadFolder:
        """Open the folder."""
        try:
            self._fd = os.open(self.folder, _FOLDER)
            for part in self._parts:
                self._enter(part)
        except OSError as error:
            if self._fd >= 0:
                os.close(self._fd)
            raise refused(error, self.folder) from error
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        os.close(self._fd)

    def _enter(self, part: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=self._fd)
        fd = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=self._fd)
        os.close(self._fd)
        self.folder, self._fd = self.folder / part, fd

    def create(self, name: str, length: int, *, metadata: str = "", overwrite: bool = False) -> Upload:
        """Begin an upload.

        Raises:
            NotPossible: the file exists, there is not so much space, or the user may not write here.
        """
        name_of(os.fsencode(name))
        if not overwrite and self._exists(name):
            raise NotPossible(409, f"{shown(name)} is there already. Rename one of them, or ask to replace it.")
        if overwrite and self._is_folder(name):
            raise NotPossible(409, f"{shown(name)} is a folder, which no file can replace.")
        disk = os.fstatvfs(self._fd)
        if length > disk.f_bavail * disk.f_frsize:
            free = disk.f_bavail * disk.f_frsize
            raise NotPossible(507, f"{no_space(shown(str(self.folder)))} Free: {free} bytes, wanted: {length}.")
        self.remove_expired()
        id, flags = secrets.token_hex(16), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        state = {"version": 1, "name": name, "length": length, "metadata": metadata, "overwrite": overwrite}
        text = json.dumps(state).encode()
        if len(text) > INFO_MAX:
            raise NotPossible(413, "The upload's metadata is too long.")
        try:
            # 0666: the umask or the folder's default ACL decides, as for any new file; chmod would change the mask.
            with os.fdopen(os.open(INFO.format(id), flags, 0o600, dir_fd=self._fd), "wb") as file:
                file.write(text)
            os.close(os.open(PART.format(id), flags, 0o666, dir_fd=self._fd))
        except OSError as error:
            self._remove(id)
            raise refused(error, self.folder) from error
        return self.find(id)

    def find(self, id: str) -> Upload:
        """Return an upload as it stands.

        Raises:
            NotPossible: there is none with this id, or it is somebody else's, or it has expired (410).
        """
        try:
            with os.fdopen(self._open(INFO.format(id), os.O_RDONLY), "rb") as file:
                state: dict[str, Any] = json.loads(file.read(INFO_MAX + 1))
            fd = self._open(PART.format(id), os.O_RDONLY)
            size, changed = (status := os.fstat(fd)).st_size, status.st_mtime
            os.close(fd)
            found = Upload(
                *(self.folder, id, name_of(os.fsencode(state["name"])), int(state["length"]), size),
                expires=min(changed, time.time()) + KEPT_SECONDS,
                metadata=str(state.get("metadata", "")),
                overwrite=bool(state.get("overwrite")),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NotPossible(404, "There is no such upload: it is complete, was cancelled, or has expired.") from error
        if found.expires < time.time():
            raise NotPossible(410, "The upload has expired: nothing has arrived for a week. Begin it again.")
        return found

    def open_part(self, id: str) -> int:
        """Return a descriptor to append to an upload with, which nobody else has; closing it gives it back.

        Raises:
            NotPossible: 423, another request has it; or there is no such upload.
        """
        try:
            fd = self._open(PART.format(id), os.O_RDWR)
        except OSError as error:
            raise refused(error, self.folder) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.lseek(fd, 0, os.SEEK_END)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise NotPossible(423, "Another request writes to this upload. Try again when it has ended.") from error
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise refused(error, self.folder) from error
            fd = self._open(PART.format(id), os.O_RDWR | os.O_APPEND)  # a file system without locks
        return fd

    def finish(self, upload: Upload, fd: int) -> str:
        """Make a complete upload the file, and return the file's name, which has a number if it was taken meanwhile."""
        part = PART.format(upload.id)
        try:
            os.fsync(fd)
            if upload.overwrite:
                os.rename(part, upload.name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
                name = upload.name
            else:
                name = self._placed(part, upload.name)
            self._remove(upload.id)
            os.fsync(self._fd)
        except OSError as error:
            raise refused(error, self.folder) from error
        return name

    def cancel(self, id: str) -> None:
        """Remove an upload and what has arrived of it."""
        self.find(id)
        self._remove(id)

    def unfinished(self) -> list[Upload]:
        """Return this user's uploads here that are not complete, the newest first."""
        found = []
        for id in self._ids():
            with contextlib.suppress(NotPossible):
                found.append(self.find(id))
        return sorted(found, key=lambda each: each.expires, reverse=True)

    def remove_expired(self) -> None:
        """Remove this user's uploads here that have expired."""
        for id in self._ids():
            try:
                self.find(id)
            except NotPossible as error:
                if error.status == 410 or self._is_old(id):
                    self._remove(id)

    # -- files --------------------------------------------------------------------------------------------------------

    def _open(self, name: str, flags: int) -> int:
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            os.close(fd)
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return fd

    def _ids(self) -> list[str]:
        found: set[str] = set()
        with os.scandir(self._fd) as entries:
            for entry in entries:
                if match := _FILES.match(entry.name):
                    found.add(match[1])
                if len(found) >= MOST_FOUND:
                    break
        return sorted(found)

    def _is_old(self, id: str) -> bool:
        """Return whether all that there is of an upload is this user's and old: one of its two files may be missing."""
        for name in (PART.format(id), INFO.format(id)):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
                if status.st_uid != os.geteuid() or status.st_mtime + KEPT_SECONDS > time.time():
                    return False
        return True

    def _exists(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise refused(error, self.folder) from error
        return True

    def _is_folder(self, name: str) -> bool:
        try:
            return stat.S_ISDIR(os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def _placed(self, part: str, name: str) -> str:
        """Give the part the name, or the name with a number, and replace nothing."""
        for candidate in _numbered(name):
            try:
                # A link refuses a name that is taken, where a rename would replace the file.
                os.link(part, candidate, src_dir_fd=self._fd, dst_dir_fd=self._fd, follow_symlinks=False)
            except FileExistsError:
                continue
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                    raise
                if self._exists(candidate):  # a file system without hard links
                    continue
                os.rename(part, candidate, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            return candidate
        raise NotPossible(409, f"{shown(name)} is there already, and so are its {NUMBERS} numbered names.")

    def _remove(self, id: str) -> None:
        for name in (PART.format(id), INFO.format(id)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._fd)


def _numbered(name: str) -> Iterator[str]:
    yield name
    stem, dot, ending = name.rpartition(".") if "." in name[1:] else (name, "", "")
    for number in range(2, NUMBERS + 2):
        more = f"-{number}{dot}{ending}"
        room = NAME_MAX - len(os.fsencode(more))
        yield os.fsdecode(os.fsencode(stem)[: max(room, 1)]) + more
