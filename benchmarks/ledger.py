"""Admission, statement pages and reconciling with a million entries of 2,000 users, and without, on both databases.

``python benchmarks/ledger.py [sqlite] [postgresql]`` (ten minutes for both). Commits wait for the disk on both. There
is no peer: no open system that we know of holds GPU time.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # the PostgreSQL of the tests

from measure import figure, load, percentile, say  # noqa: E402
from rig.postgres import postgres  # noqa: E402
from sqlalchemy import Engine, insert, text  # noqa: E402

from carme_hub.accounting.admit import admit, preview, standing  # noqa: E402
from carme_hub.accounting.books import Books  # noqa: E402
from carme_hub.accounting.reconcile import reconcile  # noqa: E402
from carme_hub.accounting.settle import settle  # noqa: E402
from carme_hub.domain.jobs import Phase  # noqa: E402
from carme_hub.domain.ledger import GPU_HOUR, Entry, Kind, charge_key, hold_key, release_key  # noqa: E402
from carme_hub.domain.policy import Policy  # noqa: E402
from carme_hub.domain.quotas import Ask, Person, Quota, Who, Window  # noqa: E402
from carme_hub.domain.resources import Gpus  # noqa: E402
from carme_hub.domain.usage import Usage  # noqa: E402
from carme_hub.store.engine import CarmeStore  # noqa: E402
from carme_hub.store.ledger import Filter, LedgerStore  # noqa: E402
from carme_hub.store.ledger_rows import entry_row  # noqa: E402
from carme_hub.store.tables import ledger as table  # noqa: E402

ENTRIES, USERS, ACCOUNTS, OPEN, TIMES, JOBS, STORM = 1_000_000, 2000, 200, 300, 400, 10_000, 200
NOW = 1_790_000_000
YEAR = 365 * 86400
A100 = Gpus("a100", 1)
QUOTAS = (
    Quota("day", Who.USER, gpu_time=10_000 * GPU_HOUR, window=Window.DAY, concurrent_gpus=800, sessions_per_day=900),
    Quota("rolling", Who.USER, gpu_time=10_000 * GPU_HOUR, window=Window.ROLLING, days=30, sessions=700),
    Quota("month", Who.ACCOUNT, gpu_time=90_000 * GPU_HOUR, window=Window.MONTH),
    Quota("course", Who.GROUP, "course", together=True, gpu_time=90_000 * GPU_HOUR, window=Window.WEEK),
    Quota("total", Who.ACCOUNT, needs_grant=True, gpu_time=900_000 * GPU_HOUR),
)
COURSE = tuple(f"user{n}" for n in range(100))


def account_of(user: int) -> str:
    return f"account{user % ACCOUNTS}"


def entries(count: int) -> Iterator[Entry]:
    """Yield a year of sessions: each a hold, a charge and a release; the last ones are open."""
    rng = random.Random(4)
    for n in range(ACCOUNTS):
        yield Entry(f"grant:{n}", Kind.GRANT, "lab", f"account{n}", 500_000 * GPU_HOUR, NOW - YEAR, actor="root")
    sessions = count // 3
    for n in range(sessions):
        user, at = rng.randrange(USERS), NOW - YEAR + n * YEAR // sessions
        gpus, limit = (Gpus("a100", rng.choice((1, 1, 1, 2, 4))),), rng.choice((3600, 7200, 14400, 28800))
        used, id = rng.randint(60, limit), f"{n:08}-0000-4000-8000-000000000000"
        rate = 1000 * gpus[0].count
        hold = Entry(hold_key(id), Kind.HOLD, "lab", account_of(user), -limit * rate, at, f"user{user}", id)
        yield hold.but(start=at, end=at + limit, gpus=gpus, partition="gpu", qos="normal", reason="held")
        if n >= sessions - OPEN:
            continue
        start = at + 5
        charge = hold.but(
            key=charge_key("lab", n + 1, at), kind=Kind.CHARGE, amount=-used * rate, at=start + used, job_id=n + 1
        )
        yield charge.but(submitted=at, start=start, end=start + used, gpus=gpus, nodes="n1", reason=f"job {n + 1}")
        yield hold.but(key=release_key(id), kind=Kind.RELEASE, amount=limit * rate, at=start + used)


def fill(engine: Engine, count: int) -> None:
    say(f"Writing {count:,} entries")
    rows: list[dict[str, Any]] = []

    def write() -> None:
        with engine.begin() as connection:
            connection.execute(insert(table), rows)
        rows.clear()

    for entry in entries(count):
        rows.append(entry_row(entry))
        if len(rows) == 20_000:
            write()
    write()
    if engine.dialect.name == "postgresql":  # as its autovacuum does within minutes
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE ledger"))


def timed(what: Callable[[int], object], times: int = TIMES) -> list[float]:
    took = []
    for n in range(times):
        began = time.perf_counter()
        what(n)
        took.append(1000 * (time.perf_counter() - began))
    return took


def usages(first: int, count: int) -> list[Usage]:
    """Jobs from outside the hub that ended in the last day."""
    return [
        Usage(
            first + n, str(first + n), "train", f"user{n % USERS}", account_of(n % USERS), "gpu", "normal", "COMPLETED",
            Phase.TERMINAL, NOW - 90_000, NOW - 80_000 + n % 1000, NOW - 70_000 + n, (A100,)
        )
        for n in range(count)
    ]  # fmt: skip


def measure(name: str, engine: Engine, rows: str) -> None:
    store = LedgerStore(engine)
    books = Books(store, "lab", lambda: Policy(QUOTAS), lambda *_: 1000, lambda: float(NOW), members=lambda *_: COURSE)
    more = {"database": name, "rows": rows, "load": load()}
    rng = random.Random(5)

    def person() -> tuple[Person, str]:
        user = rng.randrange(USERS)
        return Person(f"user{user}", frozenset({"course"}) if user % 2 else frozenset()), account_of(user)

    def one_admit(n: int) -> None:
        who, account = person()
        assert admit(books, f"{rows}-{n}", who, Ask(account, A100, 3600), "gpu", "normal").granted

    took = timed(one_admit)
    figure("ledger_admit_p50", percentile(took, 0.5), "ms", **more)
    figure("ledger_admit_p99", percentile(took, 0.99), "ms", goal=50, **more)

    def one_preview(_: int) -> None:
        who, account = person()
        preview(books, who, [Ask(account, Gpus("a100", count), 3600) for count in range(1, 9)], "gpu", "normal")

    figure("ledger_preview_of_8_p99", percentile(timed(one_preview), 0.99), "ms", goal=100, **more)
    figure("ledger_standing_p99", percentile(timed(lambda _: standing(books, *_who(person()))), 0.99), "ms", **more)

    def page(which: Filter, before: int = 0) -> None:
        with store.reading("lab") as reads:
            reads.statement(which, before, 50)

    by_account = timed(lambda _: page(Filter(account=person()[1])), 100)
    by_user = timed(lambda n: page(Filter(user=person()[0].user), 0 if n % 2 else ENTRIES // 2), 100)
    kinds = timed(lambda _: page(Filter(account=person()[1], kind=Kind.GRANT, since=NOW - 2 * YEAR)), 100)
    nobody = timed(lambda n: page(Filter(user=f"nobody{n}")), 20)
    took = [*by_account, *by_user, *kinds, *nobody]
    figure("ledger_statement_page_p99", percentile(took, 0.99), "ms", goal=100, **more)
    with store.reading("lab") as reads:
        all_accounts = timed(lambda _: reads.balances(), 5)
    figure("ledger_balances_of_all_accounts_p50", percentile(all_accounts, 0.5), "ms", **more)

    jobs = usages(5_000_000, JOBS)
    began = time.perf_counter()
    settled = settle(books, jobs, ())
    figure("ledger_settle_10000_jobs", time.perf_counter() - began, "s", **more)
    assert len(settled.charged) == JOBS
    began = time.perf_counter()
    report = reconcile(books, jobs, NOW - 75_000, NOW)
    figure("ledger_reconcile_10000_jobs", time.perf_counter() - began, "s", goal=60, **more)
    assert not report.missing
    assert not report.changed
    storm(books, rows, more)


def _who(found: tuple[Person, str]) -> tuple[Person, tuple[str, ...]]:
    return found[0], (found[1],)


def storm(books: Books, rows: str, more: dict[str, Any]) -> None:
    """200 requests at once, for a budget of 10."""
    budget = Quota("ten", Who.USER, gpu_time=10 * GPU_HOUR)
    few = Books(books.store, "lab", lambda: Policy((budget,)), books.factor, books.clock)
    took: list[float] = []

    def start(n: int) -> bool:
        began = time.perf_counter()
        found = admit(few, f"storm-{rows}-{n}", Person(f"new-{rows}"), Ask("account1", A100, 3600), "", "").granted
        took.append(1000 * (time.perf_counter() - began))
        return found

    with ThreadPoolExecutor(40) as pool:
        granted = sum(pool.map(start, range(STORM)))
    figure("ledger_storm_of_200_granted", granted, "sessions", goal=10, **more)
    figure("ledger_storm_of_200_wait_p99", percentile(took, 0.99), "ms", **more)


def run(name: str, url: Callable[[str], contextlib.AbstractContextManager[str]]) -> None:
    for rows, count in (("none", 0), ("million", ENTRIES)):
        with url(rows) as address:
            engine = CarmeStore(url=address).open()
            fill(engine, count)
            say(f"Measuring {name} with {rows} rows")
            measure(name, engine, rows)
            engine.dispose()


def main() -> None:
    wanted = sys.argv[1:] or ["sqlite", "postgresql"]
    if "sqlite" in wanted:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            run("sqlite", lambda rows: contextlib.nullcontext(f"sqlite:///{folder}/{rows}.sqlite"))
    if "postgresql" in wanted:
        with postgres(durable=True) as server:
            run("postgresql", lambda _: server.database())


if __name__ == "__main__":
    main()
