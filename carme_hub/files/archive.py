"""Archives of files and folders, made piece by piece while somebody downloads them: tar (PAX) or uncompressed zip.

Nothing is kept in memory but one piece, and for a zip its directory (about 1 KiB a file, so their number is bounded).
Links are packed as links and never followed, also where somebody exchanges a folder for a link meanwhile: the kernel is
asked where each opened file lies. Sockets, pipes and devices are left out; names lead nowhere outside of the folder in
which they are unpacked, and no two of a zip are the same. A file that cannot be read, or becomes shorter meanwhile,
does not end the archive: the file ``NOT-IN-THIS-ARCHIVE.txt`` at its end says which and why (in a tar, zeros stand for
what is missing of a file).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

#: Bytes of a piece: four times as many are no faster through the proxy, and cost each slow visitor more memory.
PIECE = 1 << 18
#: The file that says what is missing, and the most lines of it.
MISSING, MOST_MISSING = "NOT-IN-THIS-ARCHIVE.txt", 10_000
FORMATS = {"tar": "application/x-tar", "zip": "application/zip"}
#: The most entries of a zip; and the years that its format has, as seconds since 1970 (1980-01-02 to 2107-12-30).
MOST_ZIPPED = 100_000
_ZIP_FIRST, _ZIP_LAST = 315_619_200, 4_354_732_800


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or link to pack; ``name`` is relative, with slashes, and not empty.

    ``real`` is the path that the kernel has for it, unless somebody has moved it or a folder above it.
    """

    path: str
    name: str
    status: os.stat_result
    real: str


@dataclass(slots=True)
class Missing:
    """What the archive does not have, as lines for people."""

    lines: list[str] = field(default_factory=list)
    left_out: int = 0

    def add(self, name: str, why: object) -> None:
        """Note a file and the reason."""
        if len(self.lines) >= MOST_MISSING:
            self.left_out += 1
            return
        text = os.fsencode(name).decode("utf-8", "replace")
        self.lines.append(f"{ascii(text)[1:-1] if not text.isprintable() else text}: {why}\n")

    def text(self) -> bytes:
        """Return the content of the file."""
        more = [f"and {self.left_out} more\n"] if self.left_out else []
        return "".join([*self.lines, *more]).encode()


class Sink:
    """Takes what an archive's writer writes, until it is fetched."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0

    def write(self, data: bytes) -> int:
        """Take some bytes."""
        self._pieces.append(bytes(data))
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: they are fetched."""

    def take(self) -> bytes:
        """Return what was written since the last call."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        self.size = 0
        return data


def pieces(folder: Path, names: Sequence[str], kind: str) -> Iterator[bytes]:
    """Yield an archive of some names of a folder in pieces. It blocks.

    Args:
        names: without slashes. kind: one of ``FORMATS``.
    """
    make = _tar if kind == "tar" else _zip
    missing = Missing()
    yield from make(_entries(folder, names, missing), missing)


def has_more_than(count: int, folder: Path, names: Sequence[str]) -> bool:
    """Return whether an archive of some names would have more entries. It blocks, for at most so many."""
    return next(islice(_entries(folder, names, Missing()), count, None), None) is not None


def _entries(folder: Path, names: Sequence[str], missing: Missing) -> Iterator[Entry]:
    """Yield everything below some names, each folder before what is in it."""
    root = os.path.realpath(folder).rstrip("/")
    for top in names:
        waiting = [(os.path.join(folder, top), top)]  # noqa: PTH118  names may be no text
        while waiting:
            path, name = waiting.pop()
            try:
                status = os.lstat(path)
                yield Entry(path, name, status, f"{root}/{name}")
                if stat.S_ISDIR(status.st_mode):
                    with _opened(path, f"{root}/{name}", os.O_DIRECTORY) as fd, os.scandir(fd) as found:
                        for each in found:
                            below = (os.path.join(path, each.name), f"{name}/{each.name}")  # noqa: PTH118  as above
                            if each.is_dir(follow_symlinks=False):
                                waiting.append(below)
                            else:
                                yield Entry(*below, each.stat(follow_symlinks=False), f"{root}/{below[1]}")
            except OSError as error:
                missing.add(name, error.strerror or error)


@contextlib.contextmanager
def _opened(path: str, real: str, kind: int = 0) -> Iterator[int]:
    """Open a file or a folder; a pipe in its place would never answer.

    Raises:
        OSError: it cannot be opened, or is elsewhere: a folder of its path has become a link.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | kind)
    try:
        if os.readlink(f"/proc/self/fd/{fd}") != real:  # noqa: PTH115  it may be no text
            raise OSError(errno.ESTALE, "it was moved, or exchanged for a link, meanwhile")
        yield fd
    finally:
        os.close(fd)


