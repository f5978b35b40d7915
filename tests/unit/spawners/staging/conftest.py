"""Both databases, as in the tests of the store."""

from rig.databases import database_url, engine, one_postgres, store

__all__ = ["database_url", "engine", "one_postgres", "store"]
