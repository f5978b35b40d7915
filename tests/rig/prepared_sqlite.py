"""New SQLite databases in unit tests: the schema is copied from one that was migrated once in this process.

All migrations take some 35 ms of processor time, in thousands of tests. Tests of the migrations themselves import
``migrate`` and have the real one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from threading import Lock

import pytest
from sqlalchemy import Engine

from carme_hub.store import engine as store_engine


@pytest.fixture(autouse=True, scope="session")
def _prepared_sqlite() -> Iterator[None]:
    """Copy the schema into a SQLite database that is new, wherever a store is opened in this process."""
    migrate, one_at_a_time = store_engine.migrate, Lock()
    with (
        closing(sqlite3.connect(":memory:", check_same_thread=False)) as prepared,
        pytest.MonkeyPatch.context() as patch,
    ):

        def copy(engine: Engine, revision: str = "head") -> None:
            path = store_engine.sqlite_file(engine)
            if path is None or revision != "head":
                migrate(engine, revision)
                return
            with one_at_a_time, closing(sqlite3.connect(path)) as new:
                if new.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                    migrate(engine)
                    return
                if not prepared.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                    migrate(engine)
                    new.backup(prepared)
                else:
                    prepared.backup(new)

        patch.setattr(store_engine, "migrate", copy)
        # No test takes the power away from its machine.
        patch.setattr(store_engine, "SQLITE_PRAGMAS", (*store_engine.SQLITE_PRAGMAS, "synchronous=OFF"))
        yield
