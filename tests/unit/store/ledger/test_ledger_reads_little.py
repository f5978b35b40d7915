"""Questions that are asked each minute, or at each start, read what they are about and not the whole ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, event, text

from carme_hub.domain.ledger.entries import Entry, Kind
from carme_hub.store.ledger.accounts import accounts_in
from carme_hub.store.ledger.changes import changes_after, newest_id
from carme_hub.store.ledger.writes import LedgerReads, LedgerStore
from carme_hub.store.tables import metadata


def fill(store: LedgerStore, engine: Engine) -> None:
    """Write many jobs and grants of several accounts, and three credits."""
    jobs = [
        Entry(
            f"charge:{n}", Kind.CHARGE, "lab", f"a{n % 5}", -9, n, "ada", job_id=n + 1, submitted=n, start=n, end=n + 9
        )
        for n in range(4000)
    ]
    grants = [Entry(f"grant:{n}", Kind.GRANT, "lab", f"a{n % 5}", 9, n, "ada") for n in range(1000)]
    credits = [Entry(f"grant:c{n}", Kind.GRANT, "lab", "a1", 9, 10, expires=1000 * n) for n in (1, 2, 3)]
    with store.transaction("lab") as writes:
        writes.append(jobs + grants + credits)
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("ANALYZE ledger"))


def plan(store: LedgerStore, engine: Engine, question: Callable[[LedgerReads], Any]) -> str:
    """Return how the database goes about it."""
    asked: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_more: Any) -> None:
        if statement.startswith(("SELECT", "WITH")):
            asked.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    with store.reading("lab") as reads:
        question(reads)
    event.remove(engine, "before_cursor_execute", note)
    [(statement, parameters)] = asked
    explain = "EXPLAIN QUERY PLAN " if engine.dialect.name == "sqlite" else "EXPLAIN "
    with engine.connect() as connection:
        return "\n".join(str(row[-1]) for row in connection.exec_driver_sql(explain + statement, parameters))


def test_credits_that_expire_are_found_without_reading_the_ledger(store: LedgerStore, engine: Engine) -> None:
    fill(store, engine)
    with store.reading("lab") as reads:
        assert [entry.key for entry in reads.expired(1000, 3000)] == ["grant:c2", "grant:c3"]
    found = plan(store, engine, lambda reads: reads.expired(1000, 3000))
    assert "ix_ledger_expires" in found
    assert "SCAN" not in found.upper().replace("INDEX SCAN", "").replace("BITMAP HEAP SCAN", "")


def test_what_gives_an_account_gpu_time_is_found_without_reading_its_jobs(store: LedgerStore, engine: Engine) -> None:
    fill(store, engine)
    found = plan(store, engine, lambda reads: reads.grants("a1"))
    if engine.dialect.name == "sqlite":
        assert "ix_ledger_account (cluster=? AND account=? AND kind=?" in found
    assert "ix_ledger_account" in found


def test_what_is_new_is_found_from_the_end_of_the_ledger(store: LedgerStore, engine: Engine) -> None:
    fill(store, engine)
    last = ask(store, newest_id)
    found = plan(store, engine, lambda reads: changes_after(reads, last - 3))
    assert ("USING INTEGER PRIMARY KEY (rowid>?" if engine.dialect.name == "sqlite" else "pk_ledger") in found
    found = plan(store, engine, newest_id)
    assert "ix_ledger" not in found, "that index is read through for it"


def test_the_accounts_of_the_ledger_are_named_without_reading_their_entries(store: LedgerStore, engine: Engine) -> None:
    assert ask(store, accounts_in) == []
    fill(store, engine)
    with store.transaction("other") as writes:
        writes.append([Entry("grant:o", Kind.GRANT, "other", "a7", 9, 1)])
    assert sorted(ask(store, accounts_in)) == ["a0", "a1", "a2", "a3", "a4"]
    found = plan(store, engine, accounts_in)
    assert "ledger_sum" in found
    assert "ledger" not in found.replace("ledger_sum", "")


def ask(store: LedgerStore, question: Callable[[LedgerReads], Any]) -> Any:
    with store.reading("lab") as reads:
        return question(reads)


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
def test_migrations_make_the_tables_that_the_code_knows(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "carme_alembic_version"})
        assert compare_metadata(context, metadata) == []
