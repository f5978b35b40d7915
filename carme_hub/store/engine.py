"""One database of our own, never the hub's: opened with a gate on its schema, and private to the hub's user.

SQLite runs in WAL mode with ``BEGIN IMMEDIATE``, so that check-and-write is one step for every writer
(https://www.sqlite.org/lang_transaction.html); PostgreSQL takes its row locks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool, StaticPool
from traitlets import Bool, Unicode
from traitlets.config import LoggingConfigurable

from carme_hub.errors import SchemaMismatch, StoreError

from .backup import copy_sqlite
from .threads import COUNT

#: A table of its own, so that a hub sharing the PostgreSQL database does not stop at a version it does not know.
VERSION_TABLE = "carme_alembic_version"
#: Execution option of a connection that writes nothing.
ONLY_READS = "carme_only_reads"
#: PostgreSQL's advisory lock for who changes the schema: "carme" in ASCII.
_MIGRATING = 0x6361726D65
#: How long a PostgreSQL that is silent, or is gone from the network, is waited for: seconds, the last milliseconds.
_LIMITS = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
#: Asked at each connection, since a pooler between us and PostgreSQL may refuse it as an option: no question takes
#: longer than a report of years does, where the site has set no other limit.
_STATEMENT_LIMIT = """SELECT set_config('statement_timeout', '60s', false)
    WHERE current_setting('statement_timeout') = '0'"""
#: Seconds for which one of our threads waits for a connection; there are enough for all of them.
_POOL_TIMEOUT = 10

#: Values asked for by name in one statement; SQLite takes 32,766, PostgreSQL 65,535.
_CHUNK = 5000


class CarmeStore(LoggingConfigurable):
    """Where Carme Hub keeps sessions (and later the ledger and the calendar)."""

    url = Unicode(
        "sqlite:///carme-hub.sqlite",
        help="""SQLAlchemy address of Carme Hub's own database; never the hub's own.

        The default is a file in the hub's working folder, created with mode 0600. For PostgreSQL (extra ``postgresql``)
        take the password from the environment or ``~/.pgpass``. One that is silent is given up after 5 seconds
        (``?connect_timeout=…`` in the address), a question after a minute (its role's ``statement_timeout``). Example::

            c.CarmeStore.url = "postgresql+psycopg://carme@db.example.org/carme"
        """,
    ).tag(config=True)
    upgrade = Bool(
        False,
        help="""Upgrade an older database when the hub starts, after a backup beside it (SQLite).

        The default refuses to start with one, and says to run ``carme-hub db upgrade``. A new, empty database is
        always set up. Example::

            c.CarmeStore.upgrade = True
        """,
    ).tag(config=True)

    def open(self) -> Engine:
        """Return an engine on a database of this release's schema.

        Raises:
            SchemaMismatch: the database is of another release; the message says what to run.
            StoreError: it cannot be opened, or others may read it.
        """
        engine = make_engine(self.url)
        try:
            self._gate(engine)
            self._check_mode(engine)
        except SQLAlchemyError as error:
            engine.dispose()
            raise StoreError(f"The database {make_url(self.url)!r} cannot be used: {error}") from error
        except StoreError:
            engine.dispose()
            raise
        return engine

    def _gate(self, engine: Engine) -> None:
        """Let only a database of this release's schema in."""
        have, want = current_revision(engine), head_revision()
        if have is None:
            migrate(engine)
        elif have != want:
            if not self.upgrade:
                raise SchemaMismatch(
                    f"The database {make_url(self.url)!r} has schema {have}, this release needs {want}. "
                    "Stop the hub and run: carme-hub db upgrade"
                )
            backup(engine)
            migrate(engine)

    def _check_mode(self, engine: Engine) -> None:
        path = sqlite_file(engine)
        if path is not None and path.stat().st_mode & 0o077:
            raise StoreError(f"Others may read {path}: run chmod 600 {path}")


def make_engine(url: str) -> Engine:
    """Return an engine whose transactions on SQLite take the write lock at their start."""
    address = make_url(url)
    if address.get_backend_name() != "sqlite":
        return _on_server(address)
    memory = address.database in (None, "", ":memory:")
    if not memory:
        # Created here, so that the file never exists with another mode.
        os.close(os.open(str(address.database), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    # One connection for a database in memory: a second one would be another, empty database.
    pool: dict[str, Any] = {"poolclass": StaticPool} if memory else {"poolclass": QueuePool, "pool_size": 2}
    engine = create_engine(address, connect_args={"check_same_thread": False, "timeout": 30}, **pool)

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver must not begin transactions of its own
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=30000"):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        # Who only reads sees one moment of the database, and waits for no writer.
        only_reads = connection.get_execution_options().get(ONLY_READS)
        connection.exec_driver_sql("BEGIN" if only_reads else "BEGIN IMMEDIATE")

    return engine


def _on_server(address: URL) -> Engine:
    kept = {"pool_size": COUNT, "pool_timeout": _POOL_TIMEOUT, "pool_pre_ping": True}
    engine = create_engine(address, connect_args=patience(address), **kept)

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_STATEMENT_LIMIT)
        connection.commit()

    return engine


def patience(address: URL) -> dict[str, int]:
    """Return what a PostgreSQL driver is told of how long to wait; what the address says itself stands."""
    if not address.get_driver_name().startswith("psycopg"):
        return {}
    return {name: limit for name, limit in _LIMITS.items() if name not in address.query}


def sqlite_file(engine: Engine) -> Path | None:
    """Return the file of a SQLite database, None for any other."""
    name = engine.url.database
    if engine.url.get_backend_name() != "sqlite" or name in (None, "", ":memory:"):
        return None
    return Path(str(name))


def _alembic() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def head_revision() -> str:
    """Return the schema that this release needs."""
    return ScriptDirectory.from_config(_alembic()).get_current_head() or ""


def current_revision(engine: Engine) -> str | None:
    """Return the schema that the database has, None for an empty one."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        return context.get_current_revision()


def migrate(engine: Engine, revision: str = "head") -> None:
    """Bring the database to a schema, by default this release's, in one transaction."""
    config = _alembic()
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")  # years of entries may take their time
            # The hub and its services may find a new database at the same time; on SQLite BEGIN IMMEDIATE does it.
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATING})")
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def backup(engine: Engine) -> Path | None:
    """Copy a SQLite database beside itself and return the copy; other databases are the administrator's to back up."""
    path = sqlite_file(engine)
    return copy_sqlite(path) if path is not None else None


def chunks(values: Iterable[Any]) -> Iterable[Sequence[Any]]:
    """Yield values in parts that one statement takes, each once."""
    every = sorted(set(values))
    return (every[at : at + _CHUNK] for at in range(0, len(every), _CHUNK))
