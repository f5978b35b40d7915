"""What an upgrade would do to a database, found out without writing to it. ``carme-hub upgrade --check`` calls this."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util import CommandError
from sqlalchemy import Engine, create_engine, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from carme_hub.errors import StoreError

from .backup import database_file
from .engine import VERSION_TABLE, connect_timeouts

#: The folder of our own migrations.
OUR_MIGRATIONS = Path(__file__).parent / "migrations"


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of a database, against that of a release.

    Attributes:
        have: its revision, "" for none yet. want: the release's.
        steps: revision and purpose of each step in between, in the order in which they run.
        known: False if ``have`` is a revision of a later release.
    """

    have: str
    want: str
    steps: tuple[tuple[str, str], ...] = ()
    known: bool = True


def schema(url: str, migrations: Path = OUR_MIGRATIONS, version_table: str = VERSION_TABLE) -> Schema:
    """Return the schema of a database; raise ``StoreError`` where it cannot be read."""
    scripts = ScriptDirectory(str(migrations))
    want = scripts.get_current_head() or ""
    engine = _reader(url)
    if engine is None:
        return Schema("", want)
    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table(version_table):
                return Schema("", want)
            have = str(connection.execute(text(f"SELECT version_num FROM {version_table}")).scalar() or "")  # noqa: S608
    except SQLAlchemyError as error:
        raise StoreError(f"The database {make_url(url)!r} cannot be read: {error}") from error
    finally:
        engine.dispose()
    try:
        ahead = [each for each in scripts.iterate_revisions("head", have or "base") if each.revision != have]
    except (CommandError, RevisionError):  # which of them depends on the release of alembic
        return Schema(have, want, known=False)
    return Schema(have, want, tuple((each.revision, _purpose(each.doc)) for each in reversed(ahead)))


def open_sessions(url: str) -> int:
    """Return how many sessions and companions have not ended, in a database of any release; 0 if there is none."""
    engine = _reader(url)
    if engine is None:
        return 0
    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table("session"):
                return 0
            return int(connection.execute(text("SELECT count(*) FROM session WHERE state <> 'ended'")).scalar() or 0)
    except SQLAlchemyError as error:
        raise StoreError(f"The database {make_url(url)!r} cannot be read: {error}") from error
    finally:
        engine.dispose()


def _reader(url: str) -> Engine | None:
    """Return an engine that writes nothing, None where there is no database file yet."""
    file = database_file(url)
    if file is None:
        limits = connect_timeouts(make_url(url))
        options = {"postgresql_readonly": True}
        return create_engine(url, poolclass=NullPool, connect_args=limits, execution_options=options)
    if not file.is_file():
        return None
    where = f"{file.absolute().as_uri()}?mode=ro"
    return create_engine("sqlite://", creator=lambda: sqlite3.connect(where, uri=True, timeout=30), poolclass=NullPool)


def _purpose(doc: str | None) -> str:
    return (doc or "").strip().partition("\n")[0].rstrip(".")
