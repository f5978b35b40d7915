"""Open Carme Hub's own database (never JupyterHub's), with a check of its schema and its file mode.

SQLite runs in WAL mode with ``BEGIN IMMEDIATE``, so that check-and-write is atomic for every writer
(https://www.sqlite.org/lang_transaction.html); PostgreSQL uses row locks. The hub, the services and ``carme-hub`` call
``CarmeStore.open``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
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
from carme_hub.fencing import ticket_of

from .backup import copy_sqlite
from .lease.fence import check_acts, keep_out_late_writes
from .threads import THREAD_COUNT

#: A table of its own, so that a JupyterHub in the same PostgreSQL database does not find an unknown version.
VERSION_TABLE = "carme_alembic_version"
#: Execution option of a connection that only reads.
READ_ONLY = "carme_only_reads"
#: What each connection to SQLite has: commits survive a loss of power, and a writer waits for its turn.
SQLITE_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=30000")
#: PostgreSQL's advisory lock for changes of the schema: "carme" in ASCII.
_MIGRATION_LOCK = 0x6361726D65
#: Timeouts for a PostgreSQL that does not answer or is unreachable: in seconds, the last one in milliseconds.
_LIMITS = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
#: Run at each connection, since a pooler in front of PostgreSQL may refuse it as an option: limits each statement to
#: the time of a report over years, unless the site has set another limit.
_STATEMENT_LIMIT = """SELECT set_config('statement_timeout', '60s', false)
    WHERE current_setting('statement_timeout') = '0'"""
#: Seconds for which one of our threads waits for a connection; there is one for each thread.
_POOL_TIMEOUT = 10

#: Values in the IN list of one statement; SQLite accepts 32,766, PostgreSQL 65,535.
_CHUNK = 5000


class CarmeStore(LoggingConfigurable):
    """Carme Hub's own database: sessions, the ledger and the calendar."""

    url = Unicode(
        "sqlite:///carme-hub.sqlite",
        help="""SQLAlchemy URL of Carme Hub's own database; never JupyterHub's.

        The default is a file in the hub's working folder, created with mode 0600. For PostgreSQL (extra ``postgresql``)
        take the password from the environment or ``~/.pgpass``. A connection attempt fails after 5 seconds
        (``?connect_timeout=…`` in the URL), a statement after a minute (its role's ``statement_timeout``). Example::

            c.CarmeStore.url = "postgresql+psycopg://carme@db.example.org/carme"
        """,
    ).tag(config=True)
    upgrade = Bool(
        False,
        help="""Upgrade an older database when the hub starts, after a backup in the same folder (SQLite).

        By default the hub does not start with an older database, and asks to run ``carme-hub db upgrade``. A new, empty
        database is always initialized. Example::

            c.CarmeStore.upgrade = True
        """,
    ).tag(config=True)

    def open(self) -> Engine:
        """Return an engine on a database of this release's schema.

        In the hub of a site with two, and in its services, it changes nothing once the other hub is active.

        Raises:
            SchemaMismatch: the database has the schema of another release; the message says what to run.
            StoreError: it cannot be opened, or other users may read it.
        """
        engine = make_engine(self.url)
        if (ticket := ticket_of()) is not None:
            keep_out_late_writes(engine, ticket)  # first: an upgrade is a change, too
        try:
            self._check_schema(engine)
            self._check_mode(engine)
        except SQLAlchemyError as error:
            engine.dispose()
            raise StoreError(f"The database {make_url(self.url)!r} cannot be used: {error}") from error
        except StoreError:
            engine.dispose()
            raise
        if ticket is not None:
            check_acts(engine, ticket)
        return engine

    def _check_schema(self, engine: Engine) -> None:
        """Refuse or upgrade a database with another schema than this release's."""
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
            raise StoreError(f"Other users may read {path}: run chmod 600 {path}")


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Raise ``StoreError`` in place of a database's error; the text has no values of the statement."""
    try:
        yield
    except SQLAlchemyError as error:
        raise StoreError(f"{what}: {getattr(error, 'orig', None) or type(error).__name__}") from error


def make_engine(url: str) -> Engine:
    """Return an engine whose transactions on SQLite take the write lock at their start."""
    address = make_url(url)
    if address.get_backend_name() != "sqlite":
        return _on_server(address)
    memory = address.database in (None, "", ":memory:")
    if not memory:
        # Create the file here, so that it never exists with another mode.
        os.close(os.open(str(address.database), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    # One connection for a database in memory: a second one would be another, empty database.
    pool: dict[str, Any] = {"poolclass": StaticPool} if memory else {"poolclass": QueuePool, "pool_size": 2}
    engine = create_engine(address, connect_args={"check_same_thread": False, "timeout": 30}, **pool)

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver must not begin transactions itself
        for pragma in SQLITE_PRAGMAS:
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        # A reader sees one moment of the database, and waits for no writer.
        only_reads = connection.get_execution_options().get(READ_ONLY)
        connection.exec_driver_sql("BEGIN" if only_reads else "BEGIN IMMEDIATE")

    return engine


def _on_server(address: URL) -> Engine:
    pool_options = {"pool_size": THREAD_COUNT, "pool_timeout": _POOL_TIMEOUT, "pool_pre_ping": True}
    engine = create_engine(address, connect_args=connect_timeouts(address), **pool_options)

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_STATEMENT_LIMIT)
        connection.commit()

    return engine


def connect_timeouts(address: URL) -> dict[str, int]:
    """Return the timeouts for a PostgreSQL driver; values in the URL take precedence."""
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


@cache
def head_revision() -> str:
    """Return the schema that this release needs."""
    return ScriptDirectory.from_config(_alembic()).get_current_head() or ""


def knows_revision(revision: str) -> bool:
    """Return whether this release has a schema, as its own or as one that it upgrades."""
    return any(each.revision == revision for each in ScriptDirectory.from_config(_alembic()).walk_revisions())


def current_revision(engine: Engine) -> str | None:
    """Return the schema that the database has, None for an empty one."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        return context.get_current_revision()


def migrate(engine: Engine, revision: str = "head") -> None:
    """Migrate the database to a schema, by default this release's, in one transaction."""
    config = _alembic()
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")  # years of entries may take long
            # The hub and its services may open a new database at the same time; on SQLite BEGIN IMMEDIATE is enough.
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def backup(engine: Engine) -> Path | None:
    """Copy a SQLite database into its folder and return the copy; administrators back up other databases."""
    path = sqlite_file(engine)
    return copy_sqlite(path) if path is not None else None


def chunks(values: Iterable[Any]) -> Iterable[Sequence[Any]]:
    """Yield distinct values in parts that one statement accepts."""
    every = sorted(set(values))
    return (every[at : at + _CHUNK] for at in range(0, len(every), _CHUNK))
