#!/usr/bin/python3 -IS
# ruff: noqa: T201, UP006, UP035, PTH100, PTH101, PTH103, PTH104, PTH105, PTH108, PTH110
# ruff: noqa: PTH112, PTH114, PTH116, PTH118, PTH119, PTH120, PTH123, PTH207, PTH208, PTH211
"""carme-node-images: keeps images on this node's disk, fetched by digest from the site's store. Runs as root.

* ``prolog``: from Slurm's Prolog, by carme-image-prolog where the image is not here. Fetches the image that the job's
  comment names (``carme-image=sha256:HEX``); where that fails, a link to the store takes its place, so that the session
  starts, only slower. It never fails: a failing Prolog drains the node.
* ``sync``: from a timer. Fetches what the images service wants here soon, and says what is here.
* ``pull DIGEST``, ``list``, ``remove DIGEST``: by hand.

A copy appears under its digest at once and whole, after it is proved and on disk; one that breaks off is gone on with
by the next try, and what nobody goes on with for a day is removed. Bounds and places are in
``/etc/carme-hub/node-images.conf`` (``--config``); ``SETTINGS`` has what may be there. The least recently used images
that no process and no job uses are removed where room is needed. carme-image-copy, carme-image-jobs and
carme-image-service lie beside this file.
"""

import configparser
import contextlib
import errno
import fcntl
import glob
import json
import os
import re
import shutil
import socket
import stat
import sys
import time

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Set

CONFIG = "/etc/carme-hub/node-images.conf"
#: Sections, keys and what they are without a file. stores: folders, separated by blanks. room_gib: of all images here;
#: free_percent: of the disk, which stays free. prolog_seconds: the longest that a Prolog waits for a fetch. squeue:
#: Slurm's command, by name or path.
SETTINGS = {
    "images": {
        "stores": "/srv/images",
        "into": "/var/lib/carme-images",
        "room_gib": "200",
        "free_percent": "10",
        "files": "2000000",
        "seconds": "1800",
        "prolog_seconds": "300",
        "squeue": "squeue",
    },
    "service": {"url": "", "token_file": "", "ca_file": ""},
}
NUMBERS = ("room_gib", "free_percent", "files", "seconds", "prolog_seconds")
REFERENCE = re.compile(r"sha256:[0-9a-f]{64}(?:\.sqfs)?")
COMMENT = re.compile(r"(?:^|\s)carme-image=(sha256:[0-9a-f]{64}(?:\.sqfs)?)(?=\s|$)")
#: Seconds for which an image stays that a job has asked for: its container may not have started yet.
YOUNG = 900.0
#: Seconds after which the beginning of a copy is removed; how its name begins.
ABANDONED, BEGUN = 86400.0, ".new-"


def load(name: str) -> "Any":
    """Load a program that lies beside this one."""
    folder = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(folder, name)
    if not os.path.exists(path):  # in the package it is called by its own name
        path = os.path.join(folder, name.rpartition("-")[2] + ".py")
    module = type(sys)(name.replace("-", "_"))
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)  # noqa: S102
    return module


copy = load("carme-image-copy")
NotCopied = copy.NotCopied


