"""Find what has changed in the ledger since an entry, for notices.

Ids grow in the order of commits, because a cluster has one writer at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select

from carme_hub.store.tables import ledger

from .reads import LedgerReads


@dataclass(frozen=True, slots=True)
class LedgerChanges:
    """Users and accounts of new entries; ``last`` is the newest entry's id."""

    last: int = 0
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()


def newest_id(reads: LedgerReads) -> int:
    """Return the id of the newest entry, 0 if there is none."""
    return int(reads.run(select(func.max(ledger.c.id)).where(_of(reads))).scalar() or 0)


def changes_after(reads: LedgerReads, id: int) -> LedgerChanges:
    """Return the changes after the entry with an id."""
    where = (_of(reads), ledger.c.id > id)
    last, users, accounts = id, set(), set()
    whose = (ledger.c.account, ledger.c.user)
    for account, user, most in reads.run(select(*whose, func.max(ledger.c.id)).where(*where).group_by(*whose)):
        last = max(last, most)
        users.add(user)
        accounts.add(account)
    return LedgerChanges(last, frozenset(users - {""}), frozenset(accounts - {""}))


def _of(reads: LedgerReads) -> ColumnElement[bool]:
    """Return the condition that an entry belongs to the cluster, in a form that no index matches.

    Otherwise SQLite would use an index that begins with the cluster, and read all entries.
    """
    return ledger.c.cluster + "" == reads.cluster
