"""Walks of carme-folders through all files: what is taken away is away, and nobody learns or gains by a walk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rig.folder_program import AS_ROOT, GROUP_ID, ID, PEOPLE, Program, as_user, may

as_root = pytest.mark.skipif(not AS_ROOT, reason="becomes other users")


def writers(program: Program, path: Path) -> set[int]:
    """Return who may write a file by its ACL."""
    handle = os.open(path, os.O_RDONLY)
    try:
        return set(program.tree.rights(handle).users)
    finally:
        os.close(handle)


@as_root
def test_members_with_one_primary_group_read_what_others_of_it_make(program: Program) -> None:
    data = program.shared()

    def write() -> None:
        (data / "inner").mkdir()
        (data / "inner" / "file").write_text("x")

    assert as_user("ann", write, group=GROUP_ID) == ""
    assert (data / "inner" / "file").stat().st_gid == GROUP_ID
    assert as_user("ben", lambda: (data / "inner" / "file").read_text(), group=GROUP_ID) == ""
    assert as_user("ben", lambda: (data / "inner" / "file").write_text("y"), group=GROUP_ID) == "PermissionError"
    (data / "inner").chmod(0o707)  # as mv(1) may bring it: the group alone is shut out
    assert program.do("scan")["names"] == ["inner"]
    program.do("repair", "ann")
    assert as_user("ben", lambda: (data / "inner" / "file").read_text(), group=GROUP_ID) == ""


def test_a_writer_who_becomes_a_reader_keeps_no_file_by_a_second_name(program: Program) -> None:
    data = program.shared()
    program.do("grant", "cleo", "rw")
    (data / "file").write_text("x")
    os.link(data / "file", program.place / "kept by cleo")
    assert PEOPLE["cleo"] in writers(program, data / "file")
    program.do("grant", "cleo", "ro")
    program.do("spread", str(PEOPLE["cleo"]))
    assert PEOPLE["cleo"] not in writers(program, program.place / "kept by cleo")
    program.do("grant", "dora", "rw")
    program.do("spread", "-")
    assert PEOPLE["dora"] not in writers(program, data / "file"), "nobody is let in by a second name"


class ActMeanwhile:
    """setxattr(2), at whose first call something else is done first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
        self._real, self._act, self._done = os.setxattr, act, False
        monkeypatch.setattr(os, "setxattr", self.setxattr)

    def setxattr(self, *arguments: object) -> None:
        if not self._done:
            self._done = True
            self._act()
        self._real(*arguments)  # type: ignore[arg-type]


