"""What is in a folder, for the page: names with sizes and times, folders first, and how full its file system is."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from carme_hub.files.places import refused
from carme_hub.files.uploads import Upload, UploadFolder

#: Entries on one page.
MOST_ENTRIES = 500
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
    try:
        with os.scandir(folder) as found:
            entries = [each for each in found if not _OURS.match(each.name)]
        entries.sort(key=lambda each: (not each.is_dir(), each.name.lower(), each.name))
        disk = os.statvfs(folder)
    except OSError as error:
        raise refused(error, folder) from error
    with UploadFolder(folder) as opened:
        uploads = opened.unfinished()
    return Listing(
        folder=folder,
        rows=[_row(each) for each in entries[first : first + MOST_ENTRIES]],
        count=len(entries),
        first=first,
        uploads=uploads,
        writable=os.access(folder, os.W_OK | os.X_OK),
        free=disk.f_bavail * disk.f_frsize,
        total=disk.f_blocks * disk.f_frsize,
    )


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
