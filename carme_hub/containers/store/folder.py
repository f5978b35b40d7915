"""The folder of an image store: what is where, what a name stands for, who works on it. ``__init__`` draws it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from carme_hub.errors import ContainerError, ContainerUnavailable

from .source import DIGEST, NAME

#: Of an image: its description, its recipe, and the listing of its files.
ABOUT, RECIPE, LISTING = "image.json", "image.yaml", "image.files.gz"
OWN_FILES = frozenset({ABOUT, RECIPE, LISTING})
#: How the folder begins in which an image is made.
ADDING = ".adding-"
_BUFFER = 1 << 20


class StoreBusy(ContainerUnavailable):
    """Another process does this work now."""


@dataclass(frozen=True, slots=True)
class Named:
    """What a name stands for. Times are UTC epoch seconds.

    Attributes:
        image: name of the image's folder in ``.digests``. since: when the name began to stand for it.
        source, tag: where it came from; ``update`` asks there again. who: who said so.
        before: what it stood for earlier, the newest first: image, since, until.
    """

    name: str
    image: str
    digest: str
    source: str
    tag: str
    since: float
    who: str = ""
    description: str = ""
    before: tuple[Mapping[str, Any], ...] = field(default=())


class StoreFolder:
    """The folder of a store.

    Args:
        path: it exists, belongs to this user, and nobody else can write it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digests, self.blobs = path / ".digests", path / ".blobs" / "sha256"
        self._names, self.pins, self._locks = path / ".names", path / ".pins", path / ".locks"
        #: Images of users that have no name before an administrator allows one; root alone can read them.
        self.waiting = path / ".waiting"

    def check(self) -> None:
        """Refuse a store that others can write, or that does not belong to this user."""
        try:
            state = self.path.stat()
        except OSError as error:
            raise ContainerUnavailable(f"the store {self.path} cannot be used: {error.strerror}") from error
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
            raise ContainerError(f"the store {self.path} must be a folder that you own and nobody else can write")

    # -- images -------------------------------------------------------------------------------------------------------

    def image(self, digest: str, form: str) -> Path:
        """Return the folder of an image in one form, dir or sqfs; it may not exist yet."""
        if not DIGEST.fullmatch(digest):
            raise ContainerError(f"{digest!r} is not a digest: sha256: and 64 hexadecimal digits")
        return self.digests / (digest.replace(":", "-") + ("" if form == "dir" else f".{form}"))

    def images(self) -> list[Path]:
        """Return the folders of all images that have a digest."""
        return sorted(each for each in _children(self.digests) if (each / ABOUT).is_file())

    def find(self, text: str) -> Path:
        """Return the folder of an image by its name, its digest, or the beginning of one.

        Raises:
            ContainerError: there is none, or several have this beginning.
        """
        if NAME.fullmatch(text) and (self.path / text / ABOUT).is_file():
            return (self.path / text).resolve()
        start = text.replace(":", "-") if text.startswith("sha256") else f"sha256-{text}"
        found = [each for each in self.images() if each.name.startswith(start) and len(text) >= 6]
        if not found:
            raise ContainerError(f"the store {self.path} has no image {text!r}; carme-hub image list shows all")
        if len({each.name.partition(".")[0] for each in found}) > 1:
            raise ContainerError(f"{text!r} is the beginning of several digests; write more of it")
        return found[0]

    # -- names --------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all images, those without a digest included."""
        return sorted(each.name for each in _children(self.path) if (each / ABOUT).is_file())

    def named(self, name: str) -> Named | None:
        """Return what a name stands for; None where it is an image without a digest, or none."""
        try:
            value = json.loads((self._names / f"{name}.json").read_text("utf-8"))
            named = Named(**{**value, "before": tuple(value["before"])})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ContainerUnavailable(f"{self._names}/{name}.json cannot be read: {error}") from error
        link = self.path / name
        if not link.is_symlink():
            return None
        image = link.readlink().name
        if image != named.image:  # the machine died between record and link: the link is what sessions see
            digest = image.partition(".")[0].replace("-", ":")
            named = replace(named, image=image, digest=digest, since=link.lstat().st_mtime)
        return named

    def point(self, named: Named) -> None:
        """Let a name stand for an image, at once for everybody who looks."""
        before = self.named(named.name)
        if before is not None and before.image != named.image:
            self._leave(before.image)
        self._names.mkdir(exist_ok=True)
        write_text(self._names / f"{named.name}.json", json.dumps(asdict(named), indent=1) + "\n")
        link = self.path / f".pointing-{named.name}"
        link.unlink(missing_ok=True)
        link.symlink_to(f".digests/{named.image}")
        link.rename(self.path / named.name)

    def forget(self, name: str) -> None:
        """Remove a name; the image stays until ``collect``."""
        named = self.named(name)
        if named is None:
            raise ContainerError(f"{name!r} is not a name of an image with a digest; carme-hub image list shows all")
        self._leave(named.image)
        (self.path / name).unlink()
        (self._names / f"{name}.json").unlink()

    def _leave(self, image: str) -> None:
        """Record when an image was last named: sessions that began before may use it."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.digests / image / ABOUT)

    # -- blobs --------------------------------------------------------------------------------------------------------

    def blob(self, digest: str) -> Path:
        """Return where a blob is, or would be."""
        return self.blobs / digest.removeprefix("sha256:")

    def take_blob(self, file: Path, digest: str) -> bool:
        """Copy a file to the blobs where its content has this digest; return whether it has.

        The copy is what is checked, so that nobody can change it in between.
        """
        if self.blob(digest).exists():
            return True
        self.blobs.mkdir(parents=True, exist_ok=True)
        new, found = self.blobs / f".taking-{os.getpid()}", hashlib.sha256()
        try:
            source = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        with os.fdopen(source, "rb") as read, new.open("wb") as write:
            if not stat.S_ISREG(os.fstat(read.fileno()).st_mode):
                new.unlink()
                return False
            while block := read.read(_BUFFER):
                found.update(block)
                write.write(block)
        if f"sha256:{found.hexdigest()}" != digest:
            new.unlink()
            return False
        new.chmod(0o644)
        new.rename(self.blob(digest))
        return True

    def take_blobs(self, folder: Path) -> None:
        """Take all files of a folder that are named by their digests and have them: of a copy that ended early."""
        for file in _children(folder):
            if DIGEST.fullmatch(f"sha256:{file.name}"):
                self.take_blob(file, f"sha256:{file.name}")

    def blob_is_good(self, digest: str) -> bool:
        """Return whether a blob is there and is what its name says; one that is not is removed."""
        try:
            with self.blob(digest).open("rb") as file:
                good = hashlib.file_digest(file, "sha256").hexdigest() == digest.removeprefix("sha256:")
        except FileNotFoundError:
            return False
        if not good:
            self.blob(digest).unlink()
        return good

    # -- who works on it ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self, what: str = "store", wait: float = 0.0) -> Iterator[None]:
        """Keep others from the same work meanwhile; the kernel ends it with the process.

        Raises:
            StoreBusy: another process does it, for longer than ``wait`` seconds.
        """
        self._locks.mkdir(mode=0o700, exist_ok=True)
        until = time.monotonic() + wait
        with (self._locks / what).open("a") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise StoreBusy(f"another carme-hub image works on {what} of {self.path}") from None
                    time.sleep(0.1)
            yield


def write_text(file: Path, text: str, mode: int = 0o644) -> None:
    """Write a file as a whole or not at all."""
    new = file.with_name(f".{file.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_text(text, encoding="utf-8")
    new.chmod(mode)
    new.rename(file)


def remove_tree(folder: Path) -> None:
    """Remove a folder of any depth, as far as it can be."""
    argv, environ = ["rm", "-rf", "--one-file-system", "--", str(folder)], {"PATH": "/usr/bin:/bin"}
    subprocess.run(argv, env=environ, capture_output=True, check=False)


def _children(folder: Path) -> list[Path]:
    try:
        return [each for each in folder.iterdir() if not each.name.startswith(".")]
    except FileNotFoundError:
        return []