def read_settings(path: str, named: bool) -> "Dict[str, Dict[str, str]]":
    """Return the settings of a file over the usual ones; ``named``: the file must be there."""
    found = {section: dict(keys) for section, keys in SETTINGS.items()}
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#",), delimiters=("=",))
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
    except FileNotFoundError:
        if named:
            raise NotCopied(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise NotCopied("{} cannot be read: {}".format(path, " ".join(str(error).split()))) from None
    for section in parser.sections():
        for key, value in parser.items(section):
            if key not in found.get(section, {}):
                raise NotCopied(f"{path}: there is no [{section}] {key}")
            found[section][key] = value.strip()
    for key in NUMBERS:
        if not found["images"][key].isdigit():
            raise NotCopied("{}: [images] {} is a whole number, not {!r}".format(path, key, found["images"][key]))
    return found


class NodeStore:
    """The images on this node: ``INTO/sha256-HEX``, and what is known of each in ``INTO/.state``."""

    def __init__(self, settings: "Dict[str, str]", node: str) -> None:
        self.path, self._settings, self._node = settings["into"], settings, node
        self._stores = settings["stores"].split()
        self._state = os.path.join(self.path, ".state")
        for folder in (self.path, self._state):
            os.makedirs(folder, mode=0o755, exist_ok=True)
            state = os.lstat(folder)
            if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
                raise NotCopied(f"{folder} must be a folder that you own and nobody else can write")

    # -- what is here -------------------------------------------------------------------------------------------------

    def place(self, reference: str) -> str:
        """Return where an image is, or would be."""
        if not REFERENCE.fullmatch(reference):
            raise NotCopied(f"{reference!a} is not a digest: sha256: and 64 hexadecimal digits")
        return os.path.join(self.path, reference.replace(":", "-"))

    def has(self, reference: str) -> bool:
        """Return whether the image itself is here, and not a link to the store."""
        path = self.place(reference)
        return os.path.isdir(path) and not os.path.islink(path)

    def all(self) -> "List[Dict[str, Any]]":
        """Return what is here: reference, digest, and what is known of the fetch."""
        names = sorted(each for each in os.listdir(self.path) if REFERENCE.fullmatch(each.replace("-", ":", 1)))
        found = []
        for name in names:
            reference = name.replace("-", ":", 1)
            if self.has(reference):
                digest = reference.partition(".")[0]
                found.append({"reference": reference, "digest": digest, **self.known(reference)})
        return found

    def known(self, reference: str) -> "Dict[str, Any]":
        """Return when an image was fetched and last used, in how many seconds, and its bytes; 0 = not known."""
        try:
            with open(self._note(reference), encoding="utf-8") as file:
                said = json.load(file)
            found = {key: float(said[key]) for key in ("at", "seconds", "size", "used")}
        except (OSError, ValueError, KeyError, TypeError):
            found = {"at": 0.0, "seconds": 0.0, "size": 0.0, "used": 0.0}
        with contextlib.suppress(OSError):
            found["used"] = max(found["used"], os.stat(self._mark(reference)).st_mtime)
        return found

    def remember(self, reference: str, **values: float) -> None:
        """Store what is known of an image."""
        text = json.dumps({**self.known(reference), **values})
        with open(self._note(reference) + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(self._note(reference) + ".new", self._note(reference))

    def _mark(self, reference: str) -> str:
        """Return the file that carme-image-prolog touches where the image is here."""
        return os.path.join(self._state, os.path.basename(self.place(reference)) + ".used")

    def _note(self, reference: str) -> str:
        return os.path.join(self._state, os.path.basename(self.place(reference)) + ".json")

    # -- fetching -----------------------------------------------------------------------------------------------------

    def pull(self, reference: str, seconds: float) -> bool:
        """Fetch an image unless it is here; return whether it was fetched.

        Raises:
            NotCopied: it is not in the store, not what its digest says, too large, or took too long.
        """
        path = self.place(reference)
        until = time.monotonic() + seconds
        with self.locked(os.path.basename(path), until):
            self.remember(reference, used=time.time())
            if self.has(reference):
                return False
            source, about = self.find(reference)
            new = os.path.join(self.path, BEGUN + os.path.basename(path))
            begun, goes_on, began = os.path.isdir(new), False, time.time()
            try:
                try:
                    size = self._copy(reference, source, new, about, until)
                except copy.NotProved:
                    if not begun:
                        raise
                    shutil.rmtree(new)  # what an earlier copy has left is not what it wrote
                    begun, size = False, self._copy(reference, source, new, about, until)
                os.chmod(new, 0o755)  # noqa: S103  everybody reads images
                copy.to_disk(new)
                copy.publish(new, path)
            except copy.Interrupted:
                goes_on = True
                raise
            except OSError as error:
                goes_on = error.errno not in (errno.ENOSPC, errno.EDQUOT)
                raise NotCopied(f"{source}: {error.strerror or error}") from error
            finally:
                if not goes_on:
                    shutil.rmtree(new, ignore_errors=True)
            now = time.time()
            seconds = 0.0 if begun else round(now - began, 3)  # it is not known how long all of it takes
            self.remember(reference, at=now, seconds=seconds, size=size, used=now)
            return True

    def _copy(self, reference: str, source: str, new: str, about: "Any", until: float) -> int:
        """Copy an image into a folder, which an earlier copy may have begun, and return its bytes."""
        os.makedirs(new, 0o700, exist_ok=True)
        self.drop_begun(os.path.basename(new), ABANDONED)
        room, left = self.room(int(about.get("size_bytes") or 0), reference, new), until - time.monotonic()
        bounds = copy.Bounds(room, int(self._settings["files"]), max(0.0, left))
        if about.get("format") == "sqfs":
            name, digest = str(about.get("file", "")), str(about.get("squashfs", ""))
            return int(copy.copy_image_file(source, new, name, digest, bounds))
        return int(copy.copy_folder(source, new, str(about.get("listing", "")), bounds))

    def drop_begun(self, but: str, age: float) -> None:
        """Remove the beginnings of copies that nobody works on and that are so old; not the one of this name."""
        for name in os.listdir(self.path):
            path = os.path.join(self.path, name)
            if name.startswith(BEGUN) and name != but and os.lstat(path).st_mtime <= time.time() - age:
                with contextlib.suppress(NotCopied), self.locked(name[len(BEGUN) :], 0.0):
                    shutil.rmtree(path, ignore_errors=True)

    def find(self, reference: str) -> "Any":
        """Return the folder of an image in the stores, and its image.json."""
        digest, _, form = reference.partition(".")
        name = reference.replace(":", "-")
        for store in self._stores:
            folders = [os.path.join(store, ".digests", name), *sorted(glob.glob(os.path.join(store, "[a-z0-9]*")))]
            for folder in folders:
                about = read_about(os.path.join(folder, "image.json"))
                if about.get("digest") == digest and (about.get("format") == "sqfs") == (form == "sqfs"):
                    return os.path.realpath(folder), about
        stores = ", ".join(self._stores)
        raise NotCopied(f"{reference} is in none of the stores {stores}, as far as this node can see")

    def link(self, reference: str) -> None:
        """Let a link to the store stand in for an image that cannot be fetched."""
        source, _ = self.find(reference)
        path = self.place(reference)
        if not os.path.lexists(path):
            os.symlink(source, path + ".link")
            os.rename(path + ".link", path)

    # -- room ---------------------------------------------------------------------------------------------------------

    def room(self, size: int, reference: str, new: str) -> int:
        """Return the bytes that an image may take, after others were removed that are not in use.

        Args:
            new: the folder with what is here of it.
        """
        here = copy.size_of(new)
        wanted = max(size + size // 10 - here, 1 << 20)
        if self.left() < wanted:
            self.drop_begun(os.path.basename(new), 0.0)
        used = self.in_use() if self.left() < wanted else set()
        old = [each for each in self.all() if each["reference"] != reference and each["used"] < time.time() - YOUNG]
        old = [each for each in old if os.path.basename(self.place(each["reference"])) not in used]
        jobs = set()  # type: Set[str] | None
        if old and self.left() < wanted:
            jobs = load("carme-image-jobs").images_of_jobs(self._node, self._settings["squeue"])
        for each in sorted(old, key=lambda each: each["used"]):
            if jobs is None or self.left() >= wanted:
                break
            if each["reference"] not in jobs:
                self.remove(each["reference"])
        left = self.left()
        if size and left < wanted:
            why = "" if jobs is not None else ": squeue does not say which images jobs use here, so none is removed"
            room = max(0, left) >> 20
            raise NotCopied(f"it has {size >> 20} MiB, and there is room for {room} MiB on this node{why}")
        return left + here

    def left(self) -> int:
        """Return the bytes that may still be taken, by the settings and by the disk."""
        disk = os.statvfs(self.path)
        free = disk.f_frsize * (disk.f_bavail - disk.f_blocks * int(self._settings["free_percent"]) // 100)
        taken = sum(int(each["size"]) for each in self.all())
        return min(free, (int(self._settings["room_gib"]) << 30) - taken)

    def in_use(self) -> "Set[str]":
        """Return the names of images that a container on this node uses."""
        found = set()  # type: Set[str]
        for file in glob.glob("/proc/[0-9]*/mountinfo"):
            with contextlib.suppress(OSError), open(file, encoding="utf-8", errors="replace") as opened:
                found.update(re.findall(r"sha256-[0-9a-f]{64}(?:\.sqfs)?", opened.read()))
        return found

    def remove(self, reference: str) -> None:
        """Remove an image: first its name, so that nobody begins to use it."""
        path = self.place(reference)
        old = os.path.join(self.path, ".old-" + os.path.basename(path))
        shutil.rmtree(old, ignore_errors=True)
        if os.path.islink(path):
            os.unlink(path)
        elif os.path.isdir(path):
            os.rename(path, old)
            shutil.rmtree(old, ignore_errors=True)
        for file in (self._note(reference), self._mark(reference)):
            with contextlib.suppress(OSError):
                os.unlink(file)

    @contextlib.contextmanager
    def locked(self, name: str, until: float) -> "Iterator[None]":
        """Keep other processes from the same image; the kernel ends it with the process."""
        with open(os.path.join(self._state, name + ".lock"), "w", encoding="utf-8") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except (BlockingIOError, InterruptedError):
                    if time.monotonic() > until:
                        raise NotCopied("another process has been fetching it for too long") from None
                    time.sleep(0.1)
            yield


def read_about(path: str) -> "Dict[str, Any]":
    """Return an image's description; {} where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            said = json.load(file)
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


# -- what is called ---------------------------------------------------------------------------------------------------


def prolog(store: NodeStore, seconds: float) -> int:
    """Fetch the image of the job that begins here; where that fails, let a link stand in for it."""
    found = COMMENT.search(os.environ.get("SLURM_JOB_COMMENT", ""))
    if found is None:
        return 0
    try:
        store.pull(found.group(1), seconds)
    except (NotCopied, OSError) as error:
        print(f"carme-node-images: {found.group(1)} is not fetched: {error}", file=sys.stderr)
        with contextlib.suppress(NotCopied, OSError):
            store.link(found.group(1))
    return 0


def sync(store: NodeStore, settings: "Dict[str, Dict[str, str]]", node: str) -> int:
    """Fetch what is wanted here, and report."""
    service = load("carme-image-service").Service(settings["service"], node)
    problems = {}  # type: Dict[str, str]
    for reference in service.wanted():
        try:
            if REFERENCE.fullmatch(reference):
                store.pull(reference, float(settings["images"]["seconds"]))
        except NotCopied as error:
            problems[reference.partition(".")[0]] = str(error)
            print(f"carme-node-images: {reference} is not fetched: {error}", file=sys.stderr)
    service.report(store.all(), problems, max(0, store.left()))
    return 1 if problems else 0


def main(words: "List[str]") -> int:
    """Do what the command line says."""
    config = node = ""
    verbs = []  # type: List[str]
    rest = iter(words)
    for word in rest:
        if word in ("--config", "--node"):
            value = next(rest, "")
            config, node = (value, node) if word == "--config" else (config, value)
        else:
            verbs.append(word)
    node = node or os.environ.get("SLURMD_NODENAME", "") or socket.gethostname().partition(".")[0]
    os.umask(0o022)
    verb = verbs[0] if verbs else ""
    try:
        settings = read_settings(config or CONFIG, bool(config))
        store, seconds = NodeStore(settings["images"], node), float(settings["images"]["seconds"])
        if verb == "prolog" and len(verbs) == 1:
            return prolog(store, float(settings["images"]["prolog_seconds"]))
        if verb == "sync" and len(verbs) == 1:
            return sync(store, settings, node)
        if verb == "pull" and len(verbs) == 2:
            print("fetched" if store.pull(verbs[1], seconds) else "it is here")
        elif verb == "remove" and len(verbs) == 2:
            store.remove(verbs[1])
        elif verb == "list" and len(verbs) == 1:
            print(json.dumps(store.all(), indent=1))
        else:
            print("carme-node-images prolog | sync | pull DIGEST | list | remove DIGEST  [--config FILE] [--node NAME]")
            return 2
    except (NotCopied, OSError) as error:
        print(f"carme-node-images: {error}", file=sys.stderr)
        return 0 if verb == "prolog" else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
