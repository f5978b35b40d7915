"""Members who know how carme-folders works gain nothing by it: links, other people's files, names, full disks."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from rig.folder_program import AS_ROOT, GROUP_ID, ID, OTHERS, PEOPLE, Program, may
from rig.nightly import NIGHTLY

NAMES = (
    *(b"new\nline", b"-rf", b"..data", b"...", b"\xff\xfe", b"a" * 255, b"{'a': 1}", b"$(reboot)", b"\x1b[31m", b"#!x"),
    *(b" ", b"\\", b'"', "ä\u202e".encode(), b"data", ID.encode()),
)


def state(path: Path) -> tuple[object, ...]:
    """Return all that must not change of something: mode, owner, ACLs, times."""
    found = os.lstat(path)
    attributes = {} if path.is_symlink() else {name: os.getxattr(path, name) for name in os.listxattr(path)}
    return found.st_mode, found.st_uid, found.st_ctime_ns, sorted(attributes.items())


@pytest.fixture
def outside(program: Program) -> Path:
    """A folder on the same file system with somebody's private file, and a private folder."""
    place = program.place / "outside"
    (place / "inner").mkdir(parents=True)
    for name in ("secret", "inner/secret"):
        (place / name).write_text("secret")
        (place / name).chmod(0o600)
        if AS_ROOT:
            os.chown(place / name, OTHERS["mallory"], OTHERS["mallory"])
    place.chmod(0o755)
    return place


@contextlib.contextmanager
def exchanged(data: Path, outside: Path) -> Iterator[None]:
    """Exchange a folder and a link to the outside for each other, as fast as it goes, meanwhile."""
    (data / "a").mkdir()
    (data / "a" / "secret").write_text("x")
    (data / "b").symlink_to(outside)
    ended = threading.Event()

    def exchange() -> None:
        with contextlib.suppress(OSError):  # they were deleted
            while not ended.is_set():
                (data / "a").rename(data / "c")
                (data / "b").rename(data / "a")
                (data / "c").rename(data / "b")

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*")
def test_a_link_that_takes_the_place_of_a_folder_leads_nowhere(program: Program, outside: Path) -> None:
    data = program.shared()
    before = {path: state(path) for path in [outside, *outside.rglob("*")]}
    with exchanged(data, outside):
        for _ in range(15 if NIGHTLY else 4):
            for act in (("repair", "ann"), ("spread", "-"), ("scan",)):
                program.do(*act)
    assert {path: state(path) for path in before} == before


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*")
def test_deleting_follows_no_link_that_takes_the_place_of_a_folder(program: Program, outside: Path) -> None:
    data = program.shared()
    for number in range(200):
        (data / f"folder {number}").mkdir()
    before = {path: state(path) for path in [outside, *outside.rglob("*")]}
    with exchanged(data, outside):
        program.call("remove", "projects", ID)
    program.do("remove")
    assert list(program.root.iterdir()) == []
    assert {path: state(path) for path in before} == before


def test_a_hard_link_to_somebody_elses_file_is_not_touched(program: Program, outside: Path) -> None:
    data = program.shared()
    os.link(outside / "secret", data / "mine now")
    # As if ann could write it, so that it looks like a file that was made here.
    program.tree.set_acl(
        handle := os.open(outside / "inner" / "secret", os.O_RDONLY),
        program.tree.Acl(6, 0, 0, 6, {PEOPLE["ann"]: 6}),
    )
    os.close(handle)
    os.link(outside / "inner" / "secret", data / "this too")
    before = state(data / "mine now"), state(data / "this too")
    program.do("grant", "cleo", "rw")
    assert program.do("spread", "-")["hard_links"] == 2
    program.do("repair", "ann")
    program.do("grant", "cleo", "ro")
    program.do("spread", str(PEOPLE["cleo"]))
    assert (state(data / "mine now"), state(data / "this too")) == before


def test_a_private_file_of_a_member_that_another_moves_here_stays_private(program: Program, outside: Path) -> None:
    data = program.shared()
    program.do("grant", "dora", "rw")
    if AS_ROOT:
        os.chown(outside / "secret", PEOPLE["dora"], PEOPLE["dora"])
    (outside / "secret").rename(data / "look")
    before = state(data / "look")
    program.do("grant", "cleo", "rw")
    program.do("spread", "-")
    if AS_ROOT:
        program.do("repair", "ann")
        program.do("repair", "cleo")
    assert state(data / "look") == before
    assert AS_ROOT is False or not may(program, "ben", data / "look", 4)


