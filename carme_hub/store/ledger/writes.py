"""Write the ledger: entries are added, never changed, and each key is written once.

Synchronous: ``carme_hub.accounting`` calls it in a thread. Every method raises ``StoreError`` if the database fails; a
transaction is written completely or not at all.
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
from carme_hub.store.engine import READ_ONLY, chunks
from carme_hub.store.tables import anomaly as anomalies
from carme_hub.store.tables import ledger
from carme_hub.store.tables import note as notes

from .idempotency import IdempotentWrites, upsert
from .reads import Filter, HoldLine, LedgerReads, OpenHold, Subject
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
]


@dataclass(frozen=True, slots=True)
class CommittedChanges:
    """What one transaction has written: new entries, notes, and settled anomalies."""

    entries: Sequence[Entry] = ()
    notes: Sequence[Note] = ()
    decided: Sequence[Anomaly] = ()


class LedgerWrites(IdempotentWrites):
    """Write access to the locked ledger of a cluster."""

    def __init__(self, connection: Connection, cluster: str) -> None:
        super().__init__(connection, cluster)
        self._entries: list[Entry] = []
        self._notes: list[Note] = []
        self._decided: list[int] = []

    def committed(self) -> CommittedChanges:
        """Return what has been written so far."""
        decided = [each for each in map(self.anomaly, self._decided) if each is not None]
        return CommittedChanges(tuple(self._entries), tuple(self._notes), tuple(decided))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Roll back at its end all writes within it, to find out what would be refused."""
        entries, notes, decided = len(self._entries), len(self._notes), len(self._decided)
        savepoint = self._connection.begin_nested()
        try:
            yield
        finally:
            savepoint.rollback()
            del self._entries[entries:], self._notes[notes:], self._decided[decided:]

    def append(self, entries: Iterable[Entry]) -> list[Entry]:
        """Insert the entries with new keys, and return those with their ids.

        Raises:
            StoreError: an entry with another key has the same job, submit time and kind; nothing is written.
        """
        new = list(entries)
        ids: dict[str, int] = {}
        if new:
            statement = upsert(self._connection, ledger).on_conflict_do_nothing(index_elements=["key"])
            # Rows as parameters: the statement is compiled once, and SQLAlchemy inserts as many at once as possible.
            rows = [entry_row(entry) for entry in new]
            ids.update(tuple(row) for row in self.run(statement.returning(ledger.c.key, ledger.c.id), rows))
        found = []
        for entry in new:
            id = ids.pop(entry.key, None)
            if id is not None:
                found.append(entry.replace(id=id))
        self._entries += found
        return found

    def add_anomalies(self, found: Iterable[Anomaly]) -> list[Anomaly]:
        """Insert the anomalies with new keys, and return those."""
        new = {each.key: each for each in found}
        written: set[str] = set()
        for some in chunks(new):
            statement = upsert(self._connection, anomalies).on_conflict_do_nothing(index_elements=["key"])
            rows = [anomaly_row(new[key]) for key in some]
            written.update(self._connection.execute(statement.values(rows).returning(anomalies.c.key)).scalars())
        return [each for key, each in new.items() if key in written]

    def settle_anomaly(self, id: int, at: float, actor: str, decision: str) -> bool:
        """Settle an anomaly by a person's decision, or because it resolved itself; return whether it was open."""
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

    def replace_note(self, name: str, value: Any, at: float, actor: str = "carme-hub") -> None:
        """Write a note and delete its older versions."""
        self._connection.execute(delete(notes).where(notes.c.cluster == self.cluster, notes.c.name == name))
        self.add_note(name, value, at, actor)


class LedgerStore:
    """The ledger's tables.

    Args:
        after: called in the writer's thread after each commit with the changes; it must not raise. All writes by forms,
            REST and commands pass here.
    """

    def __init__(self, engine: Engine, after: Callable[[CommittedChanges], None] | None = None) -> None:
        self._engine = engine
        self._after = after
        # Threads of one process wait here: SQLite itself polls its lock, with sleeps of up to a tenth of a second.
        self._lock = threading.Lock()

    @contextmanager
    def transaction(self, cluster: str) -> Iterator[LedgerWrites]:
        """Lock the cluster's ledger for reading and writing; commit at the end, roll back after an exception.

        PostgreSQL uses one advisory lock per cluster, so that a rule over several accounts sees consistent data.
        """
        with self._lock, _store_errors("did not take a change of"), self._engine.begin() as connection:
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
        """Read one moment of the ledger, without waiting for writers."""
        with _store_errors("cannot read"), self._engine.connect() as connection:
            options: dict[str, Any] = {READ_ONLY: True}
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
    """Return the number of a cluster's advisory lock: signed 64 bits, the same in every process and release."""
    return int.from_bytes(hashlib.sha256(b"carme-hub ledger " + cluster.encode()).digest()[:8], "big", signed=True)
