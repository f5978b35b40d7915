"""Which accounts the ledger has entries of: one look into the index for each of them, however many entries it has."""

from __future__ import annotations

from sqlalchemy import func, select

from .ledger_reads import LedgerReads
from .tables import ledger


def accounts_in(reads: LedgerReads) -> list[str]:
    """Return the accounts that have entries, in the database's order.

    ``SELECT DISTINCT`` would read the whole index; this goes from each name to the next one
    (https://wiki.postgresql.org/wiki/Loose_indexscan).
    """
    least = select(func.min(ledger.c.account).label("account")).where(ledger.c.cluster == reads.cluster)
    names = least.cte("names", recursive=True)
    following = least.where(ledger.c.account > names.c.account).correlate(names).scalar_subquery()
    names = names.union_all(select(following).where(names.c.account.is_not(None)))
    return list(reads.run(select(names.c.account).where(names.c.account.is_not(None))).scalars())
