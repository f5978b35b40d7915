"""The sandbox's system users: real users, marked as the sandbox's, shared by all sandboxes of a machine.

Several sandboxes can run side by side, and a system user exists once. So one root-only file outside of any state
folder records the users, their passwords, and the sandboxes that need them; the reset of the last of these sandboxes
removes the users. An existing user without the mark is never touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import json
import os
import pwd
import secrets
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from carme_hub.errors import SandboxError

MARK = "Carme Hub sandbox"
REGISTER = Path("/var/lib/carme-hub-users.json")
FIRST_UID = 2001

HUB_USER = "carme-hub"
REST_USER = "carme-rest"
USERS_GROUP = "carme-users"
TEACHERS_GROUP = "carme-teachers"
ADMINS_GROUP = "carme-admins"

#: Demo user to groups.
PEOPLE = {
    "alice": (USERS_GROUP,),
    "bob": (USERS_GROUP,),
    "tina": (USERS_GROUP, TEACHERS_GROUP),
    "ada": (USERS_GROUP, ADMINS_GROUP),
}
_SERVICES = (HUB_USER, REST_USER)
_GROUPS = (USERS_GROUP, TEACHERS_GROUP, ADMINS_GROUP)


def claim(state: Path) -> dict[str, str]:
    """Create missing users, record that a sandbox needs them, and return their passwords."""
    with _register() as register:
        _refuse_foreign_users(register)
        for group in _GROUPS:
            if not _group_exists(group):
                _run("groupadd", group)
                register["groups"] = sorted({*register.get("groups", []), group})
        for name in _SERVICES:
            if not _exists(name):
                shell, home = "/usr/sbin/nologin", "/nonexistent"
                _run(
                    *("useradd", "--system", "--user-group", "--no-create-home", "--home-dir", home),
                    *("--shell", shell, "--comment", MARK, name),
                )
        passwords: dict[str, str] = register.setdefault("passwords", {})
        missing = [name for name in PEOPLE if not _exists(name)]
        for name in missing:
            folder = Path("/home") / name
            if folder.exists():
                raise SandboxError(f"{folder} exists, but no user {name}: move it away, then try again")
            _run(
                *("useradd", "--create-home", "--home-dir", str(folder), "--user-group", "--shell", "/bin/bash"),
                *("--uid", str(_free_uid())),
                *("--groups", ",".join(PEOPLE[name]), "--comment", MARK, name),
            )
            Path(pwd.getpwnam(name).pw_dir).chmod(0o700)
        unknown = [name for name in PEOPLE if name in missing or name not in passwords]
        if unknown:
            new = {name: secrets.token_urlsafe(9) for name in unknown}
            _run("chpasswd", input="".join(f"{name}:{password}\n" for name, password in new.items()))
            passwords.update(new)
        register["claims"] = sorted({*register.get("claims", []), str(state)})
        return {name: passwords[name] for name in PEOPLE}


def release(state: Path) -> list[str]:
    """Record that a sandbox no longer needs the users; remove them when it was the last, and return their names."""
    if not REGISTER.exists():
        return []
    with _register() as register:
        claims = {c for c in register.get("claims", []) if c != str(state) and Path(c).is_dir()}
        register["claims"] = sorted(claims)
        if claims:
            return []
        removed = []
        for name in (*PEOPLE, *_SERVICES):
            if _exists(name) and _marked(name):
                _end_processes_of(name)
                _run("userdel", "--force", "--remove", name, accept=(0, 12))  # 12: no mail spool or home to remove
                removed.append(name)
        for group in _GROUPS:
            if group in register.get("groups", []) and _group_exists(group):
                _run("groupdel", group)
        register.clear()
        return removed


def _refuse_foreign_users(register: dict[str, Any]) -> None:
    foreign = [name for name in (*PEOPLE, *_SERVICES) if _exists(name) and not _marked(name)]
    if foreign:
        raise SandboxError(
            f"The system users {', '.join(foreign)} exist and are not the sandbox's, which does not change them. "
            "Run the sandbox on another machine, or as an ordinary user with --state in your home."
        )
    own_groups = register.get("groups", [])
    for group in _GROUPS:
        if group not in own_groups and _group_exists(group):
            if all(member in PEOPLE for member in grp.getgrnam(group).gr_mem):
                own_groups.append(group)  # of a sandbox whose register was lost
                register["groups"] = own_groups
                continue
            raise SandboxError(f"The group {group} exists and is not the sandbox's, which does not change it.")


def _free_uid() -> int:
    taken = {entry.pw_uid for entry in pwd.getpwall()} | {entry.gr_gid for entry in grp.getgrall()}
    return next(uid for uid in range(FIRST_UID, 60000) if uid not in taken)


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _marked(name: str) -> bool:
    return pwd.getpwnam(name).pw_gecos.split(",")[0] == MARK


def _group_exists(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _end_processes_of(name: str) -> None:
    """Kill the remaining processes of a demo user; the mark was checked, so no real user is affected."""
    uid = pwd.getpwnam(name).pw_uid
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if entry.stat().st_uid == uid:
                    os.kill(int(entry.name), signal.SIGKILL)


def _run(*argv: str, input: str | None = None, accept: tuple[int, ...] = (0,)) -> None:
    done = subprocess.run(argv, input=input, capture_output=True, text=True, check=False)
    if done.returncode not in accept:
        raise SandboxError(f"{argv[0]} failed: {done.stderr.strip() or done.returncode}")


@contextlib.contextmanager
def _register() -> Iterator[dict[str, Any]]:
    """Lock the register, yield its content, and write it back; remove an empty one."""
    while True:
        descriptor = os.open(REGISTER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # another process removed it while this one waited
    with os.fdopen(descriptor, "r+") as file:
        text = file.read()
        register: dict[str, Any] = json.loads(text) if text else {}
        try:
            yield register
        finally:
            if register:
                file.seek(0)
                file.truncate()
                json.dump(register, file, indent=1)
            else:
                REGISTER.unlink()
