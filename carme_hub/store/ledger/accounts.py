"""List the accounts with ledger entries."""

from __future__ import annotations

from sqlalchemy import select

from carme_hub.store.tables import ledger_sum

from .reads import LedgerReads


def accounts_in(reads: LedgerReads) -> list[str]:
    """Return the accounts that have entries, in the database's order."""
    names = select(ledger_sum.c.account).where(ledger_sum.c.cluster == reads.cluster).distinct()
    return list(reads.run(names).scalars())
