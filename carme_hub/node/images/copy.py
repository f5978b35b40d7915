# ruff: noqa: UP006, UP035
# ruff: noqa: PTH101, PTH102, PTH115, PTH118, PTH119, PTH208, PTH211
"""carme-image-copy: copies an image to this node, and proves that the copy is the image (for ``carme-node-images``).

A folder's copy is proved by its listing, as the store has written it (``image.files.gz``): each folder, link and file
with mode, size and SHA-256, of what was read while it was copied. An image that is one file is proved by that file's
SHA-256. Files are copied by several threads: SHA-256 and disks run without the interpreter's lock.
"""

import hashlib
import json
import os
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
#: Files and bytes that one piece of a thread's work has at most.
PIECE_FILES, PIECE_BYTES = 64, 8 << 20


class NotCopied(Exception):
    """The image is not copied; the message says why, and what to do."""


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
            raise NotCopied(f"it took longer than {self.seconds:.0f} s; the setting seconds allows so much")


def copy_folder(source: str, target: str, listing: str, bounds: Bounds) -> int:
    """Copy an image that is a folder, and return its bytes.

    Args:
        target: an empty folder. listing: digest of the image's listing, ``sha256:HEX``.

    Raises:
        NotCopied: it breaks a bound, has what no image has, or is not what the listing says. OSError: as said.
    """
    found, files, folders, size = [], [], [], 0  # type: List[Entry], List[Entry], List[Tuple[str, os.stat_result]], int
    for entry, state in walk(source):
        path, kind = entry[0], entry[1]
        bounds.take(state.st_size if kind == "f" else 0)
        new = os.path.join(target, path)
        if kind == "d":
            os.mkdir(new, 0o700)
            folders.append((new, state))
        elif kind == "l":
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
    """Copy one file with its times, and return its bytes and SHA-256."""
    sum_of, size, view = hashlib.sha256(), 0, memoryview(buffer)
    read = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
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
        raise NotCopied(f"{what} are {found}, and must be {wanted or 'of a known digest'}: run carme-hub image check")
