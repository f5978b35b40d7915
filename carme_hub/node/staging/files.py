# ruff: noqa: UP006, UP035, PTH102, PTH103, PTH105, PTH108, PTH112, PTH114, PTH115, PTH116, PTH118, PTH119, PTH120, PTH208, PTH211
"""Copies of files between folders: complete, compared by SHA-256, and resumed where they were interrupted.

A file is written under a temporary name beside its final one and only then renamed: under the final name is the old
file or the whole new one, at any time. Its checksum is computed while it is copied. What leaves the node, where it is
removed then, is also flushed, read back from its target and compared; what is brought there is not, as its source
stays. A copy that was interrupted continues where its temporary file agrees with the source. What the journal has
(carme-stage-journal) is done and is skipped. Links are copied as links and never followed; sockets, pipes and devices
are left out.

carme-stage loads this file (``carme-stage-files`` on a node). It runs as the user.
"""

import contextlib
import errno
import hashlib
import os
import queue
import stat
import threading
import time

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Tuple  # noqa: F401  in comments for Python 3.6

#: Bytes that are read at a time; from which size on a checksum is computed beside the copy, in a thread.
BLOCK, LARGE = 1 << 20, 4 << 20
#: The most files that a thread takes at a time.
PIECE_FILES = 32
#: A file that changed within this many seconds is left to the pass after the end, where one is sure to come.
AT_REST = 5.0
#: Errors of one file by which no other file can be copied either.
GENERAL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOTCONN}


class CannotCopy(Exception):
    """One file cannot be copied: ``args`` are its name and the reason."""


def tree(source: str, fail: "Callable[[str, str], None]") -> "Iterator[Tuple[str, os.stat_result]]":
    """Yield names below a folder, relative to it, folders before their content; a file alone yields "".

    ``fail`` takes a folder that cannot be read, and why; the others are gone through.
    """
    found = os.stat(source)
    if not stat.S_ISDIR(found.st_mode):
        yield "", found
        return
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            names = sorted(os.listdir(os.path.join(source, folder) if folder else source))
        except OSError as error:
            fail(os.path.join(source, folder), str(error.strerror))
            continue
        for name in names:
            path = os.path.join(folder, name)
            try:
                found = os.lstat(os.path.join(source, path))
            except FileNotFoundError:
                continue  # it has just been removed
            if stat.S_ISDIR(found.st_mode):
                folders.append(path)
            yield path, found


def size_of(source: str) -> "Tuple[int, int]":
    """Return bytes and files below a path; (0, 0) where there is nothing."""
    total = count = 0
    with contextlib.suppress(OSError):
        for _, found in tree(source, lambda *_: None):
            if stat.S_ISREG(found.st_mode):
                total, count = total + found.st_size, count + 1
    return total, count


def temporary(target: str, tag: str) -> str:
    """Return the name under which a file is written before it has its own; it depends on both names alone."""
    folder, name = os.path.split(target)
    short = hashlib.sha256(os.fsencode(name)).hexdigest()[:12]
    return os.path.join(folder, f".carme-{tag}-{short}.part")


def agreement(source: "Any", partial: "Any", stop: "Callable[[], bool]") -> "Any":
    """Return the hash of what both files have in common from their beginning; both are positioned behind it."""
    digest = hashlib.sha256()
    while not stop():
        at = partial.tell()
        block = partial.read(BLOCK)
        if not block or source.read(len(block)) != block:
            source.seek(at)
            partial.seek(at)
            break
        digest.update(block)
    return digest


