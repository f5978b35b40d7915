"""Look-ups in the machine's user database: a user, the user's groups, and whether the account is closed.

The authenticator calls it, in a thread, since it blocks (NSS may ask LDAP). A missing name may also mean that the
directory does not answer, so it refuses a login, and never ends a running server by itself.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import grp
import os
import pwd
import time
from dataclasses import dataclass

#: uid of "nobody" in the kernel and NFS: it is above 1000 and no person.
NOBODY = 65534


@dataclass(frozen=True, slots=True)
class SystemUser:
    """One user of the system. ``groups``: names of all groups, the primary one first."""

    name: str
    uid: int
    gid: int
    shell: str
    groups: tuple[str, ...]


def look_up(name: str) -> SystemUser | None:
    """Return the user of exactly that name, or of the system's own spelling of it; None if there is none."""
    if not name or "\0" in name:
        return None
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, UnicodeEncodeError):
        return None
    groups: list[str] = []
    for gid in dict.fromkeys((entry.pw_gid, *os.getgrouplist(entry.pw_name, entry.pw_gid))):
        try:
            group = grp.getgrgid(gid).gr_name
        except KeyError:
            continue
        # A group file cannot contain a colon; a directory could, and its group would look like one of the hub's own.
        if ":" not in group:
            groups.append(group)
    return SystemUser(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_shell, tuple(groups))


def names_without_group(names: list[str]) -> list[str]:
    """Return those names that are no groups of the system."""
    found = []
    for name in names:
        try:
            grp.getgrnam(name)
        except (KeyError, ValueError):
            found.append(name)
    return found


class _Shadow(ctypes.Structure):
    """struct spwd of shadow.h."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("password", ctypes.c_char_p),
        ("changed", ctypes.c_long),
        ("minimum", ctypes.c_long),
        ("maximum", ctypes.c_long),
        ("warning", ctypes.c_long),
        ("inactive", ctypes.c_long),
        ("expires", ctypes.c_long),
        ("flag", ctypes.c_ulong),
    ]


def closed_reason(name: str, now: float | None = None) -> str:
    """Return why the account is closed, to follow "the account is"; "" if it is open or unknown.

    Only root and members of the group shadow can read it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    getspnam_r = getattr(libc, "getspnam_r", None)
    if getspnam_r is None or "\0" in name:
        return ""
    entry, buffer, found = _Shadow(), ctypes.create_string_buffer(16384), ctypes.POINTER(_Shadow)()
    status = getspnam_r(
        os.fsencode(name), ctypes.byref(entry), buffer, ctypes.c_size_t(len(buffer)), ctypes.byref(found)
    )
    if status != 0 or not found:
        return ""
    return closed_reason_from(entry.password or b"", entry.expires, int((time.time() if now is None else now) // 86400))


def closed_reason_from(password: bytes, expires: int, today: int) -> str:
    """Return the status by shadow(5)'s fields: locked, expired, or "".

    Locked is ``passwd -l`` or ``usermod -L``: a ``!`` before a password that is still there. A single ``!`` or ``*`` is
    an account that never had a local password, as single sign-on creates them. Expired is the date of ``chage -E``, in
    days since 1970; -1 is none.
    """
    if password.startswith(b"!") and len(password.lstrip(b"!")) > 1:
        return "locked"
    return "expired" if 0 <= expires <= today else ""
