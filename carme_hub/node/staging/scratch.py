# ruff: noqa: UP006, UP035, PTH101, PTH102, PTH103, PTH106, PTH108, PTH110, PTH112, PTH116, PTH118, PTH120, PTH123, PTH211
"""Scratch folders of sessions: made, kept within their size, and removed. carme-stage-out loads this file, as root.

It lies beside carme-stage-out (``carme-stage-scratch`` on a node). Below ROOT/SESSION, which is root's, ``data``,
``stage`` and ``objects`` are the user's, who may exchange any name in them for a link at any time. So root walks
through them with ``rm``, which follows none, and has what the user mounted there unmounted by the user: a link in such
a path leads to nothing that the user could not have unmounted anyway. The standard library alone, Python 3.6 or later.
"""

import os
import re
import shutil
import stat
import subprocess

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, List, Tuple

ROOT = os.geteuid() == 0  # else it is a trial, and everything belongs to whoever runs it
ESCAPED = re.compile(rb"\\([0-7]{3})")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
#: Of programs that limits of size need.
PACKAGES = {"mkfs.ext4": "e2fsprogs", "btrfs": "btrfs-progs", "umount": "mount", "rm": "coreutils"}
#: What unmounts as a user, by its names in versions 3 and 2 of FUSE.
FUSERMOUNT = ("fusermount3", "fusermount")


class NoScratch(Exception):
    """It is not done; the message says why."""


def command(*argv: str) -> str:
    """Run a program of the system as root, and return what it printed."""
    own = {"PATH": PATH, "LANG": "C"}
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, check=False, env=own)
    except FileNotFoundError as error:
        package = PACKAGES.get(argv[0], argv[0])
        raise NoScratch(f"{argv[0]} is not on this node; the package {package} has it") from error
    if done.returncode:
        raise NoScratch(f"{argv[0]}: {done.stderr.decode(errors='replace').strip()[:300] or done.returncode}")
    return done.stdout.decode(errors="replace")