def copy_file(
    source: str, target: str, tag: str, told: "Callable[[int], None]", stop: "Callable[[], bool]", durable: bool = True
) -> str:
    """Copy one file, and return its SHA-256; under its own name the target is complete or as it was.

    Args:
        durable: it is on disk, and was read back and compared, before it has its name.

    Raises:
        CannotCopy, OSError: it is not copied; the temporary file stays, and the next copy continues it.
    """
    part = temporary(target, tag)
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(reader, "rb", buffering=0) as data:
        before = os.fstat(reader)
        if not stat.S_ISREG(before.st_mode):
            raise CannotCopy(source, "it is no regular file any more")
        found = copy_small(source, reader, before, part, durable) if before.st_size < BLOCK else ""
        if found:
            told(before.st_size)
            os.replace(part, target)
            return found
        writer = open_part(part)
        with os.fdopen(writer, "r+b", buffering=0) as new:
            digest = agreement(data, new, stop)
            if stop():
                raise CannotCopy(source, "it was interrupted")
            told(new.tell())
            os.ftruncate(writer, new.tell())
            with contextlib.ExitStack() as stack:
                beside = stack.enter_context(one_thread()) if before.st_size >= LARGE else None
                block, hashed = data.read(BLOCK), None  # type: bytes, Any
                while block:
                    if stop():
                        raise CannotCopy(source, "it was interrupted")
                    if hashed:
                        hashed.result()
                    if beside:
                        hashed = beside.submit(digest.update, block)
                    else:
                        digest.update(block)
                    view = memoryview(block)
                    while view:
                        view = view[new.write(view) :]
                    told(len(block))
                    block = data.read(BLOCK)
            if durable:
                os.fsync(writer)
            if not same(os.fstat(reader), before):
                raise CannotCopy(source, "it changed while it was copied")
            if durable and digest_of(new, writer) != digest.hexdigest():
                os.ftruncate(writer, 0)
                raise CannotCopy(source, "what was written is not what was read; the copy is thrown away")
            os.fchmod(writer, stat.S_IMODE(before.st_mode) & 0o777)
            os.utime(writer, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(part, target)
    return str(digest.hexdigest())


def one_thread() -> "Any":
    """Return a pool of one thread; its import takes as long as a hundred small files, so it is for large ones."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(max_workers=1)


def copy_small(source: str, reader: int, before: "os.stat_result", part: str, durable: bool) -> str:
    """Copy a file of one block to its temporary name, and return its SHA-256; "" where an earlier copy has begun it.

    The same as for larger ones in the fewest calls: of a thousand small files they are the time.
    """
    try:
        writer = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return ""
    try:
        data, size = os.read(reader, BLOCK), before.st_size
        if len(data) != size or not same(os.fstat(reader), before):
            raise CannotCopy(source, "it changed while it was copied")
        at = os.write(writer, data)
        while at < size:
            at += os.write(writer, data[at:])
        if durable:
            os.fsync(writer)
            os.posix_fadvise(writer, 0, 0, os.POSIX_FADV_DONTNEED)
            if os.pread(writer, BLOCK, 0) != data:
                os.ftruncate(writer, 0)
                raise CannotCopy(source, "what was written is not what was read; the copy is thrown away")
        os.fchmod(writer, stat.S_IMODE(before.st_mode) & 0o777)
        os.utime(writer, ns=(before.st_atime_ns, before.st_mtime_ns))
    finally:
        os.close(writer)
    return hashlib.sha256(data).hexdigest()


def open_part(part: str) -> int:
    """Open the temporary file to be written or continued: never one that somebody else has put in its place."""
    try:
        found = os.lstat(part)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1:
            writer = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            if os.path.samestat(os.fstat(writer), found):
                os.fchmod(writer, 0o600)
                return writer
            os.close(writer)
        os.unlink(part)
    except FileNotFoundError:
        pass
    return os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def same(one: "os.stat_result", other: "os.stat_result") -> bool:
    """Return whether a file has not been written between two looks."""
    return (one.st_size, one.st_mtime_ns, one.st_ctime_ns) == (other.st_size, other.st_mtime_ns, other.st_ctime_ns)


def digest_of(file: "Any", number: int) -> str:
    """Return the SHA-256 of a file that was just written, from the disk where the system lets go of its cache."""
    digest = hashlib.sha256()
    os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
    file.seek(0)
    for block in iter(lambda: file.read(BLOCK), b""):
        digest.update(block)
    return digest.hexdigest()


def sync_folder(path: str) -> None:
    """Have the names in a folder on disk."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as error:  # a file system that cannot do it for folders has done it already
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise
    finally:
        os.close(folder)


class Copy:
    """One pass over one entry: ``source`` (a file or folder) to ``target``, with several files at a time.

    Args:
        journal: a Journal. tag: a part of temporary names, the same in each pass of one session.
        final: no pass comes after this one: files that changed a moment ago are copied, too.
        late: the job ended long ago: a target that is newer than its source stays, and counts as an error.
        durable: the source is removed afterwards: see ``copy_file``.
        note: takes bytes as they are copied. fail: takes the name of a file and why it is not copied.
    """

    def __init__(
        self,
        source: str,
        target: str,
        journal: "Any",
        tag: str,
        note: "Callable[[int, int], None]",
        fail: "Callable[[str, str], None]",
        stop: "Callable[[], bool]",
        final: bool = True,
        late: bool = False,
        durable: bool = True,
    ) -> None:
        self.source, self.journal, self.tag = source, journal, tag
        self.target = os.path.join(target, os.path.basename(source)) if target.endswith("/") else target
        if os.path.isdir(source):
            self.target = target.rstrip("/") or "/"
        self.note, self.fail, self.stop, self.final, self.late = note, fail, stop, final, late
        self.general, self.durable = "", durable

    def run(self, parallel: int) -> None:
        """Copy all that is there; every file that cannot be copied is told with the reason."""
        folders = {self.target if os.path.isdir(self.source) else os.path.dirname(self.target)}
        some, size, work = [], 0, queue.Queue()  # type: List[Any], int, Any
        threads = [threading.Thread(target=self.copy_from, args=(work,), daemon=True) for _ in range(parallel)]
        for each in threads:
            each.start()
        try:
            for folder in folders:
                os.makedirs(folder, exist_ok=True)
            for name, found in tree(self.source, self.fail):
                if self.stop() or self.general:
                    break
                path = os.path.join(self.target, name) if name else self.target
                if stat.S_ISDIR(found.st_mode):
                    if not os.path.isdir(path):
                        os.mkdir(path, stat.S_IMODE(found.st_mode) & 0o777 | 0o700)
                    folders.add(path)
                else:
                    some.append((name, path, found))
                    size += found.st_size
                    if len(some) >= PIECE_FILES or size >= BLOCK:
                        work.put(some)
                        some, size = [], 0
        except OSError as error:
            self.fail(error.filename or self.source, str(error.strerror))
        for last in (some, *[None] * parallel):
            work.put(last)
        for each in threads:
            each.join()
        for folder in sorted(folders, reverse=True) if self.durable else ():
            try:
                sync_folder(folder)
            except OSError as error:
                self.fail(folder, str(error.strerror))

    def copy_from(self, work: "Any") -> None:
        """Copy the files and links of lists from a queue, until it says None."""
        for some in iter(work.get, None):
            for name, target, found in some:
                self.one(name, target, found)

    def one(self, name: str, target: str, found: "os.stat_result") -> None:
        """Copy one file or link."""
        source = os.path.join(self.source, name) if name else self.source
        try:
            if self.general or self.stop():
                self.fail(source, self.general or "it was interrupted")
            elif stat.S_ISLNK(found.st_mode):
                copy_link(source, target, self.tag)
            elif stat.S_ISREG(found.st_mode):
                self.file(source, target, found)
        except CannotCopy as error:
            if self.final or "changed" not in error.args[1]:
                self.fail(*error.args)
        except OSError as error:
            if error.errno in GENERAL:
                self.general = f"{os.path.dirname(target)}: {error.strerror}"
            self.fail(source, f"{error.strerror} ({target})")
        except Exception as error:  # noqa: BLE001  whatever it is, the file is not at its target
            self.fail(source, f"{type(error).__name__}: {error}")

    def file(self, source: str, target: str, found: "os.stat_result") -> None:
        """Copy one regular file unless it is done, or changes now and is copied later."""
        if self.journal.has(target, found):
            self.note(found.st_size, 1)
            return
        if not self.final and abs(time.time() - found.st_mtime) < AT_REST:
            return
        if self.late and is_newer(target, found, self.journal):
            raise CannotCopy(source, f"{target} is newer; it was not overwritten")
        if os.path.isdir(target):
            raise CannotCopy(source, f"{target} is a folder")
        digest = copy_file(source, target, self.tag, lambda count: self.note(count, 0), self.stop, self.durable)
        self.note(0, 1)
        self.journal.add(target, found, digest)


def is_newer(target: str, found: "os.stat_result", journal: "Any") -> bool:
    """Return whether a target is newer than its source, and not what this session wrote."""
    try:
        there = os.lstat(target)
    except OSError:
        return False
    ours = journal.done.get(target)
    return there.st_mtime_ns > found.st_mtime_ns and (ours is None or ours[4:6] != [there.st_size, there.st_mtime_ns])


def copy_link(source: str, target: str, tag: str) -> None:
    """Make the same link; it may lead nowhere."""
    leads, part = os.readlink(source), temporary(target, tag)
    with contextlib.suppress(OSError):
        if os.readlink(target) == leads:
            return
    if os.path.isdir(target) and not os.path.islink(target):
        raise CannotCopy(source, f"{target} is a folder")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)
    os.symlink(leads, part)
    os.replace(part, target)
