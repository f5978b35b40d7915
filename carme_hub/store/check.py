"""Is our own database whole? Looked at read-only, while the hub runs or not."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, and_, create_engine, func, or_, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from carme_hub.domain.calendar.reservations import HOLDING, stem_of_id
from carme_hub.domain.ledger.entries import SLOT_PREFIX, Kind
from carme_hub.errors import StoreError
from carme_hub.store.ledger.sums import differences

from .backup import database_file
from .engine import current_revision, head_revision, patience
from .tables import ledger, open_hold
from .tables import reservation as reservations
from .tables import session as sessions

#: Seconds after which a hold without a session's row is odd: the hub writes the row right after the hold.
_ROW_AFTER = 600
#: Seconds after the change of its state for which a reservation that is over may still hold: it is settled when its
#: sessions are, or ten minutes later.
_SETTLED_AFTER = 1800
_SQLITE_TRIGGERS = {"ledger_no_UPDATE", "ledger_no_DELETE", "ledger_hold", "ledger_release", "ledger_sums"}
_POSTGRESQL_TRIGGERS = {"ledger_append_only", "ledger_holds", "ledger_sums"}
#: How many names a sentence holds.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing that was looked at: its name, whether it is as it should be, and what was seen, in words."""

    name: str
    good: bool
    says: str


@dataclass(frozen=True, slots=True)
class Sum:
    """All entries of one kind: how many, and their sum in milli-GPU-seconds."""

    cluster: str
    kind: str
    entries: int
    amount: int


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What came out. ``sums`` is empty where the schema is another than this release's."""

    looked: tuple[CheckResult, ...]
    sums: tuple[Sum, ...] = ()

    @property
    def good(self) -> bool:
        """Return whether everything is as it should be."""
        return all(each.good for each in self.looked)


def check(url: str) -> CheckReport:
    """Look at a database; nothing is written, whatever its state.

    Raises:
        StoreError: there is no such database, or it cannot be opened.
    """
    engine = _read_only(url)
    try:
        have, want = current_revision(engine), head_revision()
        says = f"schema {have}" if have == want else f"schema {have}, this release needs {want}: carme-hub db upgrade"
        looked = [CheckResult("schema", have == want, says)]
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                looked.append(_integrity(connection))
            if have != want:
                return CheckReport(tuple(looked))
            looked += _ledger(connection)
            return CheckReport(tuple(looked), tuple(_sums(connection)))
    except SQLAlchemyError as error:
        raise StoreError(f"The database {make_url(url)!r} cannot be read: {error}") from error
    finally:
        engine.dispose()


def reservation_stems(url: str, cluster: str) -> frozenset[str]:
    """Return what the names in Slurm of all reservations that a cluster ever had begin with; nothing is written.

    Raises:
        StoreError: there is no such database, or it cannot be read.
    """
    engine = _read_only(url)
    try:
        with engine.connect() as connection:
            ids = connection.execute(select(reservations.c.id).where(reservations.c.cluster == cluster)).scalars()
            return frozenset(stem_of_id(id) for id in ids)
    except SQLAlchemyError as error:
        raise StoreError(f"The database {make_url(url)!r} cannot be read: {error}") from error
    finally:
        engine.dispose()


def _read_only(url: str) -> Engine:
    file = database_file(url)
    if file is None:
        only_reads = {"postgresql_readonly": True}
        limits = patience(make_url(url))
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
    held, given = _holds(Kind.HOLD), _holds(Kind.RELEASE)
    odd = (
        select(given.c.session)
        .outerjoin(held, and_(held.c.session == given.c.session, held.c.cluster == given.c.cluster))
        .where(or_(held.c.amount.is_(None), held.c.amount + given.c.amount != 0, held.c.account != given.c.account))
    )
    yield _none(connection, "releases", odd, "every release gives back what was held", "releases without their holds")
    written, open_ = (
        select(ledger.c.session)
        .where(ledger.c.kind == Kind.HOLD.value, ledger.c.session.not_in(select(given.c.session)))
        .where(ledger.c.id.not_in(select(open_hold.c.entry))),
        select(open_hold.c.session)
        .outerjoin(ledger, and_(ledger.c.id == open_hold.c.entry, ledger.c.kind == Kind.HOLD.value))
        .where(or_(ledger.c.id.is_(None), open_hold.c.session.in_(select(given.c.session)))),
    )
    lost = written.union(open_)
    yield _none(connection, "open holds", lost, "the list of open holds is right", "holds listed wrongly")
    alone = (
        select(open_hold.c.session)
        .join(ledger, ledger.c.id == open_hold.c.entry)
        .outerjoin(sessions, sessions.c.id == open_hold.c.session)
        .where(sessions.c.id.is_(None), ledger.c.at < time.time() - _ROW_AFTER, ~ledger.c.key.startswith(SLOT_PREFIX))
        .distinct()
    )
    good = "every session that holds GPU time has its row"
    yield _none(connection, "sessions", alone, good, "sessions that hold GPU time without a row (settling releases it)")
    stands = [state.value for state in HOLDING]
    settled = and_(reservations.c.state.not_in(stands), reservations.c.changed < time.time() - _SETTLED_AFTER)
    over = (
        select(open_hold.c.session)
        .join(ledger, ledger.c.id == open_hold.c.entry)
        .outerjoin(reservations, reservations.c.id == open_hold.c.session)
        .where(ledger.c.key.startswith(SLOT_PREFIX), or_(reservations.c.id.is_(None), settled))
        .distinct()
    )
    good = "every reservation that holds GPU time will be, or is now"
    yield _none(connection, "reservations", over, good, "reservations that are over or unknown and hold GPU time")
    wrong = differences(connection)
    bad = "sums that are not what their entries come to, in milli-GPU-seconds (carme-hub db sum makes them anew)"
    says = f"{bad}: {', '.join(map(str, wrong))}" if wrong else "every sum that is kept is what its entries come to"
    yield CheckResult("sums", not wrong, says)
    missing = sorted(_triggers(connection))
    says = f"missing or switched off: {', '.join(missing)}" if missing else "the ledger can only be added to"
    yield CheckResult("triggers", not missing, says)


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
    """Return the names of triggers that should be there and are not."""
    if connection.dialect.name == "sqlite":
        query = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'ledger'"
        return _SQLITE_TRIGGERS - set(connection.execute(text(query)).scalars())
    query = "SELECT tgname FROM pg_trigger WHERE tgrelid = 'ledger'::regclass AND tgenabled IN ('O', 'A')"
    return _POSTGRESQL_TRIGGERS - set(connection.execute(text(query)).scalars())
