"""Check the integrity of our own database, read-only, also while the hub runs. ``carme-hub db check`` calls this."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, and_, create_engine, func, inspect, or_, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from carme_hub.domain.calendar.reservations import HOLDING, stem_of_id
from carme_hub.domain.ledger.entries import SLOT_PREFIX, Kind
from carme_hub.errors import StoreError
from carme_hub.store.ledger.sums import differences

from .backup import database_file
from .engine import connect_timeouts, current_revision, head_revision
from .tables import ledger, metadata, open_hold
from .tables import reservation as reservations
from .tables import session as sessions

#: Seconds after which a hold without a session row is an error: the hub writes the row right after the hold.
_ROW_AFTER = 600
#: Seconds after its last transition for which an ended reservation may still have a hold: it is settled together with
#: its sessions, or ten minutes later.
_SETTLED_AFTER = 1800
_SQLITE_TRIGGERS = {"ledger_no_UPDATE", "ledger_no_DELETE", "ledger_hold", "ledger_release", "ledger_sums"}
_POSTGRESQL_TRIGGERS = {"ledger_append_only", "ledger_holds", "ledger_sums"}
#: How many names a message lists.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check: its name, whether it passed, and what was found, as text."""

    name: str
    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class Sum:
    """All entries of one kind: their number, and their sum in milli-GPU-seconds."""

    cluster: str
    kind: str
    entries: int
    amount: int


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The results of all checks. ``sums`` is empty if the schema is not this release's."""

    results: tuple[CheckResult, ...]
    sums: tuple[Sum, ...] = ()

    @property
    def passed(self) -> bool:
        """Return whether all checks passed."""
        return all(each.passed for each in self.results)


@dataclass(frozen=True, slots=True)
class DatabaseOverview:
    """What a database is: its kind, its schema and that of this release, and how many rows our tables have in it."""

    kind: str
    schema: str | None
    wanted_schema: str
    rows: Mapping[str, int]


def check(url: str) -> CheckReport:
    """Check a database without writing to it.

    Raises:
        StoreError: the database does not exist, or cannot be opened.
    """
    engine = open_read_only(url)
    try:
        have, want = current_revision(engine), head_revision()
        message = (
            f"schema {have}" if have == want else f"schema {have}, this release needs {want}: carme-hub db upgrade"
        )
        results = [CheckResult("schema", have == want, message)]
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                results.append(_integrity(connection))
            if have != want:
                return CheckReport(tuple(results))
            results += _ledger(connection)
            return CheckReport(tuple(results), tuple(_sums(connection)))
    except SQLAlchemyError as error:
        raise StoreError(f"The database {make_url(url)!r} cannot be read: {error}") from error
    finally:
        engine.dispose()


def overview(url: str) -> DatabaseOverview:
    """Return the schema and the size of a database, also of one of another release.

    Raises:
        StoreError: the database does not exist, or cannot be read.
    """
    engine = open_read_only(url)
    try:
        rows: dict[str, int] = {}
        with engine.connect() as connection:
            for name in sorted(inspect(connection).get_table_names()):
                if name in metadata.tables:
                    count = select(func.count()).select_from(metadata.tables[name])
                    rows[name] = int(connection.execute(count).scalar_one())
        return DatabaseOverview(engine.dialect.name, current_revision(engine), head_revision(), rows)
    except SQLAlchemyError as error:
        raise StoreError(f"The database {make_url(url)!r} cannot be read: {error}") from error
    finally:
        engine.dispose()


def reservation_stems(url: str, cluster: str) -> frozenset[str]:
    """Return the beginnings of the names in Slurm of all reservations that a cluster ever had, without writing.

    Raises:
        StoreError: the database does not exist, or cannot be read.
    """
    engine = open_read_only(url)
    try:
        with engine.connect() as connection:
            ids = connection.execute(select(reservations.c.id).where(reservations.c.cluster == cluster)).scalars()
            return frozenset(stem_of_id(id) for id in ids)
    except SQLAlchemyError as error:
        raise StoreError(f"The database {make_url(url)!r} cannot be read: {error}") from error
    finally:
        engine.dispose()


def open_read_only(url: str) -> Engine:
    """Return an engine that cannot write, and creates and upgrades nothing; the caller disposes of it.

    Raises:
        StoreError: there is no such SQLite file.
    """
    file = database_file(url)
    if file is None:
        only_reads = {"postgresql_readonly": True}
        limits = connect_timeouts(make_url(url))
        return create_engine(url, poolclass=NullPool, connect_args=limits, execution_options=only_reads)
    if not file.is_file():
        raise StoreError(f"There is no database {file}")
    where = f"{file.absolute().as_uri()}?mode=ro"
    return create_engine("sqlite://", creator=lambda: sqlite3.connect(where, uri=True, timeout=30), poolclass=NullPool)


