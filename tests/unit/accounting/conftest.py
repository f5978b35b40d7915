"""Tests here run on SQLite and on PostgreSQL."""

import pytest
from forged_site import Site
from forged_slots import SlotLedger
from rig.databases import database_url, engine, one_postgres, store

from carme_hub.store.ledger.writes import LedgerStore

__all__ = ["database_url", "engine", "one_postgres", "store"]


@pytest.fixture
def site(store: LedgerStore) -> Site:
    return Site(store)


@pytest.fixture
def slot_ledger(site: Site) -> SlotLedger:
    return SlotLedger(site)
