"""What is new in the ledger since somebody last looked. Ids grow as commits do: a cluster has one writer at a time."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select

from carme_hub.store.tables import ledger

from .reads import LedgerReads


@dataclass(frozen=True, slots=True)
class News:
    """Which users and accounts entries were written about; ``last`` is the newest entry's id."""

    last: int = 0
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()


def newest(reads: LedgerReads) -> int:
    """Return the id of the newest entry, 0 where there is none."""
    return int(reads.run(select(func.max(ledger.c.id)).where(_of(reads))).scalar() or 0)


def written_after(reads: LedgerReads, id: int) -> News:
    """Return what was written after the entry of an id."""
    where = (_of(reads), ledger.c.id > id)
    last, users, accounts = id, set(), set()
    whose = (ledger.c.account, ledger.c.user)
    for account, user, most in reads.run(select(*whose, func.max(ledger.c.id)).where(*where).group_by(*whose)):
        last = max(last, most)
        users.add(user)
        accounts.add(account)
    return News(last, frozenset(users - {""}), frozenset(accounts - {""}))


def _of(reads: LedgerReads) -> ColumnElement[bool]:
    """Return whether an entry is the cluster's, in words of which no index knows.

    SQLite would take an index that begins with the cluster, and so read all entries there are.
    """
    return ledger.c.cluster + "" == reads.cluster
