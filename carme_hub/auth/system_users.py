"""What the machine's own user database says of a name: who it is, which groups, and whether the account is closed.

Blocking (NSS may ask LDAP): call it in a thread. A name that is absent may also mean that the directory is silent,
so absence refuses a login, and by itself never ends anything that runs.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import grp
import os
import pwd
import time
from dataclasses import dataclass

#: The kernel's and NFS's "nobody": a uid above 1000 that is no person.
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
    """Return the user of exactly that name, or of the system's own spelling of it; None when there is none."""
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
        # A colon cannot be in a group file; from a directory it could pose as one of our own groups.
        if ":" not in group:
            groups.append(group)
    return SystemUser(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_shell, tuple(groups))


def not_groups(names: list[str]) -> list[str]:
    """Return those names that no group of the system bears."""
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


def why_closed(name: str, now: float | None = None) -> str:
    """Return why the account is closed, as words after "the account is", or "" when it is open or cannot be told.

    Only root and the group shadow can tell.
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
    return closed_by(entry.password or b"", entry.expires, int((time.time() if now is None else now) // 86400))


def closed_by(password: bytes, expires: int, today: int) -> str:
    """Return what shadow(5)'s fields say: locked, expired, or "".

    Locked is ``passwd -l`` or ``usermod -L``: a mark before a password that is still there. A bare ``!`` or ``*`` is an
    account that never had a local password, as single sign-on makes them. Expired is the date of ``chage -E``, in days
    since 1970; -1 is none.
    """
    if password.startswith(b"!") and len(password.lstrip(b"!")) > 1:
        return "locked"
    return "expired" if 0 <= expires <= today else ""
