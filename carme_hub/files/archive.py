"""Archives of files and folders, made piece by piece while somebody downloads them: tar (PAX) or uncompressed zip.

Nothing is kept in memory but one piece, and for a zip its directory (some hundred bytes a file). Links are packed as
links and never followed; sockets, pipes and devices are left out; names lead nowhere outside of the folder in which
they are unpacked. A file that cannot be read, or becomes shorter meanwhile, does not end the archive: the file
``NOT-IN-THIS-ARCHIVE.txt`` at its end says which and why (in a tar, zeros stand for what is missing of a file).
"""

from __future__ import annotations

import os
import stat
import tarfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Bytes of a piece.
PIECE = 1 << 20
#: The file that says what is missing, and the most lines of it.
MISSING, MOST_MISSING = "NOT-IN-THIS-ARCHIVE.txt", 10_000
FORMATS = {"tar": "application/x-tar", "zip": "application/zip"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or link to pack; ``name`` is relative, with slashes, and not empty."""

    path: str
    name: str
    status: os.stat_result


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


def _entries(folder: Path, names: Sequence[str], missing: Missing) -> Iterator[Entry]:
    """Yield everything below some names, each folder before what is in it."""
    for top in names:
        waiting = [(os.path.join(folder, top), top)]  # noqa: PTH118  names may be no text
        while waiting:
            path, name = waiting.pop()
            try:
                status = os.lstat(path)
                yield Entry(path, name, status)
                if stat.S_ISDIR(status.st_mode):
                    with os.scandir(path) as found:
                        for each in found:
                            if each.is_dir(follow_symlinks=False):
                                waiting.append((each.path, f"{name}/{each.name}"))
                            else:
                                yield Entry(each.path, f"{name}/{each.name}", each.stat(follow_symlinks=False))
            except OSError as error:
                missing.add(name, error.strerror or error)


def _opened(entry: Entry) -> tuple[int, os.stat_result]:
    """Open a file; raise OSError where it is a file no more. A pipe in its place would never answer."""
    fd = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise OSError(0, "it is no file any more")
    return fd, status


def _content(fd: int, size: int, name: str, missing: Missing) -> Iterator[bytes]:
    """Yield so many bytes of a file and close it; where it has fewer, or cannot be read on, note that."""
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
    finally:
        os.close(fd)


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
                fd, status = _opened(entry)
                info.size = status.st_size
                sink.write(_head(info))
                written = 0
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
    sink = Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive:  # type: ignore[call-overload]
        for entry in entries:
            kind = stat.S_IFMT(entry.status.st_mode)
            info = _zip_info(_zip_name(entry.name), entry.status)
            try:
                if kind == stat.S_IFDIR:
                    info.filename += "/"
                    archive.writestr(info, b"")
                elif kind == stat.S_IFLNK:
                    archive.writestr(info, os.fsencode(str(Path(entry.path).readlink())))
                elif kind == stat.S_IFREG:
                    fd, status = _opened(entry)
                    with archive.open(info, "w", force_zip64=True) as member:
                        for piece in _content(fd, status.st_size, entry.name, missing):
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
    date = time.localtime(max(status.st_mtime, 315_619_200))[:6]  # the format begins in 1980
    info = zipfile.ZipInfo(name, (min(date[0], 2107), *date[1:]))
    info.external_attr = (stat.S_IFMT(status.st_mode) | status.st_mode & 0o777) << 16
    info.create_system = 3  # Unix: the attributes are a mode
    return info


def _zip_name(name: str) -> str:
    """Return a name that means the same everywhere: UTF-8, and no separator of another system."""
    return os.fsencode(name).decode("utf-8", "replace").replace("\\", "_")
