"""Back up our own database: a consistent copy of a SQLite file, or the command for PostgreSQL.

``carme-hub db backup`` and the upgrade of a database call this.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path

from sqlalchemy.engine import make_url

from carme_hub.errors import StoreError


def is_sqlite(url: str) -> bool:
    """Return whether a URL is one of SQLite."""
    return make_url(url).get_backend_name() == "sqlite"


def database_file(url: str) -> Path | None:
    """Return the file of a SQLite URL, None for any other."""
    name = make_url(url).database
    return Path(name) if is_sqlite(url) and name not in (None, "", ":memory:") else None


def copy_sqlite(source: Path, target: Path | None = None) -> Path:
    """Copy a SQLite database as of one moment, and return the copy: a single file, mode 0600.

    The hub may run meanwhile. The copy belongs to the owner of the database, so that the hub's user can use a copy made
    by root. It is complete or does not exist.

    Args:
        target: the default is in the folder of the database, with the time (UTC) in its name.

    Raises:
        StoreError: the copy cannot be written, exists already, or the database is damaged.
    """
    wanted = target if target is not None else source.with_name(f"{source.name}.{_now()}")
    partial = wanted.with_name(f".{wanted.name}.{os.getpid()}.half")
    try:
        try:
            _copy(source, partial)
            copy = _link(partial, wanted, numbered=target is None)
        finally:
            partial.unlink(missing_ok=True)
        _fsync(copy.parent)
    except FileExistsError as error:
        raise StoreError(f"{wanted} exists already; name another file") from error
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{source} cannot be copied to {wanted}: {error}") from error
    return copy


def _copy(source: Path, partial: Path) -> None:
    owner = source.stat()
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with (
        contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True, timeout=30)) as here,
        contextlib.closing(sqlite3.connect(partial)) as there,
    ):
        here.backup(there)  # in one step: a copy of one moment, and in WAL mode no writer waits for it
        there.execute("PRAGMA journal_mode=DELETE").fetchone()
        (verdict,) = there.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise StoreError(f"{source} is damaged: {verdict}")
    if os.geteuid() == 0:
        os.chown(partial, owner.st_uid, owner.st_gid)
    _fsync(partial)


def _link(partial: Path, wanted: Path, *, numbered: bool) -> Path:
    """Link a copy to its name, or (``numbered``) to a free one like it. A rename would replace an existing copy."""
    copy, number = wanted, 1
    while True:
        try:
            os.link(partial, copy)
        except FileExistsError:
            if not numbered:
                raise
            copy, number = wanted.with_name(f"{wanted.name}-{number + 1}"), number + 1
        else:
            return copy


def dump_command(url: str, target: Path | None = None) -> list[str]:
    """Return the argv that backs up a PostgreSQL database. The password is not in it, but in ~/.pgpass."""
    address = make_url(url)
    host, port = address.query.get("host", address.host), address.query.get("port", address.port)
    name = str(address.database or "")
    file = target or Path(f"{name}.{_now()}.dump")
    known = {"host": host, "port": port, "username": address.username}
    words = [f"--{word}={value}" for word, value in known.items() if value]
    return ["pg_dump", "--format=custom", f"--file={file}", *words, f"--dbname={name}"]


def _now() -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
