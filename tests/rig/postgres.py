"""A separate PostgreSQL for tests: in a temporary folder, on a unix socket, removed afterwards.

It starts once per test session and process; every test gets its own database, copied from a migrated one, which takes
a few hundredths of a second.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from carme_hub.store.engine import CarmeStore

#: The apt package that brings initdb and pg_ctl; named in sandbox/apt-packages.txt.
PACKAGE = "postgresql"
#: The system account of that package; PostgreSQL does not run as root.
ACCOUNT = "postgres"
_TEMPLATE = "carme_template"


class PostgresMissing(Exception):
    """The package is not installed; the message says so."""


def programs() -> Path:
    """Return the folder of initdb and pg_ctl, of the newest release that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        raise PostgresMissing(f"These tests need PostgreSQL: apt-get install {PACKAGE} (make setup does it)")
    return found[-1].parent


class Postgres:
    """One running server.

    Args:
        folder: the folder of its files and its socket, which belongs to its account.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = count(1)

    def url(self, database: str) -> str:
        """Return the SQLAlchemy address of a database."""
        return f"postgresql+psycopg://{ACCOUNT}@/{database}?host={self.folder}"

    def prepare(self) -> None:
        """Create the database that the others are copied from."""
        self._execute(f"CREATE DATABASE {_TEMPLATE}")
        CarmeStore(url=self.url(_TEMPLATE)).open().dispose()

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the address of a new database with our schema, and drop it afterwards."""
        name = f"test_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
        try:
            yield self.url(name)
        finally:
            self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _execute(self, statement: str) -> None:
        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            connection.execute(text(statement))


@contextmanager
def postgres(*, durable: bool = False) -> Iterator[Postgres]:
    """Start a server, and stop and remove it at the end.

    Args:
        durable: wait for the disk at each commit, as a site's server does.

    Raises:
        PostgresMissing: there is no such package on this machine.
    """
    bin = programs()
    # Not below pytest's folder: others may not enter that, and a socket's path has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="carme-pg-"))
    try:
        if os.getuid() == 0:
            owner = pwd.getpwnam(ACCOUNT)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        data, log = folder / "data", folder / "log"
        _run(folder, bin / "initdb", "-D", data, "-U", ACCOUNT, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": folder,
            "unix_socket_permissions": "0777",
            "fsync": "on" if durable else "off",
            "shared_buffers": "256MB" if durable else "64MB",
            "max_connections": "200",
        }
        options = " ".join(f"-c {name}={str(value) or chr(39) * 2}" for name, value in settings.items())
        _run(folder, bin / "pg_ctl", "start", "-D", data, "-w", "-l", log, "-o", options)
        try:
            folder.chmod(0o755)
            server = Postgres(folder)
            server.prepare()
            yield server
        finally:
            _run(folder, bin / "pg_ctl", "stop", "-D", data, "-w", "-m", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path, *argv: object) -> None:
    identity = {"user": ACCOUNT, "group": ACCOUNT, "extra_groups": []} if os.getuid() == 0 else {}
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        **identity,
    )
    if done.returncode:
        raise RuntimeError(f"{argv[0]} ended with {done.returncode}: {done.stdout}")
