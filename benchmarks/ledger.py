"""Admission, balances, statement pages and reconciliation with a million entries of 2,000 users, and without, on both
databases.

``python benchmarks/ledger.py [sqlite] [postgresql] [--entries N]`` (ten minutes for both; ten million entries on SQLite
alone take half an hour of a busy machine, six minutes of processor time, and five GiB in /var/tmp). With
``--entries`` the ledger has so many entries, a million for each year. Commits wait for the disk on both. There is no
peer: no open system that we know of holds GPU time. The peer of the balances is the method before sums were stored: the
sum of all entries, in the same database and run.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # the PostgreSQL of the tests

from measure import figure, load, log_progress, percentile  # noqa: E402
from rig.postgres import postgres  # noqa: E402
from sqlalchemy import Connection, Engine, func, select, text  # noqa: E402

from carme_hub.accounting.admission import admit, preview, quota_status  # noqa: E402
from carme_hub.accounting.context import LedgerContext  # noqa: E402
from carme_hub.accounting.reconciliation import reconcile  # noqa: E402
from carme_hub.accounting.settlement import settle  # noqa: E402
from carme_hub.domain.cluster.jobs import Phase  # noqa: E402
from carme_hub.domain.cluster.resources import Gpus  # noqa: E402
from carme_hub.domain.ledger.entries import GPU_HOUR, Entry, Kind, charge_key, hold_key, release_key  # noqa: E402
from carme_hub.domain.ledger.usage import Usage  # noqa: E402
from carme_hub.domain.quotas.policy import Policy  # noqa: E402
from carme_hub.domain.quotas.rules import Person, Quota, QuotaRequest, SubjectKind, Window  # noqa: E402
from carme_hub.store.engine import CarmeStore, make_engine  # noqa: E402
from carme_hub.store.ledger.rows import entry_row  # noqa: E402
from carme_hub.store.ledger.sums import differences, rebuild_sums  # noqa: E402
from carme_hub.store.ledger.writes import Filter, LedgerReads, LedgerStore  # noqa: E402
from carme_hub.store.tables import ledger as table  # noqa: E402

ENTRIES, USERS, ACCOUNTS, OPEN, TIMES, JOBS, STORM = 1_000_000, 2000, 200, 300, 400, 10_000, 200
NOW = 1_790_000_000
YEAR = 365 * 86400
BATCH = 50_000
A100 = Gpus("a100", 1)
QUOTAS = (
    Quota(
        "day",
        SubjectKind.USER,
        gpu_time=10_000 * GPU_HOUR,
        window=Window.DAY,
        concurrent_gpus=800,
        sessions_per_day=900,
    ),
    Quota("rolling", SubjectKind.USER, gpu_time=10_000 * GPU_HOUR, window=Window.ROLLING, days=30, sessions=700),
    Quota("month", SubjectKind.ACCOUNT, gpu_time=90_000 * GPU_HOUR, window=Window.MONTH),
    Quota("course", SubjectKind.GROUP, "course", together=True, gpu_time=90_000 * GPU_HOUR, window=Window.WEEK),
    Quota("total", SubjectKind.ACCOUNT, needs_grant=True, gpu_time=900_000 * GPU_HOUR),
)
COURSE = tuple(f"user{n}" for n in range(100))


def account_of(user: int) -> str:
    return f"account{user % ACCOUNTS}"


def generate_rows(count: int) -> Iterator[dict[str, Any]]:
    """Yield years of sessions, a million entries each: a hold, a charge and a release; the last ones are open."""
    rng = random.Random(4)
    began = NOW - YEAR * max(1, count // ENTRIES)
    for n in range(ACCOUNTS):
        grant = Entry(f"grant:{n}", Kind.GRANT, "lab", f"account{n}", 500_000 * GPU_HOUR, began, actor="root")
        yield entry_row(grant.replace(amount=grant.amount * max(1, count // ENTRIES)))
    sessions = count // 3
    # Templates of rows: to build an Entry for each row takes longer than to write it.
    templates = {}
    for gpus in (1, 2, 4):
        hold = Entry("", Kind.HOLD, "lab", "", 0, 0, gpus=(Gpus("a100", gpus),), partition="gpu", qos="normal")
        kinds = (
            hold.replace(reason="held"),
            hold.replace(kind=Kind.CHARGE, nodes="n1"),
            hold.replace(kind=Kind.RELEASE),
        )
        templates[gpus] = [entry_row(each) for each in kinds]
    for n in range(sessions):
        user, at = rng.randrange(USERS), began + n * (NOW - began) // sessions
        gpus, limit = rng.choice((1, 1, 1, 2, 4)), rng.choice((3600, 7200, 14400, 28800))
        used, id, start = rng.randint(60, limit), f"{n:08}-0000-4000-8000-000000000000", at + 5
        who = {"account": account_of(user), "user": f"user{user}", "session": id, "start": at, "end": at + limit}
        hold_row, charge_row, release_row = templates[gpus]
        held = limit * 1000 * gpus
        yield {**hold_row, **who, "key": hold_key(id), "amount": -held, "at": at}
        if n >= sessions - OPEN:
            continue
        job = {"key": charge_key("lab", n + 1, at), "job_id": n + 1, "submitted": at, "reason": f"job {n + 1}"}
        time = {"at": start + used, "start": start, "end": start + used}
        yield {**charge_row, **who, **job, **time, "amount": -used * 1000 * gpus}
        yield {**release_row, **who, "key": release_key(id), "amount": held, "at": start + used}


def fill(url: str, count: int) -> None:
    """Write the entries in bulk; build indexes and the triggers' tables at the end, as an upgrade does."""
    log_progress(f"Writing {count:,} entries")
    rows, engine = generate_rows(count), make_engine(url)
    sqlite, indexes = engine.dialect.name == "sqlite", list(table.indexes) if count else []
    with engine.connect() as connection:
        if sqlite:
            connection.exec_driver_sql("PRAGMA cache_size = -1000000")  # KiB
        off = _without_triggers(connection) if sqlite else ()
        for index in indexes:
            index.drop(connection)
        connection.commit()
        while some := list(islice(rows, BATCH)):
            with connection.begin():  # explicit: SQLAlchemy does not see what COPY writes, and would commit nothing
                (_insert if sqlite else _copy)(connection, some)
        log_progress("Making the indexes")
        for index in indexes:
            index.create(connection)
        for trigger in off:
            connection.exec_driver_sql(trigger)
        if sqlite:
            last = "SELECT id, cluster, session FROM ledger WHERE kind = 'hold' ORDER BY id DESC LIMIT"
            connection.exec_driver_sql(f"INSERT INTO open_hold {last} {min(OPEN, count // 3)}")
        connection.commit()
    rebuild_sums(engine)
    if not sqlite:  # as its autovacuum does within minutes
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))  # also of the small tables of the triggers
    engine.dispose()


