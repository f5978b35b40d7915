"""A forged mount of an NFS version 4 server: files in memory behind FUSE, which have ACLs of RFC 7530 and no others.

It knows the attribute ``system.nfs4_acl`` as Linux's client shows it, and decides by it alone who may do what, so that
Debian's nfs4-acl-tools and other users' processes meet it as they would a mount. It is written after the RFC and not
after our program: entries count in their order, and what is made inherits by the flags f, d, n and i. A mode at the
making of something limits what it inherits (RFC 8275), and chmod(2) limits its entries for good, as most servers do.
It forges no network, locks, caches or names: principals are numbers. Needs root, and /dev/fuse.

Run as ``python forged_nfs4_server.py FOLDER``: it mounts itself there, prints a line, and ends with the mount.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

NAME = "system.nfs4_acl"
ALLOW, DENY = 0, 1
F, D, N, ONLY, G = 0x1, 0x2, 0x4, 0x8, 0x40
R, WRITE, W, X, DELETE_CHILD = 0x1, 0x2, 0x6, 0x20, 0x40
READ_ACL, WRITE_ACL, SHOWN = 0x20000, 0x40000, 0x120088
#: The most entries that Linux's server takes (NFS4_ACL_MAX).
MOST = 170

Ace = tuple[int, int, int, str]
HEADER, OUT = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
OPEN_OUT = struct.Struct("<QII")


class Refused(Exception):
    """The answer is an error number, the only argument."""


class Node:
    """A file, folder, link or whatever else."""

    numbers = iter(range(1, 1 << 62))

    def __init__(self, mode: int, uid: int, gid: int, aces: list[Ace]) -> None:
        self.id, self.kind, self.uid, self.gid = next(self.numbers), stat.S_IFMT(mode), uid, gid
        self.special, self.aces, self.ctime = mode & 0o7000, aces, time.time_ns()
        self.content, self.target, self.links, self.device = bytearray(), b"", 1, 0
        self.entries: dict[bytes, Node] = {}
        self.parent = self

    def allows(self, uid: int, gid: int, wanted: int) -> bool:
        """Return whether somebody has all bits of a mask, by RFC 7530, section 6.2.1."""
        if uid == 0:
            return True
        left = wanted
        for kind, flags, mask, who in self.aces:
            meant = who == "EVERYONE@" or (who == "OWNER@" and uid == self.uid) or (who == "GROUP@" and gid == self.gid)
            if flags & ONLY or not (meant or (who == str(uid) and not flags & G)):
                continue
            if kind == DENY and mask & left:
                return False
            if kind == ALLOW:
                left &= ~mask
        return not left

    def mode(self) -> int:
        found = 0
        for who, shift in (("OWNER@", 6), ("GROUP@", 3), ("EVERYONE@", 0)):
            yes = no = 0
            for kind, flags, mask, each in self.aces:
                if each == who and not flags & ONLY:
                    yes, no = (yes | mask & ~no, no) if kind == ALLOW else (yes, no | mask & ~yes)
            found |= ((4 if yes & R else 0) | (2 if yes & W == W else 0) | (1 if yes & X else 0)) << shift
        return self.kind | self.special | found

    def limit(self, mode: int) -> None:
        """Limit the entries to what a mode allows: those of names to what it allows the group."""
        below = [each for each in self.aces if each[1] & (F | D)]
        own = [each for each in self.aces if not each[1] & ONLY]
        found: list[Ace] = []
        for kind, flags, mask, who in own:
            keep = bits(mode >> {"OWNER@": 6, "EVERYONE@": 0}.get(who, 3))
            found.append((kind, flags & G, mask & (keep | ~bits(7)), who))
        self.aces = [*found, *((kind, flags | ONLY, mask, who) for kind, flags, mask, who in below)]
        self.special = mode & 0o7000

    def set_mode(self, mode: int) -> None:
        """Do what chmod(2) does: the three classes have what it says, and names at most what the group has."""
        self.limit(mode)
        self.aces = [each for each in self.aces if each[1] & ONLY or each[3] not in ("OWNER@", "GROUP@", "EVERYONE@")]
        self.aces = [*of_mode(mode), *self.aces]

    def inherited(self, folder: bool) -> list[Ace]:
        """Return what something new in this folder inherits."""
        found: list[Ace] = []
        for kind, flags, mask, who in self.aces:
            if folder and flags & D:
                found.append((kind, flags & G if flags & N else flags & ~ONLY, mask, who))
            elif folder and flags & F and not flags & N:
                found.append((kind, flags | ONLY, mask, who))
            elif not folder and flags & F:
                found.append((kind, flags & G, mask & ~DELETE_CHILD, who))
        return found


def bits(perm: int) -> int:
    return (R if perm & 4 else 0) | (W | DELETE_CHILD if perm & 2 else 0) | (X if perm & 1 else 0)


def of_mode(mode: int) -> list[Ace]:
    found: list[Ace] = []
    for who, shift, more in (("OWNER@", 6, WRITE_ACL), ("GROUP@", 3, 0), ("EVERYONE@", 0, 0)):
        found.append((ALLOW, G if who == "GROUP@" else 0, bits(mode >> shift) | SHOWN | more, who))
    return found


def unpacked(raw: bytes) -> list[Ace]:
    found: list[Ace] = []
    count, at = struct.unpack_from(">I", raw)[0], 4
    if count > MOST:
        raise Refused(errno.EFBIG)
    for _ in range(count):
        kind, flags, mask, length = struct.unpack_from(">IIII", raw, at)
        who = raw[at + 16 : at + 16 + length].decode()
        if who not in ("OWNER@", "GROUP@", "EVERYONE@") and not who.isdigit():
            raise Refused(errno.EINVAL)  # NFS4ERR_BADOWNER
        found.append((kind, flags, mask, who))
        at += 16 + (length + 3) // 4 * 4
    return found


def packed(aces: list[Ace]) -> bytes:
    raw = struct.pack(">I", len(aces))
    for kind, flags, mask, who in aces:
        raw += struct.pack(">IIII", kind, flags, mask, len(who)) + who.encode() + b"\0" * (-len(who) % 4)
    return raw


class Server:
    """Answers the kernel's requests, one after the other."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.root = Node(stat.S_IFDIR, 0, 0, of_mode(0o755))
        self.nodes = {1: self.root}
        self.listings: dict[int, list[tuple[bytes, Node]]] = {}
        self.opened = 0

    def serve(self) -> None:
        """Answer until the mount ends."""
        while True:
            try:
                raw = os.read(self.device, 1 << 20)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                return
            _, code, unique, number, uid, gid, _, _ = HEADER.unpack_from(raw)
            if code in (2, 42, 36):  # FORGET, BATCH_FORGET, INTERRUPT have no answer
                continue
            try:
                if code not in ACTS:
                    raise Refused(errno.ENOSYS)
                body = getattr(self, ACTS[code])(self.nodes.get(number, self.root), raw[HEADER.size :], uid, gid)
                os.write(self.device, OUT.pack(OUT.size + len(body), 0, unique) + body)
            except Refused as refused:
                with contextlib.suppress(OSError):
                    os.write(self.device, OUT.pack(OUT.size, -refused.args[0], unique))

    # -- answers ------------------------------------------------------------------------------------------------------

    @staticmethod
    def require(node: Node, uid: int, gid: int, wanted: int) -> None:
        if not node.allows(uid, gid, wanted):
            raise Refused(errno.EACCES)

    def attributes(self, node: Node) -> bytes:
        (seconds, rest), links = divmod(node.ctime, 10**9), 2 if node.kind == stat.S_IFDIR else node.links
        number, size = 1 if node is self.root else node.id + 1, len(node.target or node.content)
        first = (number, size, (size + 511) // 512, *(seconds,) * 3, *(rest,) * 3)
        return ATTR.pack(*first, node.mode(), links, node.uid, node.gid, node.device, 4096, 0)

    def entry(self, node: Node) -> bytes:
        number = node.id + 1
        self.nodes[number] = node
        return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + self.attributes(node)

    def init(self, *_: object) -> bytes:
        big_writes, unmasked = 1 << 5, 1 << 6
        return struct.pack("<IIIIHHII", 7, 31, 1 << 16, big_writes | unmasked, 16, 12, 1 << 17, 1) + bytes(36)

    def child(self, folder: Node, name: bytes, uid: int, gid: int) -> Node:
        self.require(folder, uid, gid, X)
        if (found := folder.entries.get(name)) is None:
            raise Refused(errno.ENOENT)
        return found

    def lookup(self, node: Node, raw: bytes, uid: int, gid: int) -> bytes:
        return self.entry(self.child(node, raw.rstrip(b"\0"), uid, gid))

    def getattr(self, node: Node, *_: object) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self.attributes(node)

    def setattr(self, node: Node, raw: bytes, uid: int, gid: int) -> bytes:
        valid, _, _, size = struct.unpack_from("<IIQQ", raw)
        mode, _, new_uid, new_gid = struct.unpack_from("<IIII", raw, 68)
        if valid & 1:
            if uid not in (0, node.uid):
                raise Refused(errno.EPERM)
            node.set_mode(mode)
        if valid & 6:
            if uid:
                raise Refused(errno.EPERM)
            node.uid, node.gid = new_uid if valid & 2 else node.uid, new_gid if valid & 4 else node.gid
        if valid & 8:
            self.require(node, uid, gid, WRITE)
            node.content = node.content[:size].ljust(size, b"\0")
        node.ctime = time.time_ns()
        return self.getattr(node)

    def make(self, folder: Node, name: bytes, mode: int, umask: int, uid: int, gid: int) -> Node:
        self.require(folder, uid, gid, W | X)
        if name in folder.entries:
            raise Refused(errno.EEXIST)
        new = Node(mode, uid, gid, folder.inherited(stat.S_ISDIR(mode)))
        if any(not each[1] & ONLY for each in new.aces):
            new.limit(mode)
        else:
            new.aces += of_mode(mode & ~umask)
        folder.entries[name], new.parent = new, folder
        return new

    def mkdir(self, node: Node, raw: bytes, uid: int, gid: int) -> bytes:
        mode, umask = struct.unpack_from("<II", raw)
        return self.entry(self.make(node, raw[8:].rstrip(b"\0"), stat.S_IFDIR | mode & 0o7777, umask, uid, gid))

    def mknod(self, node: Node, raw: bytes, uid: int, gid: int) -> bytes:
        mode, device, umask, _ = struct.unpack_from("<IIII", raw)
        new = self.make(node, raw[16:].rstrip(b"\0"), mode, umask, uid, gid)
        new.device = device
        return self.entry(new)

    def create(self, node: Node, raw: bytes, uid: int, gid: int) -> bytes:
        _, mode, umask, _ = struct.unpack_from("<IIII", raw)
        new = self.make(node, raw[16:].rstrip(b"\0"), stat.S_IFREG | mode & 0o7777, umask, uid, gid)
        return self.entry(new) + OPEN_OUT.pack(0, 1, 0)

    def symlink(self, node: Node, raw: bytes, uid: int, gid: int) -> bytes:
        name, target, _ = raw.split(b"\0", 2)
        new = self.make(node, name, stat.S_IFLNK | 0o777, 0, uid, gid)
        new.target = target
        return self.entry(new)

    def readlink(self, node: Node, *_: object) -> bytes:
        return node.target

    def link(self, node: Node, raw: bytes, uid: int, gid: int) -> bytes:
        old = self.nodes[struct.unpack_from("<Q", raw)[0]]
        self.require(node, uid, gid, W | X)
        node.entries[raw[8:].rstrip(b"\0")] = old
        old.links += 1
        return self.entry(old)

    def unlink(self, node: Node, raw: bytes, uid: int, gid: int) -> bytes:
        self.child(node, raw.rstrip(b"\0"), uid, gid)
        self.require(node, uid, gid, DELETE_CHILD)
        node.entries.pop(raw.rstrip(b"\0")).links -= 1
        return b""

    def rmdir(self, node: Node, raw: bytes, uid: int, gid: int) -> bytes:
        if self.child(node, raw.rstrip(b"\0"), uid, gid).entries:
            raise Refused(errno.ENOTEMPTY)
        return self.unlink(node, raw, uid, gid)

    def rename(self, node: Node, raw: bytes, uid: int, gid: int, start: int = 8) -> bytes:
        target = self.nodes[struct.unpack_from("<Q", raw)[0]]
        old, new, _ = raw[start:].split(b"\0", 2)
        moved = self.child(node, old, uid, gid)
        for each in (node, target):
            self.require(each, uid, gid, W | X)
        target.entries[new] = node.entries.pop(old)
        moved.parent = target
        return b""

    def rename2(self, node: Node, raw: bytes, uid: int, gid: int) -> bytes:
        return self.rename(node, raw, uid, gid, 16)

    def open(self, node: Node, raw: bytes, uid: int, gid: int) -> bytes:
        ways = {os.O_RDONLY: R, os.O_WRONLY: WRITE, os.O_RDWR: R | WRITE}
        self.require(node, uid, gid, ways[struct.unpack_from("<I", raw)[0] & os.O_ACCMODE])
        return OPEN_OUT.pack(0, 1, 0)

    def opendir(self, node: Node, _raw: bytes, uid: int, gid: int) -> bytes:
        self.require(node, uid, gid, R)
        self.opened += 1
        return OPEN_OUT.pack(self.opened, 0, 0)

    def readdir(self, node: Node, raw: bytes, *_: object) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", raw)
        if not offset:  # it is read from the beginning, for the first time or again
            self.listings[handle] = [(b".", node), (b"..", node.parent), *node.entries.items()]
        found = b""
        for at, (name, each) in enumerate(self.listings[handle][offset:], offset + 1):
            row = struct.pack("<QQII", each.id + 1, at, len(name), each.kind >> 12) + name
            row += bytes(-len(row) % 8)
            if len(found) + len(row) > size:
                break
            found += row
        return found

    def read(self, node: Node, raw: bytes, *_: object) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", raw)
        return bytes(node.content[offset : offset + size])

    def write(self, node: Node, raw: bytes, *_: object) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", raw)
        node.content[offset : offset + size] = raw[40 : 40 + size]
        return struct.pack("<II", size, 0)

    def nothing(self, *_: object) -> bytes:
        return b""

    def statfs(self, *_: object) -> bytes:
        return struct.pack("<QQQQQIIII24x", 1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 4096, 255, 4096, 0)

    def access(self, node: Node, raw: bytes, uid: int, gid: int) -> bytes:
        self.require(node, uid, gid, bits(struct.unpack_from("<I", raw)[0]) & (R | W | X))
        return b""

    def getxattr(self, node: Node, raw: bytes, uid: int, gid: int) -> bytes:
        size, _ = struct.unpack_from("<II", raw)
        if raw[8:].rstrip(b"\0") != NAME.encode():
            raise Refused(errno.EOPNOTSUPP)
        self.require(node, uid, gid, READ_ACL)
        return self._sized(packed(node.aces), size)

    def listxattr(self, _node: Node, raw: bytes, *_: object) -> bytes:
        return self._sized(NAME.encode() + b"\0", struct.unpack_from("<I", raw)[0])

    @staticmethod
    def _sized(value: bytes, size: int) -> bytes:
        if not size:
            return struct.pack("<II", len(value), 0)
        if len(value) > size:
            raise Refused(errno.ERANGE)
        return value

    def setxattr(self, node: Node, raw: bytes, uid: int, gid: int) -> bytes:
        size, _ = struct.unpack_from("<II", raw)
        name, _, value = raw[8:].partition(b"\0")
        if name != NAME.encode():
            raise Refused(errno.EOPNOTSUPP)
        if uid != node.uid:
            self.require(node, uid, gid, WRITE_ACL)
        node.aces, node.ctime = unpacked(value[:size]), time.time_ns()
        return b""


#: Methods by the numbers of requests (linux/fuse.h).
ACTS = {
    **{1: "lookup", 3: "getattr", 4: "setattr", 5: "readlink", 6: "symlink", 8: "mknod", 9: "mkdir", 10: "unlink"},
    **{11: "rmdir", 12: "rename", 13: "link", 14: "open", 15: "read", 16: "write", 17: "statfs", 18: "nothing"},
    **{20: "nothing", 21: "setxattr", 22: "getxattr", 23: "listxattr", 25: "nothing", 26: "init", 27: "opendir"},
    **{28: "readdir", 29: "nothing", 30: "nothing", 34: "access", 35: "create", 45: "rename2"},
}


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[None]:
    """Mount a server at a folder, in a process of its own, and end it afterwards."""
    server = subprocess.Popen([sys.executable, __file__, str(folder)], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"mounted\n"
        yield
    finally:
        subprocess.run(["/usr/bin/umount", "--lazy", str(folder)], check=False)
        server.kill()
        server.communicate(timeout=10)


def main(folder: str) -> None:
    """Mount, and serve."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"forged", os.fsencode(folder), b"fuse.forged-nfs4", 0, options):
        sys.exit(os.strerror(ctypes.get_errno()))
    sys.stdout.write("mounted\n")
    sys.stdout.flush()
    Server(device).serve()


if __name__ == "__main__":
    main(sys.argv[1])
