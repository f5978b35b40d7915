"""Checks of files with secrets: the hub does not start if anybody but their owner can read them.

A file of mode 0644 in a folder of mode 0700 is safe, so the check is whether others can reach the file. The
authenticator, ``carme_hub.config`` and ``carme-hub doctor`` call it.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

from jupyterhub import orm

from carme_hub.errors import ConfigError


def exposure(path: Path, *, any_owner: bool = False) -> str:
    """Return why others can use a file with secrets, with the command that corrects it; "" if they cannot.

    Args:
        any_owner: check the mode only, for a process that is not the hub.
    """
    path = path.resolve()
    try:
        status = path.stat()
    except FileNotFoundError:
        return ""
    except PermissionError:
        return "" if any_owner else f"the hub's user cannot read the status of {path}"
    if not any_owner and status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to another user; run: chown {_me()} {path}"
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077 and all(_is_traversable(folder) for folder in path.parents):
        return f"{path} has mode {mode:04o}, so others can use it; run: chmod {mode & 0o700:o} {path}"
    return ""


def check_private(path: Path, what: str, *, any_owner: bool = False) -> None:
    """Raise ``ConfigError`` if others can use the file; a missing file is no error."""
    wrong = exposure(path, any_owner=any_owner)
    if wrong:
        raise ConfigError(f"{what}: {wrong}")


def read_secret(path: Path, what: str, *, any_owner: bool = False) -> str:
    """Return the one line of a secret's file; raise ``ConfigError`` if it is missing, empty or open to others."""
    check_private(path, what, any_owner=any_owner)
    try:
        secret = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what}: {path} cannot be read: {error}") from error
    if not secret:
        raise ConfigError(f"{what}: {path} is empty")
    return secret


def sqlite_file(url: str) -> Path | None:
    """Return the file of an SQLite URL; None for another database or one in memory."""
    if "://" not in url:
        url = "sqlite:///" + url
    found = re.match(r"sqlite(?:\+\w+)?:///([^?]+)", url)
    return Path(found[1]) if found and found[1] != ":memory:" else None


def hub_files(app: Any) -> dict[str, Path]:
    """Return the files of a hub with secrets, by the setting that names them."""
    files = {"JupyterHub.cookie_secret_file": Path(app.cookie_secret_file).expanduser()}
    database = sqlite_file(app.db_url)
    if database is not None:
        for suffix in ("", "-wal", "-journal"):
            files[f"JupyterHub.db_url{suffix}"] = database.with_name(database.name + suffix)
    if app.internal_ssl:
        certificates = Path(app.internal_certs_location)
        for key in sorted(certificates.glob("*/*.key")):
            files[f"JupyterHub.internal_certs_location, {key.parent.name}"] = key
    return files


def check_hub_files(app: Any) -> None:
    """Raise ``ConfigError`` if others can use the hub's secrets; a new database gets mode 0600 instead."""
    database = sqlite_file(app.db_url)
    if database is not None and exposure(database) and app.db.query(orm.User).first() is None:
        database.chmod(0o600)
    for what, path in hub_files(app).items():
        check_private(path, what)


def _is_traversable(folder: Path) -> bool:
    try:
        return bool(folder.stat().st_mode & 0o011)
    except PermissionError:
        return False


def _me() -> str:
    return str(os.geteuid())
