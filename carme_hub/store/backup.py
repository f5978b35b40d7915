"""Back up a database of the hub: a consistent copy of a SQLite file, or a dump of PostgreSQL by its own programs.

``carme-hub backup``, ``carme-hub db backup`` and the upgrade of a database call this.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path

from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from carme_hub.errors import StoreError

#: Seconds after which a program of PostgreSQL is ended.
_DUMP_TIMEOUT = 6 * 3600


def is_sqlite(url: str) -> bool:
    """Return whether a URL is one of SQLite."""
    return make_url(url).get_backend_name() == "sqlite"


def is_postgresql(url: str) -> bool:
    """Return whether a URL is one of PostgreSQL."""
    return make_url(url).get_backend_name() == "postgresql"


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
    give_away(partial, owner.st_uid, owner.st_gid)
    _fsync(partial)


def give_away(path: Path, uid: int, gid: int, mode: int | None = None) -> None:
    """Give a file or folder to a user, where root does it, and set its mode.

    No link is followed: whose folder it is in can put one in its place, and would get the file that the link names.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if os.geteuid() == 0:
            os.fchown(descriptor, uid, gid)
        if mode is not None:
            os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


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
    file = target or Path(f"{make_url(url).database or ''}.{_now()}.dump")
    return ["pg_dump", "--format=custom", f"--file={file}", *_where(url)]


def restore_command(url: str, file: Path) -> list[str]:
    """Return the argv that restores a dump into a PostgreSQL database, completely or not at all."""
    words = ("--clean", "--if-exists", "--no-owner", "--exit-on-error", "--single-transaction")
    return ["pg_restore", *words, *_where(url), str(file)]


def _where(url: str) -> list[str]:
    address = make_url(url)
    host, port = address.query.get("host", address.host), address.query.get("port", address.port)
    known = {"host": host, "port": port, "username": address.username}
    return [*(f"--{word}={value}" for word, value in known.items() if value), f"--dbname={address.database or ''}"]


def dump_postgresql(url: str, target: Path) -> Path:
    """Dump a PostgreSQL database into a new file, mode 0600, and return it. The hub may run meanwhile.

    Raises:
        StoreError: pg_dump is missing, or fails; there is no file then.
    """
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        _run_postgresql(dump_command(url, target), url)
    except StoreError:
        target.unlink(missing_ok=True)
        raise
    return target


def restore_postgresql(url: str, file: Path) -> None:
    """Replace what a PostgreSQL database has by a dump, in one transaction.

    Raises:
        StoreError: pg_restore is missing, or fails; nothing is changed then.
    """
    _run_postgresql(restore_command(url, file), url)


def _run_postgresql(argv: list[str], url: str) -> None:
    """Run a program of PostgreSQL; it has the password in its environment alone."""
    program = shutil.which(argv[0])
    if program is None:
        raise StoreError(
            f"{argv[0]} is not on the PATH: install PostgreSQL's programs for clients (Debian: postgresql-client), of "
            "the server's release or a newer one"
        )
    address = make_url(url)
    environ = {name: value for name, value in os.environ.items() if name.startswith(("PG", "LC_", "LANG", "HOME"))}
    environ["PATH"] = os.environ.get("PATH", os.defpath)
    if address.password:
        environ["PGPASSWORD"] = str(address.password)
    for name in ("sslmode", "sslrootcert", "sslcert", "sslkey"):
        if isinstance(value := address.query.get(name), str):
            environ[f"PG{name.upper()}"] = value
    try:
        done = subprocess.run(
            [program, *argv[1:], "--no-password"],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_DUMP_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"{argv[0]} for {shown_url(url)} did not end: {error}") from None
    if done.returncode:
        said = " ".join(done.stderr.split())[:500]
        raise StoreError(f"{argv[0]} for {shown_url(url)} failed: {said or f'exit status {done.returncode}'}")


def shown_url(url: str) -> str:
    """Return a URL without its password."""
    return make_url(url).render_as_string(hide_password=True)


def schema_of(url: str, table: str) -> str:
    """Return the schema that a database has by a version table of alembic, "" where it is empty; write nothing.

    Raises:
        StoreError: it cannot be read.
    """
    file = database_file(url)
    if file is not None and not file.is_file():
        return ""
    engine = create_engine(url, poolclass=NullPool)
    if file is not None:
        where = f"{file.absolute().as_uri()}?mode=ro"
        engine = create_engine(
            "sqlite://", creator=lambda: sqlite3.connect(where, uri=True, timeout=30), poolclass=NullPool
        )
    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table(table):
                return ""
            found = connection.execute(text(f"SELECT version_num FROM {table}")).scalar()  # noqa: S608  ours
            return str(found or "")
    except SQLAlchemyError as error:
        raise StoreError(f"The database {shown_url(url)} cannot be read: {error}") from error
    finally:
        engine.dispose()


def _now() -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
