"""Tests here run on SQLite and on PostgreSQL."""

from rig.databases import database_url, engine, one_postgres, store

__all__ = ["database_url", "engine", "one_postgres", "store"]
