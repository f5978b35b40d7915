"""Folders and names as requests give them: bytes of a URL in, paths of the file system out, or why not.

A name may be any bytes but NUL and "/". Python's strings hold what is not UTF-8 as surrogates (PEP 383), URLs hold it
percent-encoded, and a page shows it with U+FFFD.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

#: Bytes of a name and of a path (limits.h), and folders in the relative path of one upload.
NAME_MAX, PATH_MAX, DEPTH_MAX = 255, 4096, 64


class NotPossible(Exception):
    """What was asked for cannot be done; the message says why and what to do, ``status`` is that of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def folder_of(raw: bytes, home: Path) -> Path:
    """Return the folder that a request names; a relative one, and none, is below the home.

    Raises:
        NotPossible: it is no folder, or the user may not open it.
    """
    path = path_of(raw, home)
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        raise refused(error, path) from error
    return path


def path_of(raw: bytes, home: Path) -> Path:
    """Return the path that a request names, absolute and without ".." and "."; it need not exist."""
    if b"\0" in raw or len(raw) >= PATH_MAX:
        raise NotPossible(400, "A path has at most 4095 bytes, and no byte 0.")
    return Path(os.path.normpath(home / os.fsdecode(raw)))


def name_of(raw: bytes) -> str:
    """Return the name of a file that a request gives.

    Raises:
        NotPossible: no file can have it.
    """
    if not raw or raw in (b".", b"..") or b"/" in raw or b"\0" in raw or len(raw) > NAME_MAX:
        shown = ascii(os.fsdecode(raw[:40]))
        raise NotPossible(400, f"A file cannot be named {shown}: a name has 1 to 255 bytes, and no slash.")
    return os.fsdecode(raw)


def relative_of(raw: bytes) -> tuple[str, ...]:
    """Return the folders and the name of a path such as ``album/2026/one.jpg``; folders may not leave the target."""
    parts = raw.split(b"/")
    if len(parts) > DEPTH_MAX:
        raise NotPossible(400, f"The relative path has more than {DEPTH_MAX} folders.")
    return tuple(name_of(part) for part in parts)


def refused(error: OSError, path: Path | str) -> NotPossible:
    """Return an error of the file system as an answer."""
    import errno

    where = shown(str(path))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NotPossible(507, no_space(where))
    said = {
        errno.ENOENT: (404, f"{where} does not exist."),
        errno.ENOTDIR: (404, f"{where} is no folder."),
        errno.EACCES: (403, f"You may not do that in {where}. Ask its owner."),
        errno.EPERM: (403, f"You may not do that in {where}. Ask its owner."),
        errno.EROFS: (403, f"{where} is mounted read-only."),
        errno.ENAMETOOLONG: (400, "The name or the path is too long for this file system."),
    }
    status, message = said.get(error.errno or 0, (500, f"{where}: {error.strerror or error}."))
    return NotPossible(status, message)


def no_space(where: str) -> str:
    """Return what is said where a disk or a quota is full."""
    return (
        f"There is no space left in {where}: the disk or your quota is full. What has arrived is kept. "
        "Remove what you do not need, and go on."
    )


def shown(name: str) -> str:
    """Return a name for people: what is not UTF-8 as U+FFFD, and no line ends or other control characters."""
    text = os.fsencode(name).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def quoted(path: Path | str) -> str:
    """Return a path or a name for the query of a URL."""
    return quote(os.fsencode(str(path)), safe="/")
