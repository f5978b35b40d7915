"""carme-folders, installed in a folder of its own, for people who are numbers and no users of this machine.

As root, what somebody may do is tried as that number. As an ordinary user, who can become nobody else, it is computed
from the modes and ACLs by the rules of acl(5).
"""

from __future__ import annotations

import contextlib
import grp
import json
import os
import pwd
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from carme_hub.paths import share_folder

GROUP, GROUP_ID = "carme-users", 63000
#: Ordinary users of the group, by name.
PEOPLE = {"ann": 63001, "ben": 63002, "cleo": 63003, "dora": 63004}
#: Not in the group; a system user.
OTHERS = {"mallory": 63666, "daemon": 1}
ID = "0123456789ab"
AS_ROOT = os.geteuid() == 0


class Program:
    """The program with one root, called ``projects``."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("libexec", "etc", "root"):
            (place / name).mkdir(mode=0o755)
        for name in ("carme-folders", "carme-folders-acls", "carme-folders-tree"):
            (place / "libexec" / name).write_text((share_folder() / "libexec" / name).read_text())
        self.place, self.root = place, place / "root"
        self.settings = place / "etc" / "carme-folders.json"
        self.settings.write_text(json.dumps({"group": GROUP, "roots": {"projects": str(self.root)}}))
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        loader = SourceFileLoader("carme_folders", str(place / "libexec" / "carme-folders"))
        self.module = ModuleType(loader.name)
        self.module.__file__ = str(place / "libexec" / "carme-folders")
        loader.exec_module(self.module)
        sys.dont_write_bytecode = before
        known, real = PEOPLE | OTHERS, pwd.getpwnam

        def getpwnam(name: str) -> SimpleNamespace | pwd.struct_passwd:
            if name.lower() not in known:  # such as postgres, as whom a database is started meanwhile
                return real(name)
            return SimpleNamespace(pw_name=name.lower(), pw_uid=known[name.lower()], pw_gid=known[name.lower()])

        monkeypatch.setattr(pwd, "getpwnam", getpwnam)
        group_of, groups_of = grp.getgrnam, os.getgrouplist

        def getgrnam(name: str) -> SimpleNamespace | grp.struct_group:
            return SimpleNamespace(gr_gid=GROUP_ID) if name == GROUP else group_of(name)

        def getgrouplist(name: str, gid: int) -> list[int]:
            if name.lower() not in known:
                return groups_of(name, gid)
            return [gid, *([GROUP_ID] if name in PEOPLE else [])]

        monkeypatch.setattr(grp, "getgrnam", getgrnam)
        monkeypatch.setattr(os, "getgrouplist", getgrouplist)

    @property
    def tree(self) -> Any:
        """The file that it loads."""
        return self.module.TREE

    def call(self, *arguments: str) -> tuple[int, Any]:
        """Call it; return its exit status and its answer or refusal."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = os.fork()  # as in its use: locks and open folders end with the process
            if child == 0:
                status = 99
                try:
                    self.module.STARTED = time.monotonic()
                    os.dup2(out.fileno(), 1)
                    os.dup2(err.fileno(), 2)
                    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
                    status = self.module.main(list(arguments))
                    sys.stdout.flush()
                    sys.stderr.flush()
                finally:
                    os._exit(status)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said = err if status else out
            said.seek(0)
            lines = [json.loads(line) for line in said.read().splitlines()]
        return status, lines if arguments[:1] == ("list",) and not status else lines[0]

    def do(self, act: str, *arguments: str) -> Any:
        """Do something that succeeds, in the usual folder; return the answer."""
        status, answer = self.call(act, "projects", *([] if act in ("list", "check") else [ID]), *arguments)
        assert status == 0, answer
        return answer

    def refused(self, act: str, *arguments: str) -> str:
        """Try something that is refused, in the usual folder; return the reason."""
        status, answer = self.call(act, "projects", *([] if act in ("list", "check") else [ID]), *arguments)
        assert status != 0
        return str(answer["reason"])

    @property
    def data(self) -> Path:
        """What is in the usual folder."""
        return self.root / ID / "data"

    def shared(self, writer: str = "ann", reader: str = "ben") -> Path:
        """Make the usual folder with a writer and a reader; return its inside."""
        self.do("make")
        self.do("grant", writer, "rw")
        self.do("grant", reader, "ro")
        return self.data


def as_user(name: str, act: Callable[[], object], group: int = 0) -> str:
    """Do something as somebody, in a process of its own; return "" or the name of the error. Needs root.

    Args:
        group: the primary group; 0 = one of the user's own, of the same number.
    """
    uid = (PEOPLE | OTHERS)[name]
    end, begin = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            os.setgroups([GROUP_ID])
            os.setresgid(*(group or uid,) * 3)
            os.setresuid(uid, uid, uid)
            act()
        except OSError as error:
            said = type(error).__name__
        except BaseException as error:  # noqa: BLE001  the parent tells it
            said = repr(error)
        finally:
            os.write(begin, said.encode())
            os._exit(0)
    os.close(begin)
    os.waitpid(child, 0)
    with os.fdopen(end) as file:
        return file.read()


def may(program: Program, name: str, path: Path, wanted: int) -> bool:
    """Return whether somebody may read (4), write (2) or enter (1) something, all that it is in included."""
    uid = (PEOPLE | OTHERS)[name]
    if AS_ROOT:
        return as_user(name, lambda: _try(path, wanted)) == ""
    steps = [program.root, *reversed([each for each in path.parents if program.root in each.parents]), path]
    return all(
        _allowed(program, uid, each, wanted if each == path else 1) for each in steps if each.exists() or each == path
    )


def _try(path: Path, wanted: int) -> None:
    """Do what the right is for: what the kernel says to access(2) of a process without privileges counts."""
    if not os.access(path, wanted):
        raise PermissionError(path)


def _allowed(program: Program, uid: int, path: Path, wanted: int) -> bool:
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        acl, status = program.tree.rights(handle), os.fstat(handle)
    finally:
        os.close(handle)
    if status.st_uid == uid:
        perm = acl.owner
    elif uid in acl.users:
        perm = acl.users[uid] & acl.mask
    else:
        perm = acl.other
    return bool(perm & wanted == wanted)


@contextlib.contextmanager
def reachable_folder(where: str | None = None) -> Iterator[Path]:
    """Yield a new folder that other users reach, and delete it with all that is in it."""
    place = Path(tempfile.mkdtemp(prefix="carme-folders-", dir=where)).resolve()
    place.chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """The program on the file system of temporary files."""
    with reachable_folder() as place:
        yield Program(place, monkeypatch)
