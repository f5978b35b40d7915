"""The ledger in the database: entries are added, never changed, and a key is written once.

Synchronous: ``carme_hub.accounting`` calls it in a thread. Every method raises ``StoreError`` when the database does
not take it; what is done within one transaction is written as a whole or not at all.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, delete, insert, text, update
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.domain.ledger.entries import Entry
from carme_hub.errors import StoreError
from carme_hub.store.engine import ONLY_READS, chunks
from carme_hub.store.tables import anomaly as anomalies
from carme_hub.store.tables import ledger
from carme_hub.store.tables import note as notes

from .idempotency import OnceWrites, upsert
from .reads import Filter, HoldLine, LedgerReads, OpenHold, Subject, Used
from .rows import Anomaly, Note, anomaly_row, entry_row

__all__ = [
    "Anomaly",
    "CommittedChanges",
    "Filter",
    "HoldLine",
    "LedgerReads",
    "LedgerStore",
    "LedgerWrites",
    "Note",
    "OpenHold",
    "Subject",
    "Used",
]


@dataclass(frozen=True, slots=True)
class CommittedChanges:
    """What one transaction has written: new entries, notes, and anomalies that were decided on."""

    entries: Sequence[Entry] = ()
    notes: Sequence[Note] = ()
    decided: Sequence[Anomaly] = ()


class LedgerWrites(OnceWrites):
    """What can be written while the cluster's ledger is ours alone."""

    def __init__(self, connection: Connection, cluster: str) -> None:
        super().__init__(connection, cluster)
        self._entries: list[Entry] = []
        self._notes: list[Note] = []
        self._decided: list[int] = []

    def committed(self) -> CommittedChanges:
        """Return what was written so far."""
        decided = [each for each in map(self.anomaly, self._decided) if each is not None]
        return CommittedChanges(tuple(self._entries), tuple(self._notes), tuple(decided))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo at its end whatever is written within it: to know what would be refused."""
        entries, notes, decided = len(self._entries), len(self._notes), len(self._decided)
        savepoint = self._connection.begin_nested()
        try:
            yield
        finally:
            savepoint.rollback()
            del self._entries[entries:], self._notes[notes:], self._decided[decided:]

    def append(self, entries: Iterable[Entry]) -> list[Entry]:
        """Write the entries whose key is not there yet, and return those, with their ids.

        Raises:
            StoreError: an entry of another key has the same job, submit time and kind; nothing is written then.
        """
        new = list(entries)
        ids: dict[str, int] = {}
        if new:
            statement = upsert(self._connection, ledger).on_conflict_do_nothing(index_elements=["key"])
            # Rows beside the statement: that is compiled once, and SQLAlchemy writes as many at once as may be.
            rows = [entry_row(entry) for entry in new]
            ids.update(tuple(row) for row in self.run(statement.returning(ledger.c.key, ledger.c.id), rows))
        found = []
        for entry in new:
            id = ids.pop(entry.key, None)
            if id is not None:
                found.append(entry.replace(id=id))
        self._entries += found
        return found

    def flag(self, found: Iterable[Anomaly]) -> list[Anomaly]:
        """Write the anomalies whose key is not there yet, and return those."""
        new = {each.key: each for each in found}
        written: set[str] = set()
        for some in chunks(new):
            statement = upsert(self._connection, anomalies).on_conflict_do_nothing(index_elements=["key"])
            rows = [anomaly_row(new[key]) for key in some]
            written.update(self._connection.execute(statement.values(rows).returning(anomalies.c.key)).scalars())
        return [each for key, each in new.items() if key in written]

    def settle_anomaly(self, id: int, at: float, actor: str, decision: str) -> bool:
        """Note what a person decided, or that a doubt solved itself; return whether it was still open."""
        where = (anomalies.c.id == id, anomalies.c.cluster == self.cluster, anomalies.c.settled == 0)
        values = {"settled": at, "settled_by": actor, "decision": decision}
        ours = int(self._connection.execute(update(anomalies).where(*where).values(**values)).rowcount) == 1
        self._decided += [id] if ours else []
        return ours

    def add_note(self, name: str, value: Any, at: float, actor: str = "carme-hub") -> None:
        """Write a new version of a note; ``value`` is plain JSON."""
        row = {"cluster": self.cluster, "name": name, "at": at, "actor": actor, "value": value}
        self._connection.execute(insert(notes).values(**row))
        self._notes.append(Note(name, at, actor, value))

    def keep_note(self, name: str, value: Any, at: float, actor: str = "carme-hub") -> None:
        """Write a note of which only the newest version is of interest."""
        self._connection.execute(delete(notes).where(notes.c.cluster == self.cluster, notes.c.name == name))
        self.add_note(name, value, at, actor)


class LedgerStore:
    """The ledger's tables.

    Args:
        after: is told, in the writer's thread, what each transaction has written, once that is committed; it raises
            nothing. All that people write passes here, whichever door they came through.
    """

    def __init__(self, engine: Engine, after: Callable[[CommittedChanges], None] | None = None) -> None:
        self._engine = engine
        self._after = after
        # Threads of one process queue here: SQLite's own waiting is by naps, up to a tenth of a second long.
        self._turn = threading.Lock()

    @contextmanager
    def transaction(self, cluster: str) -> Iterator[LedgerWrites]:
        """Have the cluster's ledger alone, for reading and writing; committed at the end, undone by an exception.

        On PostgreSQL one advisory lock per cluster, so that a rule over several accounts sees one truth.
        """
        with self._turn, _store_errors("did not take a change of"), self._engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SET LOCAL lock_timeout = '30s'"))
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _lock_number(cluster)})
            writes = LedgerWrites(connection, cluster)
            yield writes
            done = writes.committed()
        if self._after is not None:
            self._after(done)

    @contextmanager
    def reading(self, cluster: str) -> Iterator[LedgerReads]:
        """Read one moment of the ledger, without waiting for who writes."""
        with _store_errors("cannot read"), self._engine.connect() as connection:
            options: dict[str, Any] = {ONLY_READS: True}
            if connection.dialect.name == "postgresql":
                options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
            yield LedgerReads(connection.execution_options(**options), cluster)


@contextmanager
def _store_errors(what: str) -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        raise StoreError(f"The database {what} the ledger: {error}") from error


def _lock_number(cluster: str) -> int:
    """Return the advisory lock of a cluster: 64 bits with a sign, the same in every process and release."""
    return int.from_bytes(hashlib.sha256(b"carme-hub ledger " + cluster.encode()).digest()[:8], "big", signed=True)
