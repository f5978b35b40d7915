"""The state of the code of a run: its Git commit, what was changed since, and the packages of its Python."""

from __future__ import annotations

import hashlib
import os
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

#: The most bytes of a diff and of a copied script, and the most names of new files.
MAX_DIFF_BYTES, MAX_SCRIPT_BYTES, MAX_NAMES = 4 << 20, 1 << 20, 100
#: Seconds for one command of Git: a home may be slow, and a record is no reason to wait.
GIT_TIMEOUT = 10.0


def git_state(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return the state of a folder's Git repository, and the diff of its files to the commit; ({}, b"") without one.

    The state has ``folder`` (of the repository), ``commit``, ``branch``, ``remote`` (without a password), ``changed``
    (names of changed and new files), and ``diff_cut``, where the diff is not all of it.
    """
    top = _git(folder, "rev-parse", "--show-toplevel").decode(errors="replace").strip()
    if not top:
        return {}, b""
    there = Path(top)
    names = [each for each in _git(there, "status", "--porcelain", "-z").decode(errors="replace").split("\0") if each]
    diff = _git(there, "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")
    state = {
        "folder": top,
        "commit": _git(there, "rev-parse", "--verify", "-q", "HEAD").decode().strip(),
        "branch": _git(there, "symbolic-ref", "--short", "-q", "HEAD").decode(errors="replace").strip(),
        "remote": without_password(_git(there, "remote", "get-url", "origin").decode(errors="replace").strip()),
        "changed": [each[3:] for each in names[:MAX_NAMES]],
        "diff_cut": len(diff) > MAX_DIFF_BYTES,
    }
    return state, diff[:MAX_DIFF_BYTES]


def _git(folder: Path, *words: str) -> bytes:
    """Return what a command of Git prints; b"" where it fails, or there is no Git."""
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
            timeout=GIT_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout if done.returncode == 0 else b""


def without_password(address: str) -> str:
    """Return the address of a repository without what logs in."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    if not parts.scheme or "@" not in parts.netloc:
        return address
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def packages() -> dict[str, str]:
    """Return the versions of this Python's packages, by name; the first of several counts, as for an import."""
    found: dict[str, str] = {}
    for each in metadata.distributions():
        name = each.metadata["Name"]  # None where a file is damaged
        if name and each.version:
            found.setdefault(str(name).lower().replace("_", "-"), str(each.version))
    return dict(sorted(found.items()))


def digest(text: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(text).hexdigest()
