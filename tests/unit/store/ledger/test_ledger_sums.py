"""The sums that balances are made of are what the entries come to, whoever wrote those; what differs is named."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rig.databases import stores
from sqlalchemy import Engine, insert, text

from carme_hub.domain.ledger.entries import GPU_HOUR, Balance, Entry, Kind
from carme_hub.errors import StoreError
from carme_hub.store.check import check
from carme_hub.store.ledger.report import by_account_and_kind
from carme_hub.store.ledger.rows import entry_row
from carme_hub.store.ledger.sums import Difference, differences, rebuild_sums
from carme_hub.store.ledger.writes import LedgerReads, LedgerStore, LedgerWrites
from carme_hub.store.tables import ledger

__all__ = ["stores"]
_numbers = count(1)
_entries = st.lists(
    st.builds(
        lambda number, kind, account, amount, end: Entry(
            f"k{number}", kind, "lab", account, amount, 5.0, "ada", f"s{number}", start=end and 1, end=end
        ),
        number=st.integers(0, 12),  # so that keys come again
        kind=st.sampled_from(Kind),
        account=st.sampled_from(("physics", "bio", "Äpfel")),
        amount=st.integers(-(10**9) * GPU_HOUR, 10**9 * GPU_HOUR),
        end=st.sampled_from((0, 7)),
    ),
    max_size=8,
)
_ways = st.sampled_from(("written", "written", "tried", "undone"))


def charge(number: int, account: str = "physics", amount: int = -1000, cluster: str = "lab") -> Entry:
    entry = Entry(f"charge:{cluster}:{number}", Kind.CHARGE, cluster, account, amount, 5.0, "ada", start=1, end=2)
    return entry.replace(job_id=number, submitted=1)


def grant(amount: int, account: str = "physics") -> Entry:
    return Entry(f"grant:{next(_numbers)}", Kind.GRANT, "lab", account, amount, 5.0, actor="root")


def wrong(url: str) -> dict[str, str]:
    return {each.name: each.text for each in check(url).results if not each.passed}


def differ(engine: Engine) -> list[Difference]:
    with engine.connect() as connection:
        return differences(connection)


def plain(balances: dict[str, Balance], entry: Entry) -> None:
    """Add one entry to balances as docs/explanation/ledger.md says what they are."""
    had, amount = balances.get(entry.account, Balance()), entry.amount
    granted, used, held = had.granted, had.used, had.held
    if entry.kind in (Kind.HOLD, Kind.RELEASE):
        held -= amount
    elif entry.kind is Kind.CHARGE or (entry.kind is Kind.CORRECTION and entry.end):
        used -= amount
    else:
        granted += amount
    balances[entry.account] = Balance(granted, used, held)


def append(writes: LedgerWrites, entries: list[Entry], way: str) -> list[Entry]:
    if way != "tried":
        return writes.append(entries)
    with writes.trial():
        writes.append(entries)
    return []


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(story=st.lists(st.tuples(_entries, _ways), max_size=6))
def test_sums_are_what_the_entries_come_to_whatever_was_written_tried_or_undone(
    store: LedgerStore, engine: Engine, story: list[tuple[list[Entry], str]]
) -> None:
    cluster = f"lab{next(_numbers)}"  # each example in a ledger of its own
    expected: dict[str, Balance] = {}
    by_kind: Counter[tuple[str, str]] = Counter()
    for entries, way in story:
        named = [each.replace(key=f"{cluster}:{each.key}", cluster=cluster) for each in entries]
        with suppress(InterruptedError), store.transaction(cluster) as writes:
            written = append(writes, named, way)
            if way == "undone":
                raise InterruptedError
            for entry in written:
                plain(expected, entry)
                by_kind[entry.account, entry.kind.value] += entry.amount
        with store.reading(cluster) as reads:
            assert reads.balances() == expected
            assert {key: sum for key, sum in by_account_and_kind(reads).items() if sum} == {
                key: sum for key, sum in by_kind.items() if sum
            }
        assert differ(engine) == []


def test_what_is_written_past_our_code_is_in_the_sums_too(
    store: LedgerStore, engine: Engine, database_url: str
) -> None:
    rows = [entry_row(charge(number, f"a{number % 3}")) for number in range(1, 10)]
    names = ", ".join(f'"{name}"' for name in rows[0])
    values = ", ".join(f":{name}" for name in rows[0])
    with engine.begin() as connection:
        connection.execute(insert(ledger).values(rows))  # one statement for all
        connection.execute(insert(ledger), [entry_row(charge(number, "a1")) for number in range(10, 20)])
        again = text(f"INSERT INTO ledger ({names}) VALUES ({values}) ON CONFLICT DO NOTHING")
        for _ in range(2):
            connection.execute(again, entry_row(charge(20, "a2")))
        if engine.dialect.name == "sqlite":
            for conflict in ("IGNORE", "FAIL"):
                statement = f"INSERT OR {conflict} INTO ledger ({names}) VALUES ({values})"
                connection.execute(text(statement), entry_row(charge(21 + len(conflict), "a2")))
    expected = {"a0": Balance(used=3000), "a1": Balance(used=13000), "a2": Balance(used=4000)}
    if engine.dialect.name == "sqlite":
        expected["a2"] = Balance(used=6000)
    with store.reading("lab") as reads:
        assert reads.balances() == expected
    assert "sums" not in wrong(database_url)


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        (
            "UPDATE ledger_sum SET amount = amount + 1 WHERE account = 'bio'",
            "lab bio charge (kept -999, entries -1000)",
        ),
        ("DELETE FROM ledger_sum WHERE account = 'bio'", "lab bio charge (kept none, entries -1000)"),
        (
            "INSERT INTO ledger_sum VALUES ('lab', 'bio', 'correction', {true}, 0)",
            "lab bio correction of use (kept 0, entries none)",
        ),
    ],
)
def test_a_sum_that_somebody_changed_is_named_and_made_anew_when_asked(
    store: LedgerStore, engine: Engine, database_url: str, statement: str, names: str
) -> None:
    with store.transaction("lab") as writes:
        writes.append([charge(1), charge(2, "bio"), grant(5000), grant(7, "bio")])
    with store.reading("lab") as reads:
        before = reads.balances()
    with engine.begin() as connection:
        connection.execute(text(statement.format(true=1 if engine.dialect.name == "sqlite" else "true")))
    found = wrong(database_url)
    assert list(found) == ["sums"]
    assert names in found["sums"]
    assert "carme-hub db sum" in found["sums"]
    named = differ(engine)
    assert rebuild_sums(engine) == named
    assert (rebuild_sums(engine), wrong(database_url)) == ([], {})
    with store.reading("lab") as reads:
        assert reads.balances() == before


def test_entries_that_came_without_the_trigger_are_missed_and_the_trigger_is_too(
    store: LedgerStore, engine: Engine, database_url: str
) -> None:
    sqlite = engine.dialect.name == "sqlite"
    with store.transaction("lab") as writes:
        writes.append([grant(5000)])
    with engine.begin() as connection:
        drop = "DROP TRIGGER ledger_sums" if sqlite else "ALTER TABLE ledger DISABLE TRIGGER ledger_sums"
        connection.execute(text(drop))
    assert list(wrong(database_url)) == ["triggers"]
    with store.transaction("lab") as writes:
        writes.append([charge(number, account) for number, account in enumerate(("physics", "bio"), 1)])
    found = wrong(database_url)
    assert list(found) == ["sums", "triggers"]
    assert all(f"lab {account} charge (kept none, entries -1000)" in found["sums"] for account in ("physics", "bio"))
    assert "ledger_sums" in found["triggers"]


def test_an_entry_that_leads_past_what_a_sum_holds_is_refused(store: LedgerStore, engine: Engine) -> None:
    large = 10**18
    with store.transaction("lab") as writes:
        writes.append([grant(4 * large), grant(4 * large)])
    for more in (large + 1, 4 * large):  # the second one is past 64 bits
        with pytest.raises(StoreError), store.transaction("lab") as writes:
            writes.append([grant(more)])
    with store.transaction("lab") as writes:
        writes.append([grant(large)])
    with store.reading("lab") as reads:
        assert reads.balance("physics").granted == 9 * large
    assert differ(engine) == []


def test_writers_of_one_cluster_and_of_several_end_with_the_right_sums(
    stores: list[LedgerStore], engine: Engine
) -> None:
    accounts, begin = [f"a{number}" for number in range(20)], threading.Barrier(4)

    def writes_each_alone(store: LedgerStore, cluster: str, first: int, names: list[str]) -> None:
        begin.wait(60)
        for number in range(first, first + 200, 20):
            with store.transaction(cluster) as writes:
                for n, account in enumerate(names):
                    writes.append([charge(number + n, account, cluster=cluster)])

    with ThreadPoolExecutor(4) as pool:
        every = ((cluster, first) for cluster in ("lab", "elsewhere") for first in (1, 1000))
        work = [
            pool.submit(writes_each_alone, store, cluster, first, accounts if first == 1 else accounts[::-1])
            for store, (cluster, first) in zip(stores, every, strict=False)
        ]
    for each in work:
        each.result()
    assert differ(engine) == []
    for cluster in ("lab", "elsewhere"):
        with LedgerStore(engine).reading(cluster) as reads:
            assert reads.balances() == {account: Balance(used=20_000) for account in accounts}


def test_who_writes_of_the_same_accounts_the_other_way_round_does_not_wait_for_ever(
    stores: list[LedgerStore], engine: Engine
) -> None:
    """No release writes so: past the lock that a cluster's writers take, and many accounts in one statement."""
    accounts = [f"a{number}" for number in range(3)]
    with stores[0].transaction("lab") as writes:
        writes.append([charge(number, account) for number, account in enumerate(accounts, 1)])

    def write(store: LedgerStore, first: int, names: list[str]) -> None:
        rows = [entry_row(charge(first + n, account)) for n, account in enumerate(names)]
        with store._engine.begin() as connection:
            connection.execute(insert(ledger).values(rows))

    with ThreadPoolExecutor(2) as pool:
        with stores[0].transaction("elsewhere") as middle:
            middle.run(text("UPDATE ledger_sum SET amount = amount WHERE account = 'a1'"))
            work = [
                pool.submit(write, stores[1], 10, accounts),
                pool.submit(write, stores[2], 20, accounts[::-1]),
            ]
            # Both have come as far as they can: on SQLite not even to their first statement.
            waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            while engine.dialect.name == "postgresql" and middle.run(waiting).scalar() < len(work):
                assert not any(each.done() for each in work)
        for each in work:
            each.result(60)
    assert differ(engine) == []


def test_balances_do_not_read_the_ledger(store: LedgerStore, engine: Engine) -> None:
    with store.transaction("lab") as writes:
        writes.append([grant(5000), charge(1), charge(2, "bio")])
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE ledger RENAME TO elsewhere"))
    with store.reading("lab") as reads:
        assert LedgerReads.balance(reads, "physics") == Balance(5000, 1000)
        assert reads.balances(["bio", "nobody"]) == {"bio": Balance(used=1000), "nobody": Balance()}
        assert reads.balances() == {"physics": Balance(5000, 1000), "bio": Balance(used=1000)}