def _without_triggers(connection: Connection) -> list[str]:
    """Drop the triggers of SQLite's ledger, which take most of the time, and return the SQL that creates them again."""
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'ledger'"
    found = connection.exec_driver_sql(query).all()
    for name, _ in found:
        connection.exec_driver_sql(f"DROP TRIGGER {name}")
    return [sql for _, sql in found]


def _insert(connection: Connection, rows: list[dict[str, Any]]) -> None:
    names, values = ", ".join(f'"{name}"' for name in rows[0]), ", ".join("?" for _ in rows[0])
    rows_too = [tuple(row.values()) for row in rows]
    connection.exec_driver_sql(f"INSERT INTO ledger ({names}) VALUES ({values})", rows_too)


def _copy(connection: Connection, rows: list[dict[str, Any]]) -> None:
    names = ", ".join(f'"{name}"' for name in rows[0])
    raw: Any = connection.connection
    with raw.cursor() as cursor, cursor.copy(f"COPY ledger ({names}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(tuple(row.values()))


def timed(what: Callable[[int], object], times: int = TIMES) -> list[float]:
    took = []
    for n in range(times):
        began = time.perf_counter()
        what(n)
        took.append(1000 * (time.perf_counter() - began))
    return took


def usages(first: int, count: int) -> list[Usage]:
    """Return jobs from outside the hub that ended in the last day."""
    return [
        Usage(
            first + n, str(first + n), "train", f"user{n % USERS}", account_of(n % USERS), "gpu", "normal", "COMPLETED",
            Phase.TERMINAL, NOW - 90_000, NOW - 80_000 + n % 1000, NOW - 70_000 + n, (A100,)
        )
        for n in range(count)
    ]  # fmt: skip


def sum_all_entries(reads: LedgerReads) -> None:
    """Read the balances of all accounts by the method before sums were stored."""
    timed = table.c.end > text("0")
    columns = (table.c.account, table.c.kind, timed.label("timed"), func.sum(table.c.amount))
    query = select(*columns).where(table.c.cluster == "lab").group_by(table.c.account, table.c.kind, timed)
    list(reads.run(query))


def measure(name: str, engine: Engine, rows: str, count: int) -> None:
    store = LedgerStore(engine)
    context = LedgerContext(
        store, "lab", lambda: Policy(QUOTAS), lambda *_: 1000, lambda: float(NOW), members=lambda *_: COURSE
    )
    more = {"database": name, "rows": rows, "load": load()}
    rng = random.Random(5)

    def person() -> tuple[Person, str]:
        user = rng.randrange(USERS)
        return Person(f"user{user}", frozenset({"course"}) if user % 2 else frozenset()), account_of(user)

    def one_admit(n: int) -> None:
        who, account = person()
        assert admit(context, f"{rows}-{n}", who, QuotaRequest(account, A100, 3600), "gpu", "normal").granted

    took = timed(one_admit)
    figure("ledger_admit_p50", percentile(took, 0.5), "ms", **more)
    figure("ledger_admit_p99", percentile(took, 0.99), "ms", goal=50, **more)

    def one_preview(_: int) -> None:
        who, account = person()
        preview(
            context, who, [QuotaRequest(account, Gpus("a100", count), 3600) for count in range(1, 9)], "gpu", "normal"
        )

    figure("ledger_preview_of_8_p99", percentile(timed(one_preview), 0.99), "ms", goal=100, **more)
    figure(
        "ledger_standing_p99", percentile(timed(lambda _: quota_status(context, *_who(person()))), 0.99), "ms", **more
    )

    def page(which: Filter, before: int = 0) -> None:
        with store.reading("lab") as reads:
            reads.statement(which, before, 50)

    by_account = timed(lambda _: page(Filter(account=person()[1])), 100)
    by_user = timed(lambda n: page(Filter(user=person()[0].user), 0 if n % 2 else count // 2), 100)
    kinds = timed(lambda _: page(Filter(account=person()[1], kind=Kind.GRANT, since=NOW - 2 * YEAR)), 100)
    nobody = timed(lambda n: page(Filter(user=f"nobody{n}")), 20)
    took = [*by_account, *by_user, *kinds, *nobody]
    figure("ledger_statement_page_p99", percentile(took, 0.99), "ms", goal=100, **more)
    with store.reading("lab") as reads:
        all_accounts, peer = timed(lambda _: reads.balances(), 100), timed(lambda _: sum_all_entries(reads), 5)
    of_peer = percentile(peer, 0.5)
    figure("ledger_balances_of_all_accounts_p50", percentile(all_accounts, 0.5), "ms", goal=50, peer=of_peer, **more)
    figure("ledger_balances_of_all_accounts_p99", percentile(all_accounts, 0.99), "ms", **more)

    jobs = usages(5_000_000, JOBS)
    began = time.perf_counter()
    settled = settle(context, jobs, ())
    figure("ledger_settle_10000_jobs", time.perf_counter() - began, "s", **more)
    assert len(settled.charged) == JOBS
    began = time.perf_counter()
    report = reconcile(context, jobs, NOW - 75_000, NOW)
    figure("ledger_reconcile_10000_jobs", time.perf_counter() - began, "s", goal=60, **more)
    assert not report.missing
    assert not report.changed
    storm(context, rows, more)
    began = time.perf_counter()
    with engine.connect() as connection:
        wrong = differences(connection)
    figure("ledger_sums_held_against_entries", time.perf_counter() - began, "s", **more)
    figure("ledger_sums_that_differ", len(wrong), "sums", goal=0, **more)


def _who(found: tuple[Person, str]) -> tuple[Person, tuple[str, ...]]:
    return found[0], (found[1],)


def storm(context: LedgerContext, rows: str, more: dict[str, Any]) -> None:
    """200 requests at once, for a budget of 10."""
    budget = Quota("ten", SubjectKind.USER, gpu_time=10 * GPU_HOUR)
    few = LedgerContext(context.store, "lab", lambda: Policy((budget,)), context.factor, context.clock)
    took: list[float] = []

    def start(n: int) -> bool:
        began = time.perf_counter()
        found = admit(
            few, f"storm-{rows}-{n}", Person(f"new-{rows}"), QuotaRequest("account1", A100, 3600), "", ""
        ).granted
        took.append(1000 * (time.perf_counter() - began))
        return found

    with ThreadPoolExecutor(40) as pool:
        granted = sum(pool.map(start, range(STORM)))
    figure("ledger_storm_of_200_granted", granted, "sessions", goal=10, **more)
    figure("ledger_storm_of_200_wait_p99", percentile(took, 0.99), "ms", **more)


def run(name: str, url: Callable[[str], contextlib.AbstractContextManager[str]], sizes: dict[str, int]) -> None:
    for rows, count in sizes.items():
        with url(rows) as address:
            engine = CarmeStore(url=address).open()
            fill(address, count)
            log_progress(f"Measuring {name} with {rows} rows")
            measure(name, engine, rows, count)
            engine.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("databases", nargs="*", metavar="sqlite|postgresql", default=["sqlite", "postgresql"])
    parser.add_argument("--entries", type=int, help="of one ledger, in place of none and a million")
    args = parser.parse_args()
    sizes = {f"{args.entries}": args.entries} if args.entries else {"none": 0, "million": ENTRIES}
    if "sqlite" in args.databases:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            run("sqlite", lambda rows: contextlib.nullcontext(f"sqlite:///{folder}/{rows}.sqlite"), sizes)
    if "postgresql" in args.databases:
        with postgres(durable=True) as server:
            run("postgresql", lambda _: server.database(), sizes)


if __name__ == "__main__":
    main()
