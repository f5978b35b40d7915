"""Compare the sums that a trigger maintains with their entries, and rebuild them. ``carme-hub db`` calls this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Select, delete, func, insert, literal_column, select, text, union_all
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.domain.ledger.entries import Kind
from carme_hub.errors import StoreError
from carme_hub.store.tables import ledger, ledger_sum


@dataclass(frozen=True, slots=True)
class Difference:
    """A stored sum that differs from its entries, both in milli-GPU-seconds; None for a missing one."""

    cluster: str
    account: str
    kind: str
    timed: bool
    kept: int | None
    entries: int | None

    def __str__(self) -> str:
        """Return the difference as text."""
        kind = f"{self.kind} of use" if self.timed and self.kind == Kind.CORRECTION.value else self.kind
        kept, entries = ("none" if sum is None else str(sum) for sum in (self.kept, self.entries))
        return f"{self.cluster} {self.account} {kind} (kept {kept}, entries {entries})"


def differences(connection: Connection) -> list[Difference]:
    """Return every stored sum that differs from its entries; one statement reads both at the same moment."""
    kept = select(ledger_sum, literal_column("0").label("of_entries"))
    found: tuple[dict[tuple[str, str, str, bool], int], ...] = ({}, {})
    rows = connection.execute(union_all(kept, _of_entries().add_columns(literal_column("1").label("of_entries"))))
    for cluster, account, kind, timed, amount, of_entries in rows:
        found[of_entries][cluster, account, kind, bool(timed)] = int(amount)
    sums, entries = found
    return [
        Difference(*key, sums.get(key), entries.get(key))
        for key in sorted(sums.keys() | entries.keys())
        if sums.get(key) != entries.get(key)
    ]


def rebuild_sums(engine: Engine) -> list[Difference]:
    """Recompute all stored sums from the entries, and return the differences. Writers are locked out meanwhile.

    Raises:
        StoreError: the database failed; nothing has changed.
    """
    try:
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SET LOCAL statement_timeout = 0"))  # years of entries may take long
                connection.execute(text("SET LOCAL lock_timeout = '30s'"))
                connection.execute(text("LOCK TABLE ledger IN SHARE ROW EXCLUSIVE MODE"))
            found = differences(connection)
            if found:
                connection.execute(delete(ledger_sum))
                columns = [column.name for column in ledger_sum.c]
                connection.execute(insert(ledger_sum).from_select(columns, _of_entries()))
            return found
    except SQLAlchemyError as error:
        raise StoreError(f"The sums of the ledger cannot be recomputed: {error}") from error


def _of_entries() -> Select[Any]:
    timed = ledger.c.end > literal_column("0")  # the same SQL text in both places
    columns = (ledger.c.cluster, ledger.c.account, ledger.c.kind)
    sums = select(*columns, timed.label("timed"), func.sum(ledger.c.amount).label("amount"))
    return sums.group_by(*columns, timed)
