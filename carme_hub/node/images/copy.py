# ruff: noqa: UP006, UP035
# ruff: noqa: PTH101, PTH102, PTH104, PTH108, PTH112, PTH114, PTH115, PTH118, PTH119, PTH208, PTH211
"""carme-image-copy: copies an image to this node, and proves that the copy is the image (for ``carme-node-images``).

A folder's copy is proved by its listing, as the store has written it (``image.files.gz``): each folder, link and file
with mode, size and SHA-256, of what was read while it was copied. An image that is one file is proved by that file's
SHA-256. Files are copied by several threads: SHA-256 and disks run without the interpreter's lock.

A copy that broke off is gone on with: what is here of a file is read back, and only the rest is read from the store. So
the proof is of what is on this node's disk, whoever wrote it when; where it fails, nothing of before is used.
"""

import ctypes
import hashlib
import json
import os
import shutil
import stat
import time
from concurrent.futures import ThreadPoolExecutor

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Iterator, List, Tuple

    Entry = List[Any]

#: Of an image's folder: what is copied and is not in its listing.
OWN_FILES = frozenset(("image.json", "image.yaml", "image.files.gz"))
BUFFER, THREADS = 1 << 20, 4
RENAME_EXCHANGE, AT_FDCWD = 2, -100
#: Files and bytes that one piece of a thread's work has at most.
PIECE_FILES, PIECE_BYTES = 64, 8 << 20


class NotCopied(Exception):
    """The image is not copied; the message says why, and what to do."""


class Interrupted(NotCopied):
    """The copy took too long; it can be gone on with."""


class NotProved(NotCopied):
    """What was copied is not the image."""


class Bounds:
    """What one copy may take: bytes, files, and the moment (monotonic) by which it has to end."""

    def __init__(self, size: int, files: int, seconds: float) -> None:
        self.size, self.files, self.seconds = size, files, seconds
        self.until = time.monotonic() + seconds
        self._taken = self._count = 0

    def take(self, size: int) -> None:
        """Count one entry of so many bytes."""
        self._taken, self._count = self._taken + size, self._count + 1
        if self._count > self.files:
            raise NotCopied(f"it has more than {self.files} files; the setting files allows so many")
        if self._taken > self.size:
            raise NotCopied(f"it has more than {self.size >> 20} MiB, for which there is no room")

    def check_time(self) -> None:
        """Raise ``NotCopied`` once the time is over."""
        if time.monotonic() > self.until:
            raise Interrupted(f"it took longer than {self.seconds:.0f} s; the setting seconds allows so much")


def copy_folder(source: str, target: str, listing: str, bounds: Bounds) -> int:
    """Copy an image that is a folder, and return its bytes.

    Args:
        target: an empty folder, or with what an earlier copy has left. listing: digest of the image's listing,
            ``sha256:HEX``.

    Raises:
        NotCopied: it breaks a bound, has what no image has, or is not what the listing says. OSError: as said.
    """
    keep_common(source, target)
    found, files, folders, size = [], [], [], 0  # type: List[Entry], List[Entry], List[Tuple[str, os.stat_result]], int
    for entry, state in walk(source):
        path, kind = entry[0], entry[1]
        bounds.take(state.st_size if kind == "f" else 0)
        new = os.path.join(target, path)
        if kind == "d":
            if not os.path.isdir(new):
                os.mkdir(new, 0o700)
            folders.append((new, state))
        elif kind == "l":
            if not os.path.islink(new):
                os.symlink(entry[2], new)
        elif kind == "f" and not state.st_mode & 0o6000:
            files.append(entry)
            size += state.st_size
        else:
            raise NotCopied(f"{path!a} is neither a folder, a file nor a link, or is setuid; an image has none")
        if path not in OWN_FILES:
            found.append(entry)
    copy_files(source, target, files, bounds)
    for new, state in reversed(folders):
        os.chmod(new, stat.S_IMODE(state.st_mode))
        os.utime(new, ns=(state.st_atime_ns, state.st_mtime_ns))
    sum_of = hashlib.sha256()
    for entry in found:
        sum_of.update(json.dumps(entry, separators=(",", ":")).encode("ascii") + b"\n")
    prove("its files", "sha256:" + sum_of.hexdigest(), listing)
    return size


def keep_common(source: str, target: str) -> None:
    """Keep of an earlier copy what can be gone on with, and remove the rest: its own files, and what was never here."""
    ahead = [""]
    while ahead:
        folder = ahead.pop()
        os.chmod(os.path.join(target, folder), 0o700)
        for name in os.listdir(os.path.join(target, folder)):
            path = os.path.join(folder, name)
            there, state = os.path.join(target, path), os.lstat(os.path.join(target, path))
            if path not in OWN_FILES and is_begun(os.path.join(source, path), there, state):
                if stat.S_ISDIR(state.st_mode):
                    ahead.append(path)
                elif stat.S_ISREG(state.st_mode):
                    os.chmod(there, 0o600)
            elif stat.S_ISDIR(state.st_mode):
                shutil.rmtree(there)
            else:
                os.unlink(there)


def is_begun(source: str, there: str, state: "os.stat_result") -> bool:
    """Return whether what is there may be the beginning of a copy of ``source``."""
    try:
        wanted = os.lstat(source)
    except FileNotFoundError:
        return False
    if stat.S_IFMT(wanted.st_mode) != stat.S_IFMT(state.st_mode):
        return False
    if stat.S_ISLNK(state.st_mode):
        return os.readlink(source) == os.readlink(there)
    return stat.S_ISDIR(state.st_mode) or (state.st_size <= wanted.st_size and state.st_nlink == 1)