def test_names_are_names_and_nothing_else(program: Program) -> None:
    data = program.shared()
    for name in NAMES:
        path = data / os.fsdecode(name)
        path.write_text("x")
        path.chmod(0o600)
    found = program.do("scan")
    assert found["files"] == len(NAMES)
    assert len(found["names"]) == len(NAMES)
    assert "\\xff\\xfe" in found["names"]
    program.do("remove")
    assert list(program.root.iterdir()) == []


def test_what_is_no_file_is_counted_and_not_opened(program: Program) -> None:
    data = program.shared()
    os.mkfifo(data / "fifo")
    (data / "link").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(data)
        listener.bind("socket")
        os.chdir(here)
    if AS_ROOT:
        os.mknod(data / "device", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    before = [state(path) for path in sorted(data.iterdir())]
    found = program.do("repair", "ann")
    assert (found["strange"], found["links"]) == (3 if AS_ROOT else 2, 1)
    program.do("spread", "-")
    assert [state(path) for path in sorted(data.iterdir())] == before
    program.do("remove")


def test_many_files_are_done_in_one_call_and_a_call_that_takes_too_long_goes_on(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = program.shared()
    for number in range(5000):
        os.close(os.open(data / str(number), os.O_CREAT, 0o600))
    assert program.do("scan")["files"] == 5000
    monkeypatch.setattr(program.tree, "SECONDS", 0.02)
    assert program.refused("remove") == "time"
    assert not (program.root / ID).exists()
    monkeypatch.setattr(program.tree, "SECONDS", 240.0)
    program.do("remove")
    assert list(program.root.iterdir()) == []


class FullDisk:
    """setxattr(2) on a disk that becomes full after some calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real, self.left = os.setxattr, 1000
        monkeypatch.setattr(os, "setxattr", self.setxattr)

    def setxattr(self, *arguments: object) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._real(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("calls", range(4))
def test_a_disk_that_gets_full_half_way_lets_nobody_in_and_the_same_call_goes_on(
    program: Program, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    disk = FullDisk(monkeypatch)
    disk.left = calls
    status, answer = program.call("make", "projects", ID)
    if calls < 2:
        assert (status, answer["reason"]) == (2, "disk-full")
    disk.left = 1000
    assert program.do("make")["odd"] == []
    disk.left = calls
    status, answer = program.call("grant", "projects", ID, "ann", "rw")
    if calls < 3:
        assert (status, answer["reason"]) == (2, "disk-full")
        assert program.do("show")["members"] == {}
        assert not may(program, "ann", program.data, 1)
    disk.left = 1000
    program.do("grant", "ann", "rw")
    assert program.do("show")["odd"] == []


def test_somebody_is_shut_out_even_where_the_disk_is_full(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    data = program.shared()
    disk = FullDisk(monkeypatch)
    disk.left = 0
    assert program.refused("revoke", "ben") == "closed"
    assert not may(program, "ben", data, 1)
    assert "The outer folder is closed for all its members." in program.do("show")["odd"]
    disk.left = 1000
    program.do("revoke", "ben")
    assert program.do("show")["odd"] == []
    assert may(program, "ann", data, 7)
    assert not may(program, "ben", data, 1)


def test_a_full_disk_is_told_and_not_taken_for_a_strange_file(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = program.shared()
    (data / "file").write_text("x")
    program.do("grant", "cleo", "rw")
    disk = FullDisk(monkeypatch)
    disk.left = 0
    assert program.refused("spread", "-") == "disk-full"


def test_a_file_system_without_acls_is_told(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def setxattr(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", setxattr)
    assert program.refused("check") == "no-acl"
    assert program.refused("make") == "no-acl"
    assert [entry.name for entry in program.root.iterdir()] == [ID], "closed, and finished by the same call"
    assert not may(program, "ann", program.root / ID, 1)


def test_a_folder_that_is_not_roots_is_left_alone(program: Program) -> None:
    if not AS_ROOT:
        return
    (program.root / ID).mkdir()
    os.chown(program.root / ID, PEOPLE["ann"], GROUP_ID)
    assert program.refused("make") == "not-ours"
    (program.root / ID / "data").symlink_to("/etc")
    assert program.refused("grant", "ann", "rw") in ("system", "not-ours")


@pytest.mark.parametrize(
    "more",
    [
        {"project_ids": {"projects": 0}},
        {"project_ids": {"projects": -1}},
        {"project_ids": {"projects": True}},
        {"project_ids": {"projects": "500000"}},
        {"project_ids": {"projects": 1 << 31}},
        {"project_ids": {"elsewhere": 500_000}},
        {"project_ids": [500_000]},
        {"project_ids": None},
        {"nfs4_domain": "example.org\n"},
        {"nfs4_domain": "@example.org"},
        {"nfs4_domain": 5},
        {"nfs4_domain": "a" * 300},
    ],
)
def test_settings_that_make_no_sense_are_refused(program: Program, more: dict[str, object]) -> None:
    settings = json.loads(program.settings.read_text())
    program.settings.write_text(json.dumps({**settings, **more}))
    assert program.refused("make") == "settings"
    assert list(program.root.iterdir()) == []


class FileSystemWithProjects:
    """ioctl(2) of a file system with project ids, which what is made in a folder gets by itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tree: ModuleType, ids: Path) -> None:
        self.tree, self.ids = tree, ids  # a folder with a file for each: each call is a process of its own
        ids.mkdir()
        monkeypatch.setattr(tree.fcntl, "ioctl", self.ioctl)

    def ioctl(self, entry: int, number: int, value: bytearray | bytes) -> None:
        fields, inode = self.tree.FLAGS, os.fstat(entry).st_ino
        if number == self.tree.SET_FLAGS:
            flags, _, _, project, _ = fields.unpack(value)
            assert flags & self.tree.PROJECT_INHERITED
            (self.ids / str(inode)).write_text(str(project))
        else:
            files = [self.ids / str(each) for each in (inode, os.stat("..", dir_fd=entry).st_ino)]
            project = next((int(file.read_text()) for file in files if file.exists()), 0)
            fields.pack_into(value, 0, 0, 0, 0, project, 0)


def test_each_folder_is_counted_apart_by_a_number_of_its_own(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    # Real ones on XFS: tests/cluster/sandbox/test_folders_counted_apart.py.
    FileSystemWithProjects(monkeypatch, program.tree, program.place / "ids")
    settings = json.loads(program.settings.read_text())
    program.settings.write_text(json.dumps({**settings, "project_ids": {"projects": 500_000}}))
    other, third = "ba9876543210", "ffffffffffff"
    found = [program.call("make", "projects", id)[1]["project"] for id in (ID, other, third, ID)]
    assert found == [500_000, 500_001, 500_002, 500_000]
    inodes = [each.stat().st_ino for each in (program.root / other, program.root / other / "data")]
    program.call("remove", "projects", other)
    for inode in inodes:
        (program.place / "ids" / str(inode)).unlink(missing_ok=True)
    assert program.call("make", "projects", other)[1]["project"] == 500_003
    assert {each["id"]: each["project"] for each in program.call("list", "projects")[1]} == {
        ID: 500_000,
        third: 500_002,
        other: 500_003,
    }


def test_a_file_system_without_project_ids_is_told(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def ioctl(*_: object) -> None:
        raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")

    monkeypatch.setattr(program.tree.fcntl, "ioctl", ioctl)
    settings = json.loads(program.settings.read_text())
    program.settings.write_text(json.dumps({**settings, "project_ids": {"projects": 500_000}}))
    status, answer = program.call("make", "projects", ID)
    assert (status, answer["reason"]) == (2, "settings")
    assert "take project_ids out of the settings" in answer["error"]
    assert not may(program, "ann", program.root / ID, 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\0",
        b"\0\0\0\1",
        b"\xff\xff\xff\xff",
        struct.pack(">IIIII", 1, 0, 0, 1, 0xFFFFFFFF),
        struct.pack(">IIIII", 2, 0, 0, 1, 4) + b"6300",
        struct.pack(">I", 1) + b"0123456789",
    ],
)
def test_a_list_of_nfs_version_4_that_is_cut_off_is_an_error_and_nobodys_right(
    program: Program, monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    acls, real = program.module.ACLS, os.getxattr

    def getxattr(path: str, name: str) -> bytes:
        if name == acls.NFS4:
            return raw
        if name in (acls.ACCESS, acls.DEFAULT):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, name)

    monkeypatch.setattr(os, "getxattr", getxattr)
    handle = os.open(program.root, os.O_RDONLY)
    with pytest.raises(OSError, match="is not understood"):
        acls.acl_of(handle)
    os.close(handle)
    assert program.refused("make") == "system"
    assert list(program.root.iterdir()) == []


@pytest.mark.parametrize("who", [b"\xff\xfe", b"root@\n", b"0", b"-1", b"99999999999", b"\xd9\xa3", b"ann@"])
def test_a_strange_principal_is_nobody_here(program: Program, who: bytes) -> None:
    acls = program.module.ACLS
    acls.DOMAIN = "example.org"
    name = who.decode("utf-8", "backslashreplace")
    assert acls.number_of(name) in (None, 0)
    found = acls.of_entries([(acls.ALLOW, 0, 0x27, name)], acls.ACCESS)
    assert (found.other, found.group) == (0, 0)
