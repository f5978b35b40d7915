"""What is in a folder, for the page: names with sizes and times, folders first, and how full its file system is."""

from __future__ import annotations

import heapq
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from carme_hub.files.places import refused
from carme_hub.files.uploads import Upload, UploadFolder

#: Entries on one page, and as far as pages go: a folder of a million files costs the session no memory to speak of.
MOST_ENTRIES, MOST_REACHED = 500, 20_000
_OURS = re.compile(r"\.[0-9a-f]{32}\.carme-upload(?:\.json)?\Z")


@dataclass(frozen=True, slots=True)
class Row:
    """An entry of a folder. ``size`` in bytes, None of a folder; ``changed`` in seconds since 1970."""

    name: str
    is_folder: bool
    size: int | None
    changed: float
    is_file: bool = True


@dataclass(frozen=True, slots=True)
class Listing:
    """A part of a folder's entries, how many there are in all, and the uploads that are not complete there.

    ``free`` and ``total`` are bytes of the file system as statvfs(3) has them: a quota of the user may be smaller.
    """

    folder: Path
    rows: list[Row]
    count: int
    first: int
    uploads: list[Upload]
    writable: bool
    free: int
    total: int


def listing(folder: Path, first: int = 0) -> Listing:
    """Return the entries of a folder from the given number on. It blocks.

    Raises:
        NotPossible: the folder does not exist or may not be read.
    """
    count, first = 0, min(first, MOST_REACHED - MOST_ENTRIES)

    def counted(found: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        nonlocal count
        for each in found:
            if not _OURS.match(each.name):
                count += 1
                yield each

    try:
        with os.scandir(folder) as found:
            entries = heapq.nsmallest(first + MOST_ENTRIES, counted(found), key=_order)
        disk = os.statvfs(folder)
    except OSError as error:
        raise refused(error, folder) from error
    with UploadFolder(folder) as opened:
        uploads = opened.unfinished()
    return Listing(
        folder=folder,
        rows=[_row(each) for each in entries[first:]],
        count=count,
        first=first,
        uploads=uploads,
        writable=os.access(folder, os.W_OK | os.X_OK),
        free=disk.f_bavail * disk.f_frsize,
        total=disk.f_blocks * disk.f_frsize,
    )


def _order(entry: os.DirEntry[str]) -> tuple[bool, str, str]:
    return not entry.is_dir(), entry.name.lower(), entry.name


def _row(entry: os.DirEntry[str]) -> Row:
    try:
        status = entry.stat()  # of what a link leads to
    except OSError:  # a link that leads nowhere, or a file that is gone
        return Row(entry.name, is_folder=False, size=None, changed=0.0, is_file=False)
    if stat.S_ISDIR(status.st_mode):
        return Row(entry.name, is_folder=True, size=None, changed=status.st_mtime)
    return Row(entry.name, False, status.st_size, status.st_mtime, is_file=stat.S_ISREG(status.st_mode))


def size_text(count: int) -> str:
    """Return a number of bytes in its largest binary unit, with one decimal below ten."""
    number, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.0f} {unit}" if unit == "B" or number >= 9.95 else f"{number:.1f} {unit}"


def time_text(seconds: float) -> str:
    """Return a time for people, UTC; nothing for one beyond the calendar: anybody may give a file such a time."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return ""