def _size(fd: int) -> int:
    """Return the size of a file; raise OSError where it is a file no more."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "it is no file any more")
    return status.st_size


def _content(fd: int, size: int, name: str, missing: Missing) -> Iterator[bytes]:
    """Yield so many bytes of a file; where it has fewer, or cannot be read on, note that."""
    left = size
    try:
        while left:
            piece = os.read(fd, min(PIECE, left))
            if not piece:
                missing.add(name, f"it became shorter while it was read; only its first {size - left} bytes are here")
                return
            left -= len(piece)
            yield piece
    except OSError as error:
        missing.add(name, f"{error.strerror or error}; only its first {size - left} bytes are here")


def _tar(entries: Iterator[Entry], missing: Missing) -> Iterator[bytes]:
    sink, blank = Sink(), b"\0" * tarfile.BLOCKSIZE
    for entry in entries:
        kind = stat.S_IFMT(entry.status.st_mode)
        info = tarfile.TarInfo(entry.name)
        info.mode, info.mtime = entry.status.st_mode & 0o777, int(entry.status.st_mtime)
        try:
            if kind == stat.S_IFDIR:
                info.type = tarfile.DIRTYPE
            elif kind == stat.S_IFLNK:
                info.type, info.linkname = tarfile.SYMTYPE, str(Path(entry.path).readlink())
            elif kind == stat.S_IFREG:
                written = 0
                with _opened(entry.path, entry.real) as fd:
                    info.size = _size(fd)
                    sink.write(_head(info))
                    for piece in _content(fd, info.size, entry.name, missing):
                        written += len(piece)
                        sink.write(piece)
                        if sink.size >= PIECE:
                            yield sink.take()
                for start in range(written, info.size, PIECE):  # the length has been sent already
                    yield sink.take() + b"\0" * min(PIECE, info.size - start)
                sink.write(blank[: -info.size % tarfile.BLOCKSIZE])
                continue
            else:
                missing.add(entry.name, "it is no file, folder or link")
                continue
            sink.write(_head(info))
        except OSError as error:
            missing.add(entry.name, error.strerror or error)
        if sink.size >= PIECE:
            yield sink.take()
    if missing.lines:
        info, text = tarfile.TarInfo(MISSING), missing.text()
        info.size, info.mtime = len(text), int(time.time())
        sink.write(_head(info) + text + blank[: -len(text) % tarfile.BLOCKSIZE])
    yield sink.take() + blank * 2


def _head(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _zip(entries: Iterator[Entry], missing: Missing) -> Iterator[bytes]:
    sink, numbers = Sink(), dict[str, int]()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive:  # type: ignore[call-overload]
        for entry in entries:
            kind = stat.S_IFMT(entry.status.st_mode)
            if len(archive.filelist) >= 2 * MOST_ZIPPED:  # they became more meanwhile
                missing.add(entry.name, "a zip cannot have so many files; choose tar")
                continue
            name = _zip_name(entry.name)
            info = _zip_info(name if kind == stat.S_IFDIR else _free(name, archive, numbers), entry.status)
            if info.filename != name:
                missing.add(entry.name, f"it is here as {info.filename}: in a zip it would have the name of another")
            try:
                if kind == stat.S_IFDIR:
                    info.filename += "/"
                    if info.filename not in archive.NameToInfo:
                        archive.writestr(info, b"")
                elif kind == stat.S_IFLNK:
                    archive.writestr(info, os.fsencode(str(Path(entry.path).readlink())))
                elif kind == stat.S_IFREG:
                    with _opened(entry.path, entry.real) as fd:
                        size = _size(fd)
                        with archive.open(info, "w", force_zip64=True) as member:
                            for piece in _content(fd, size, entry.name, missing):
                                member.write(piece)
                                if sink.size >= PIECE:
                                    yield sink.take()
                else:
                    missing.add(entry.name, "it is no file, folder or link")
            except OSError as error:
                missing.add(entry.name, error.strerror or error)
            if sink.size >= PIECE:
                yield sink.take()
        if missing.lines:
            archive.writestr(MISSING, missing.text())
    yield sink.take()


def _zip_info(name: str, status: os.stat_result) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, time.localtime(min(max(status.st_mtime, _ZIP_FIRST), _ZIP_LAST))[:6])
    info.external_attr = (stat.S_IFMT(status.st_mode) | status.st_mode & 0o777) << 16
    info.create_system = 3  # Unix: the attributes are a mode
    return info


def _zip_name(name: str) -> str:
    """Return a name that means the same everywhere: UTF-8, and no separator of another system."""
    return os.fsencode(name).decode("utf-8", "replace").replace("\\", "_")


def _free(name: str, archive: zipfile.ZipFile, numbers: dict[str, int]) -> str:
    """Return the name, or the name with a number where the archive has it; ``numbers`` has the last of each."""
    if name not in archive.NameToInfo:
        return name
    stem, ending = os.path.splitext(name)  # noqa: PTH122  a name of a zip, no path
    while True:
        numbers[name] = numbers.get(name, 1) + 1
        candidate = f"{stem}-{numbers[name]}{ending}"
        if candidate not in archive.NameToInfo:
            return candidate