def test_a_walk_that_is_overtaken_gives_nobody_back_what_was_taken_away(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = program.shared()
    (data / "file").write_text("x")
    program.do("grant", "cleo", "rw")
    ActMeanwhile(monkeypatch, lambda: program.do("grant", "cleo", "ro"))  # after the first look at who writes
    program.do("spread", "-")
    assert writers(program, data / "file") == {PEOPLE["ann"]}


def test_what_is_moved_behind_a_walk_is_found_by_the_next_one_of_the_same_call(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = program.shared()
    program.do("grant", "cleo", "rw")
    for name in ("a", "b"):
        (data / name).mkdir()
        (data / name / "file").write_text("x")
    first, second = (entry.name for entry in os.scandir(data) if entry.is_dir())
    program.do("grant", "cleo", "ro")
    moved: list[str] = []
    real = program.tree.Walk.enter

    def enter(walk: object, entry: os.DirEntry[str], *rest: object) -> None:
        if entry.name == second and not moved:  # once the first was looked at
            moved.append(entry.name)
            (data / second / "file").rename(data / first / "moved")
        real(walk, entry, *rest)

    monkeypatch.setattr(program.tree.Walk, "enter", enter)
    program.do("spread", str(PEOPLE["cleo"]))
    assert writers(program, data / first / "moved") == {PEOPLE["ann"]}


def test_what_cannot_be_changed_is_told_and_not_taken_for_done(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = program.shared()
    (data / "file").write_text("x")
    program.do("grant", "cleo", "rw")

    def setxattr(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")  # chattr +i

    monkeypatch.setattr(os, "setxattr", setxattr)
    status, answer = program.call("spread", "projects", ID, "-")
    assert (status, answer["reason"]) == (2, "files")
    assert "1 files and folders in it cannot be changed: Operation not permitted" in answer["error"]


def test_a_program_that_runs_with_its_owners_rights_is_opened_to_nobody(program: Program) -> None:
    data = program.shared()
    (data / "program").write_text("x")
    for name in os.listxattr(data / "program"):
        with contextlib.suppress(OSError):  # of NFS version 4; the mode below is enough
            os.removexattr(data / "program", name)
    if AS_ROOT:
        os.chown(data / "program", PEOPLE["ann"], PEOPLE["ann"])
    (data / "program").chmod(0o4700)
    found = program.do("repair", "ann")
    assert (found["strange"], found["mended"]) == (1, 0)
    assert (data / "program").stat().st_mode & 0o7777 == 0o4700


def test_names_that_members_cannot_see_are_not_told(program: Program) -> None:
    data = program.shared()
    (data / "private").mkdir()
    (data / "private" / "plan").write_text("x")
    (data / "private" / "plan").chmod(0o600)
    (data / "private").chmod(0o700)
    found = program.do("scan")
    assert found["names"] == ["private"]
    assert sum(found["unusable"].values()) == 2


def test_an_act_that_comes_late_is_not_done_any_more(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    program.shared()
    monkeypatch.setattr(program.module, "LATEST", 0.2)
    held = os.open(program.root / ID, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)  # another call, which hangs
    before = program.do("show")
    assert program.refused("grant", "cleo", "rw") == "busy"
    os.close(held)
    assert program.do("show") == before
    program.do("grant", "cleo", "rw")


@pytest.mark.parametrize(
    ("kind", "said"),
    [("nfs4", "its server has no ACLs"), ("nfs", "without POSIX ACLs"), ("fuse.sshfs", "(fuse.sshfs)")],
)
def test_the_kind_of_a_file_system_without_acls_is_told(
    program: Program, monkeypatch: pytest.MonkeyPatch, kind: str, said: str
) -> None:
    def setxattr(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    device = program.root.stat().st_dev
    mounts = program.place / "mountinfo"
    mounts.write_text(
        "24 30 0:22 / /proc rw,nosuid,nodev,noexec,relatime shared:13 - proc proc rw\n"
        f"36 35 {os.major(device)}:{os.minor(device)} /folders /srv/folders rw,relatime shared:1 master:2 - {kind} "
        "storage:/folders rw,vers=4.2,rsize=1048576\n"
    )
    monkeypatch.setattr(os, "setxattr", setxattr)
    monkeypatch.setattr(program.tree, "MOUNTS", str(mounts))
    status, answer = program.call("check", "projects")
    assert (status, answer["reason"]) == (1, "no-acl")
    assert said in answer["error"]
    assert list(program.root.iterdir()) == []


def test_a_published_folder_stays_open_to_all_where_a_member_is_shut_out_on_a_full_disk(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = program.shared()
    program.do("publish", "yes")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "setxattr", full)
        assert program.refused("revoke", "ben") == "closed"
    assert program.do("show")["published"]
    assert may(program, "mallory", data, 5)


@pytest.mark.parametrize(
    ("uid", "good"), [(999, False), (1000, True), (65534, False), (70000, True), (634400005, True)]
)
def test_ordinary_users_are_those_of_ldap_as_well(
    program: Program, monkeypatch: pytest.MonkeyPatch, uid: int, good: bool
) -> None:
    entry = program.module.pwd.getpwnam("ben")
    monkeypatch.setattr(program.module.pwd, "getpwnam", lambda _name: type(entry)(**{**vars(entry), "pw_uid": uid}))
    program.do("make")
    if good:
        assert program.do("grant", "ben", "ro")["uid"] == uid
    else:
        assert program.refused("grant", "ben", "ro") == "no-user"
