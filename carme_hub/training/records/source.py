"""The state of the code of a run: its Git commit, what was changed since, and the packages of its Python."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

#: The most bytes of a diff and of a copied script, and the most names of new files.
MAX_DIFF_BYTES, MAX_SCRIPT_BYTES, MAX_NAMES = 4 << 20, 1 << 20, 100
#: The most bytes of what another command of Git prints.
MAX_OUTPUT_BYTES = 16 << 20
#: Seconds for all commands of Git: a home may be slow, and a record is no reason to wait.
GIT_TIMEOUT = 20.0


def git_state(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return the state of a folder's Git repository, and the diff of its files to the commit; ({}, b"") without one.

    The state has ``folder`` (of the repository), ``commit``, ``branch``, ``remote`` (without a password), ``changed``
    (names of changed and new files; None = unknown, since Git was too slow or the repository is a whole home), and
    ``diff_cut``, where the diff is not all of it.
    """
    git = _Git(folder)
    top = git.line("rev-parse", "--show-toplevel")
    if not top:
        return {}, b""
    git.folder = Path(top)
    state: dict[str, Any] = {
        "folder": top,
        "commit": git.line("rev-parse", "--verify", "-q", "HEAD"),
        "branch": git.line("symbolic-ref", "--short", "-q", "HEAD"),
        "remote": without_password(git.line("remote", "get-url", "origin")),
        "changed": None,
        "diff_cut": False,
    }
    if git.folder == Path.home():  # to look through all files of a home would take minutes
        return state, b""
    status = git.run("status", "--porcelain", "-z")
    diff = (
        git.run("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv", most=MAX_DIFF_BYTES)
        if state["commit"]
        else b""
    )
    if status is None or diff is None:
        return state, b""
    return state | {"changed": _names(status)[:MAX_NAMES], "diff_cut": len(diff) > MAX_DIFF_BYTES}, diff[
        :MAX_DIFF_BYTES
    ]


def _names(status: bytes) -> list[str]:
    """Return the names in what ``git status --porcelain -z`` prints; after a renamed file comes its old name."""
    found, words = [], iter(status.decode(errors="replace").split("\0"))
    for word in words:
        if word:
            found.append(word[3:])
            if "R" in word[:2] or "C" in word[:2]:
                next(words, None)
    return found


class _Git:
    """Runs commands of Git, all of them together in a limited time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._until = time.monotonic() + GIT_TIMEOUT

    def line(self, *words: str) -> str:
        """Return the line that a command prints; "" where it fails."""
        return (self.run(*words) or b"").decode(errors="replace").strip()

    def run(self, *words: str, most: int = MAX_OUTPUT_BYTES) -> bytes | None:
        """Return what a command prints, a byte more than ``most`` at most; None where it fails."""
        environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"}
        try:
            process = subprocess.Popen(
                ["git", "-C", str(self.folder), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environ,
            )
        except OSError:
            return None
        with process:
            timer = threading.Timer(max(0.0, self._until - time.monotonic()), process.kill)
            timer.start()
            try:
                printed = process.stdout.read(most + 1) if process.stdout else b""
                if len(printed) > most:
                    process.kill()
                    return printed
                return printed if process.wait() == 0 else None
            finally:
                timer.cancel()


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
        # To parse all of each description takes a hundred times as long.
        fields = (each.read_text("METADATA") or each.read_text("PKG-INFO") or "").partition("\n\n")[0]
        name, version = (re.search(rf"^{field}: *(\S+)", fields, re.MULTILINE) for field in ("Name", "Version"))
        if name and version:  # a file may be damaged
            found.setdefault(name[1].lower().replace("_", "-"), version[1])
    return dict(sorted(found.items()))


def digest(text: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(text).hexdigest()