def walk(source: str) -> "Iterator[Tuple[Entry, os.stat_result]]":
    """Yield the entries of an image in the order of its listing, with their states; nothing is followed."""
    ahead = [""]
    while ahead:
        folder = ahead.pop()
        below = []
        for name in sorted(os.listdir(os.path.join(source, folder))):
            path = f"{folder}/{name}" if folder else name
            state = os.lstat(os.path.join(source, path))
            mode = stat.S_IMODE(state.st_mode)
            if stat.S_ISDIR(state.st_mode):
                yield [path, "d", mode], state
                below.append(path)
            elif stat.S_ISLNK(state.st_mode):
                yield [path, "l", os.readlink(os.path.join(source, path))], state
            elif stat.S_ISREG(state.st_mode):
                yield [path, "f", mode, state.st_size], state
            else:
                yield [path, "other", mode], state
        ahead += reversed(below)


def copy_files(source: str, target: str, files: "List[Entry]", bounds: Bounds) -> None:
    """Copy files, and add each one's SHA-256 to its entry."""

    def work(some: "List[Entry]") -> None:
        buffer = bytearray(BUFFER)
        for entry in some:
            bounds.check_time()
            path = entry[0]
            size, sum_of = copy_file(os.path.join(source, path), os.path.join(target, path), entry[2], buffer, bounds)
            if size != entry[3]:
                raise NotCopied(f"{path!a} has changed while it was copied")
            entry.append(sum_of)

    with ThreadPoolExecutor(THREADS) as threads:
        for done in [threads.submit(work, some) for some in pieces(files)]:
            try:
                done.result()
            except BaseException:
                bounds.until = 0.0  # the others end soon
                raise


def pieces(files: "List[Entry]") -> "Iterator[List[Entry]]":
    """Yield the files in pieces of work."""
    some, size = [], 0  # type: List[Entry], int
    for entry in files:
        if some and (len(some) >= PIECE_FILES or size + entry[3] > PIECE_BYTES):
            yield some
            some, size = [], 0
        some.append(entry)
        size += entry[3]
    if some:
        yield some


def copy_file(source: str, target: str, mode: int, buffer: bytearray, bounds: Bounds) -> "Tuple[int, str]":
    """Copy one file with its times, or what is missing of it, and return its bytes and SHA-256."""
    sum_of, size, view = hashlib.sha256(), 0, memoryview(buffer)
    read = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        write = os.open(target, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            while size < os.fstat(write).st_size:  # an earlier copy has written so much
                got = os.readv(write, [buffer])
                sum_of.update(view[:got])
                size += got
                bounds.check_time()
            if size:
                os.lseek(read, size, os.SEEK_SET)
            while True:
                got = os.readv(read, [buffer])
                if not got:
                    break
                sum_of.update(view[:got])
                done = 0
                while done < got:
                    done += os.write(write, view[done:got])
                size += got
                bounds.check_time()
            os.fchmod(write, mode)
            state = os.fstat(read)
            os.utime(write, ns=(state.st_atime_ns, state.st_mtime_ns))  # Python compares it with that in a .pyc
        finally:
            os.close(write)
    finally:
        os.close(read)
    return size, sum_of.hexdigest()


def copy_image_file(source: str, target: str, name: str, digest: str, bounds: Bounds) -> int:
    """Copy an image that is one file, with what is beside it, and return its bytes; errors as for ``copy_folder``.

    Args:
        name: of the file in the image's folder. digest: of its content, ``sha256:HEX``.
    """
    buffer, size = bytearray(BUFFER), 0
    if os.path.basename(name) != name or name.startswith("."):
        raise NotCopied(f"its image.json names the file {name!a}, which is not a file of its folder")
    keep_common(source, target)
    for each in sorted(OWN_FILES | {name}):
        path = os.path.join(source, each)
        if not os.path.lexists(path):
            continue
        bounds.take(os.lstat(path).st_size)
        copied, sum_of = copy_file(path, os.path.join(target, each), 0o644, buffer, bounds)
        if each == name:
            prove(name, "sha256:" + sum_of, digest)
            size = copied
    return size


def prove(what: str, found: str, wanted: str) -> None:
    """Raise ``NotCopied`` unless two digests are the same."""
    if found != wanted:
        raise NotProved(f"{what} are {found}, and must be {wanted or 'of a known digest'}: run carme-hub image check")


def size_of(folder: str) -> int:
    """Return the bytes of the files in a folder."""
    paths = (os.path.join(where, name) for where, _, names in os.walk(folder) for name in names)
    return sum(os.lstat(path).st_size for path in paths)


def to_disk(path: str) -> None:
    """Wait until what was written is on disk: a name must not appear before its content, whatever happens then."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(folder):
            os.sync()
    finally:
        os.close(folder)


def publish(new: str, path: str) -> None:
    """Give a folder its name in one step, also where a link has it."""
    if os.path.lexists(path):
        old, target = os.fsencode(new), os.fsencode(path)
        if not ctypes.CDLL(None, use_errno=True).renameat2(AT_FDCWD, old, AT_FDCWD, target, RENAME_EXCHANGE):
            os.unlink(new)
            return
        os.unlink(path)
    os.rename(new, path)