def sync(folder: str) -> None:
    """Have the names in a folder on disk."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(number)
    os.close(number)


def remove_file(path: str) -> None:
    """Remove a file if it is there."""
    if os.path.lexists(path):
        os.unlink(path)


def make_folder(path: str, mode: int) -> None:
    """Make a folder of the node, and check it."""
    os.makedirs(path, mode=mode, exist_ok=True)
    check_folder(path)


def check_folder(path: str) -> None:
    """Raise NoScratch for a folder in which others than root can write, or that they can put another in place of."""
    own, folders = (0, os.geteuid()), {path}
    for each in (path, os.path.realpath(path)):
        while os.path.dirname(each) != each:
            each = os.path.dirname(each)
            folders.add(each)
    for each in sorted(folders, reverse=True):
        found = os.lstat(each) if each == path else os.stat(each)
        others = found.st_mode & 0o022 and (each == path or not found.st_mode & stat.S_ISVTX)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in own or others:
            raise NoScratch(f"{each} must be a folder of root's, which root only may write")


def create(record: "Any", uid: int, gid: int, gib: int) -> None:
    """Make the folder, of the size that was asked for where the file system can keep it."""
    config, room = record.config, shutil.disk_usage(record.config["root"]).free >> 30
    if gib > config["max_gib"]:
        raise NoScratch(f"{gib} GiB of scratch are asked for; this node gives {config['max_gib']} at most")
    if gib > room:
        raise NoScratch(f"{gib} GiB of scratch are asked for, and this node has {room} left")
    os.mkdir(record.top, 0o755)
    if config["limit"] == "btrfs":
        command("btrfs", "subvolume", "create", record.data)
        command("btrfs", "qgroup", "limit", f"{gib}G", record.data)
    else:
        os.mkdir(record.data, 0o700)
    if config["limit"] == "image":
        image = os.open(record.image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        os.posix_fallocate(image, 0, gib << 30)  # the room is there, whatever others write
        os.close(image)
        command("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", record.image)
        mount_image(record)
        os.rmdir(os.path.join(record.data, "lost+found"))
    for path in (record.stage, record.objects):
        os.mkdir(path, 0o700)
    for path in (record.data, record.stage, record.objects):
        os.chmod(path, 0o700)
        if ROOT:
            os.chown(path, uid, gid, follow_symlinks=False)
    os.symlink(record.program, os.path.join(record.top, "program"))
    sync(record.top)
    sync(config["root"])


def is_whole(record: "Any") -> bool:
    """Return whether its Prolog got to the end; else nobody has used the folder."""
    return os.path.lexists(os.path.join(record.top, "program"))


def mount_image(record: "Any") -> None:
    """Mount the file system of a session where it has one, and is not mounted: after a start of the machine."""
    there = [path for path, _ in mounts_below(record.top)]
    if record.value.get("limit") == "image" and os.path.exists(record.image) and record.data not in there:
        command("mount", "-o", "loop,nosuid,nodev", record.image, record.data)


def mounts_below(top: str) -> "List[Tuple[str, str]]":
    """Return what is mounted below a folder, with the kind of its file system; the last one first."""
    found = []
    with open("/proc/self/mounts", "rb") as file:
        for line in file:
            path, kind = line.split(b" ")[1:3]
            path = ESCAPED.sub(lambda each: bytes([int(each.group(1), 8)]), path)
            found.append((os.fsdecode(path), os.fsdecode(kind)))
    return [(path, kind) for path, kind in found[::-1] if path.startswith(top + "/")]


def unmount_users(record: "Any", as_user: "Any") -> None:
    """Have the user unmount what the user mounted below the folder: a rclone that was killed leaves such, too.

    Args:
        as_user: takes a record and the words of a command, and runs it as the user.
    """
    program = next(filter(None, map(shutil.which, FUSERMOUNT)), FUSERMOUNT[0])
    for path, kind in mounts_below(record.top):
        if kind.startswith("fuse"):
            as_user(record, [program, "-u", "-z", path])
    left = [path for path, kind in mounts_below(record.top) if kind.startswith("fuse")]
    if left:
        raise NoScratch(f"{left[0]} of user {record.value['user']} cannot be unmounted")


def remove(record: "Any", as_user: "Any") -> None:
    """Remove a session's folder. Links in it are removed and never followed."""
    if os.path.lexists(record.top):
        unmount_users(record, as_user)
    if any(path == record.data for path, _ in mounts_below(record.top)):
        command("umount", record.data)
    if record.value.get("limit") == "btrfs" and os.path.isdir(record.data):
        for number in subvolumes_in(record.data):
            command("btrfs", "subvolume", "delete", "--subvolid", number, subvolume_of(record.config["root"]))
        command("btrfs", "subvolume", "delete", "--commit-after", record.data)
    command("rm", "-rf", "--one-file-system", "--", record.top)  # however deep it is
    remove_file(record.image)
    if os.path.isdir(record.config["root"]):
        sync(record.config["root"])


def subvolume_of(folder: str) -> str:
    """Return the root of the subvolume that a folder is in; it has always the same number."""
    while os.stat(folder).st_ino != 256 and folder != "/":
        folder = os.path.dirname(folder)
    return folder


def subvolumes_in(folder: str) -> "List[str]":
    """Return the numbers of the subvolumes that a user has made in the one of a session, the deepest first."""
    lines = command("btrfs", "subvolume", "list", "-p", folder).splitlines()  # ID 257 gen 10 parent 5 top level 5 …
    parents = [(words[1], words[words.index("parent") + 1]) for words in map(str.split, lines)]
    inside = [command("btrfs", "inspect-internal", "rootid", folder).strip()]
    for top in inside:
        inside += [number for number, parent in parents if parent == top]
    return inside[:0:-1]
