"""Tests here run on SQLite and on PostgreSQL."""

import pytest
from booking_parts import FrontDesk
from rig.databases import database_url, engine, one_postgres, store, stores

from carme_hub.store.ledger.writes import LedgerStore

__all__ = ["database_url", "engine", "one_postgres", "store", "stores"]


@pytest.fixture
def front(store: LedgerStore) -> FrontDesk:
    return FrontDesk(store)