def _integrity(connection: Connection) -> CheckResult:
    rows = [str(row[0]) for row in connection.execute(text("PRAGMA integrity_check(10)"))]
    return CheckResult("integrity", rows == ["ok"], "; ".join(rows))


def _sums(connection: Connection) -> Iterator[Sum]:
    columns = (ledger.c.cluster, ledger.c.kind)
    query = select(*columns, func.count(), func.sum(ledger.c.amount)).group_by(*columns).order_by(*columns)
    for cluster, kind, entries, amount in connection.execute(query):
        yield Sum(cluster, kind, entries, int(amount))


def _ledger(connection: Connection) -> Iterator[CheckResult]:
    held, released = _holds(Kind.HOLD), _holds(Kind.RELEASE)
    mismatched = (
        select(released.c.session)
        .outerjoin(held, and_(held.c.session == released.c.session, held.c.cluster == released.c.cluster))
        .where(
            or_(held.c.amount.is_(None), held.c.amount + released.c.amount != 0, held.c.account != released.c.account)
        )
    )
    yield _none(connection, "releases", mismatched, "every release matches its holds", "releases without their holds")
    written, open_ = (
        select(ledger.c.session)
        .where(ledger.c.kind == Kind.HOLD.value, ledger.c.session.not_in(select(released.c.session)))
        .where(ledger.c.id.not_in(select(open_hold.c.entry))),
        select(open_hold.c.session)
        .outerjoin(ledger, and_(ledger.c.id == open_hold.c.entry, ledger.c.kind == Kind.HOLD.value))
        .where(or_(ledger.c.id.is_(None), open_hold.c.session.in_(select(released.c.session)))),
    )
    lost = written.union(open_)
    yield _none(connection, "open holds", lost, "the list of open holds is correct", "holds that are listed wrongly")
    without_row = (
        select(open_hold.c.session)
        .join(ledger, ledger.c.id == open_hold.c.entry)
        .outerjoin(sessions, sessions.c.id == open_hold.c.session)
        .where(sessions.c.id.is_(None), ledger.c.at < time.time() - _ROW_AFTER, ~ledger.c.key.startswith(SLOT_PREFIX))
        .distinct()
    )
    good = "every session that holds GPU time has its row"
    yield _none(
        connection, "sessions", without_row, good, "sessions that hold GPU time without a row (settling releases it)"
    )
    stands = [state.value for state in HOLDING]
    settled = and_(reservations.c.state.not_in(stands), reservations.c.changed < time.time() - _SETTLED_AFTER)
    over = (
        select(open_hold.c.session)
        .join(ledger, ledger.c.id == open_hold.c.entry)
        .outerjoin(reservations, reservations.c.id == open_hold.c.session)
        .where(ledger.c.key.startswith(SLOT_PREFIX), or_(reservations.c.id.is_(None), settled))
        .distinct()
    )
    good = "every reservation that holds GPU time is current or in the future"
    yield _none(connection, "reservations", over, good, "reservations that are over or unknown and hold GPU time")
    wrong = differences(connection)
    bad = "sums that differ from their entries, in milli-GPU-seconds (carme-hub db sum recomputes them)"
    message = f"{bad}: {', '.join(map(str, wrong))}" if wrong else "every stored sum equals the sum of its entries"
    yield CheckResult("sums", not wrong, message)
    missing = sorted(_triggers(connection))
    message = f"missing or switched off: {', '.join(missing)}" if missing else "the ledger can only be added to"
    yield CheckResult("triggers", not missing, message)


def _holds(kind: Kind) -> Any:
    """Return the sums of one kind by session."""
    columns = (ledger.c.cluster, ledger.c.session, ledger.c.account)
    query = select(*columns, func.sum(ledger.c.amount).label("amount")).where(ledger.c.kind == kind.value)
    return query.group_by(*columns).subquery()


def _none(connection: Connection, name: str, query: Any, good: str, bad: str) -> CheckResult:
    found = sorted(connection.execute(query).scalars())
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return CheckResult(name, not found, f"{bad}: {', '.join(found[:_NAMED])}{more}" if found else good)


def _triggers(connection: Connection) -> set[str]:
    """Return the names of missing triggers."""
    if connection.dialect.name == "sqlite":
        query = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'ledger'"
        return _SQLITE_TRIGGERS - set(connection.execute(text(query)).scalars())
    query = "SELECT tgname FROM pg_trigger WHERE tgrelid = 'ledger'::regclass AND tgenabled IN ('O', 'A')"
    return _POSTGRESQL_TRIGGERS - set(connection.execute(text(query)).scalars())
