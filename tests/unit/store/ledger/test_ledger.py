"""The ledger is append-only, writes a key once, and its sums are exact, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from contextlib import suppress

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import Balance, Entry, Kind, charge_key, hold_key, refund_key, release_key
from carme_hub.errors import StoreError
from carme_hub.store.ledger.changes import LedgerChanges, changes_after, newest_id
from carme_hub.store.ledger.reads import UsedAmount
from carme_hub.store.ledger.writes import Anomaly, Filter, LedgerStore, Subject

DAY = 86400


def grant(amount: int, account: str = "physics", key: str = "g1", **changes: object) -> Entry:
    return Entry(key, Kind.GRANT, "lab", account, amount, 10.0, actor="root").replace(**changes)


def hold(session: str, amount: int = 3_600_000, at: float = 100.0, extension: int = 0, **changes: object) -> Entry:
    entry = Entry(hold_key(session, extension), Kind.HOLD, "lab", "physics", -amount, at, "ada", session)
    return entry.replace(start=int(at), end=int(at) + 3600, gpus=(Gpus("a100", 1),)).replace(**changes)


def release(session: str, amount: int = 3_600_000, at: float = 200.0) -> Entry:
    return Entry(release_key(session), Kind.RELEASE, "lab", "physics", amount, at, "ada", session)


def charge(job: int, start: int, end: int, rate: int = 1000, submitted: int = 50, **changes: object) -> Entry:
    key, amount = charge_key("lab", job, submitted), -(end - start) * rate
    entry = Entry(key, Kind.CHARGE, "lab", "physics", amount, end + 5.0, "ada", job_id=job, submitted=submitted)
    return entry.replace(start=start, end=end, gpus=(Gpus("a100", 1),)).replace(**changes)


def refund(of: Entry) -> Entry:
    return of.replace(
        key=refund_key("lab", of.job_id, of.submitted), kind=Kind.CORRECTION, amount=-of.amount, reason="x"
    )


def write(store: LedgerStore, *entries: Entry) -> list[Entry]:
    with store.transaction("lab") as now:
        return now.append(entries)


def test_an_entry_comes_back_as_it_was_written(store: LedgerStore) -> None:
    one = charge(7, 60, 90).replace(
        gpus=(Gpus("a100", 2), Gpus("1g.10gb", 1)), factor=0, partition="gpu", qos="high", nodes="n1", reason="because"
    )
    [written] = write(store, one)
    assert written.id > 0
    with store.reading("lab") as now:
        assert now.entries([one.key]) == {one.key: written}
        assert now.statement(Filter()) == [written]


def test_it_is_told_whom_what_was_written_since_a_look_is_about(store: LedgerStore) -> None:
    with store.reading("lab") as now:
        assert newest_id(now) == 0
    write(store, grant(5), hold("s1"))
    with store.reading("lab") as now:
        last = newest_id(now)
        assert changes_after(now, 0) == LedgerChanges(last, frozenset({"ada"}), frozenset({"physics"}))
        assert changes_after(now, last) == LedgerChanges(last)
    write(store, grant(7, account="teaching", key="g2"), charge(7, 60, 90))
    with store.reading("lab") as now:
        assert changes_after(now, last) == LedgerChanges(
            newest_id(now), frozenset({"ada"}), frozenset({"physics", "teaching"})
        )


def test_a_key_is_written_once_and_it_is_told_which_were_new(store: LedgerStore) -> None:
    assert [e.key for e in write(store, grant(5), grant(7, key="g2"))] == ["g1", "g2"]
    assert [e.key for e in write(store, grant(9), grant(1, key="g3"), grant(2, key="g3"))] == ["g3"]
    with store.reading("lab") as now:
        assert now.balance("physics") == Balance(granted=13)


def test_no_other_key_charges_the_same_incarnation_again_and_nothing_is_half_written(store: LedgerStore) -> None:
    write(store, charge(7, 60, 90))
    with pytest.raises(StoreError, match="ledger"):
        write(store, grant(5), charge(7, 60, 95).replace(key="another"))
    with store.reading("lab") as now:
        assert now.balance("physics") == Balance(used=30_000)
    write(store, charge(7, 100, 110, submitted=99), grant(5), grant(6, key="g2"))  # no job: never the same
    with store.reading("lab") as now:
        assert now.balance("physics") == Balance(granted=11, used=40_000)


@pytest.mark.parametrize("statement", ["UPDATE ledger SET amount = 1", "DELETE FROM ledger"])
def test_the_database_itself_refuses_to_change_or_delete_an_entry(
    store: LedgerStore, engine: Engine, statement: str
) -> None:
    write(store, grant(5))
    with pytest.raises(SQLAlchemyError, match="append-only"), engine.begin() as connection:
        connection.execute(text(statement))
    with store.reading("lab") as now:
        assert now.balance("physics").left == 5


def test_an_exception_undoes_the_whole_transaction(store: LedgerStore) -> None:
    def stopped_halfway() -> None:
        with store.transaction("lab") as now:
            now.append([grant(5)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stopped_halfway()
    with store.reading("lab") as now:
        assert now.balances() == {}


def test_holds_are_open_until_their_release_and_extensions_belong_to_them(store: LedgerStore) -> None:
    write(store, hold("s1"), hold("s2"), hold("s1", 900_000, 3700, extension=1, end=4600))
    with store.reading("lab") as now:
        held = now.open_holds()
        assert held["s1"].amount == 4_500_000
        assert (held["s1"].extensions, held["s1"].seconds) == (1, 4500)
        assert now.balance("physics") == Balance(held=8_100_000)
        assert list(now.open_holds(["s2", "s3"])) == ["s2"]
    write(store, release("s1", 4_500_000))
    write(store, release("s1", 4_500_000))
    with store.reading("lab") as now:
        assert list(now.open_holds()) == ["s2"]
        assert now.balance("physics") == Balance(held=3_600_000)


def test_grants_use_and_refunds_are_told_apart_in_the_balance(store: LedgerStore) -> None:
    one = charge(7, 60, 90)
    late = Entry("c1", Kind.CORRECTION, "lab", "physics", -4, 20.0, "ada", start=80, end=80)
    lost = Entry("c2", Kind.CORRECTION, "lab", "physics", -50, 20.0)
    write(store, grant(100), one, refund(one), charge(8, 60, 61), late, lost, grant(3, "bio", "g2"))
    with store.reading("lab") as now:
        assert now.balances() == {"physics": Balance(50, 1004, 0), "bio": Balance(3)}
        assert now.balance("nobody") == Balance()
    with store.reading("elsewhere") as now:
        assert now.balances() == {}


def test_a_job_across_midnight_is_split_between_the_days_exactly(store: LedgerStore) -> None:
    write(store, charge(7, DAY - 7, 2 * DAY + 11, rate=2 * 1501), charge(8, 5, 9))
    ada = Subject(users=frozenset({"ada"}))
    with store.reading("lab") as now:
        days = [now.used(ada, day * DAY, (day + 1) * DAY) for day in range(4)]
        assert [day.amount for day in days] == [4000 + 7 * 3002, DAY * 3002, 11 * 3002, 0]
        assert now.used(ada).amount == sum(day.amount for day in days)
        assert now.used(ada, DAY).amount == (DAY + 11) * 3002
        assert now.used(ada, 0, DAY) == UsedAmount(4000 + 7 * 3002, 9)


def test_a_refund_counts_back_in_the_window_of_its_job(store: LedgerStore) -> None:
    one = charge(7, DAY - 10, DAY + 20)
    write(store, one, refund(one).replace(at=5 * DAY), charge(8, DAY, DAY + 1))
    with store.reading("lab") as now:
        assert now.used(Subject("physics"), 0, DAY).amount == 0
        assert now.used(Subject("physics"), DAY, 2 * DAY).amount == 1000


def test_use_is_of_an_account_of_a_user_or_of_a_set_of_users(store: LedgerStore) -> None:
    write(store, charge(1, 0, 1), charge(2, 0, 2, user="bob"), charge(3, 0, 4, user="eve", account="bio"))
    with store.reading("lab") as now:
        assert now.used(Subject("physics")).amount == 3000
        assert now.used(Subject(users=frozenset({"bob", "eve"}))).amount == 6000
        assert now.used(Subject("bio", frozenset({"bob", "eve"}))).amount == 4000
        assert now.used(Subject(users=frozenset())).amount == 0
        assert now.oldest_uses(Subject("physics"), 0) == [(0, 1, 1000), (0, 2, 2000)]


def test_starts_are_counted_once_for_each_session_also_when_it_is_over(store: LedgerStore) -> None:
    write(store, hold("s0", at=100.0), hold("s1", at=5000.0), hold("s1", 9, 5100.0, extension=1), hold("s2", at=6000.0))
    write(store, release("s1"))
    with store.reading("lab") as now:
        assert now.started(Subject(users=frozenset({"ada"})), since=200) == (5000.0, 6000.0)


def test_a_statement_comes_in_pages_newest_first(store: LedgerStore) -> None:
    write(store, *(charge(n, n, n + 1) for n in range(1, 8)), grant(5), charge(9, 1, 2, user="bob"))
    which, seen, before = Filter(account="physics", user="ada", kind=Kind.CHARGE), [], 0
    with store.reading("lab") as now:
        while page := now.statement(which, before, most=3):
            seen += [entry.job_id for entry in page]
            before = page[-1].id
        assert seen == [7, 6, 5, 4, 3, 2, 1]
        assert [e.job_id for e in now.statement(Filter(since=9.0, until=11.0, user="ada"))] == [4, 3]


def test_an_anomaly_is_written_once_and_leaves_the_queue_when_somebody_decides(store: LedgerStore) -> None:
    odd = Anomaly("negative:lab:7:50", "negative", "lab", 100.0, 7, 50, "physics", "ada", {"start": 9, "end": 3})
    with store.transaction("lab") as now:
        assert now.add_anomalies([odd, odd]) == [odd]
        assert now.add_anomalies([odd]) == []
    with store.transaction("lab") as now:
        [found] = now.anomalies()
        assert found.seen == {"start": 9, "end": 3}
        assert now.settle_anomaly(found.id, 200.0, "root", "not charged")
        assert not now.settle_anomaly(found.id, 201.0, "eve", "charged")
    with store.reading("lab") as now:
        assert now.anomalies() == []
        [found] = now.anomalies(settled=True)
        assert (found.settled, found.settled_by, found.decision) == (200.0, "root", "not charged")


def test_every_version_of_a_note_is_kept(store: LedgerStore) -> None:
    with store.transaction("lab") as now:
        now.add_note("policy", {"version": 1}, 10.0, "root")
        now.add_note("policy", {"version": 2}, 20.0, "root")
        now.add_note("reconciled", [1], 30.0)
    with store.reading("lab") as now:
        newest = now.note("policy")
        assert newest is not None
        assert newest.value == {"version": 2}
        assert [note.at for note in now.note_history("policy")] == [20.0, 10.0]
        assert now.note("other") is None


def test_who_only_reads_waits_for_no_writer(store: LedgerStore) -> None:
    write(store, grant(5))
    with store.transaction("lab") as writing:
        writing.append([grant(7, key="g2")])
        with store.reading("lab") as now:
            assert now.balance("physics").left == 5
    with store.reading("lab") as now:
        assert now.balance("physics").left == 12


def test_a_database_that_is_not_there_is_a_store_error(store: LedgerStore, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE ledger RENAME TO gone"))
    with pytest.raises(StoreError, match="ledger"), store.reading("lab") as now:
        now.statement(Filter())
    with pytest.raises(StoreError, match="ledger"):
        write(store, grant(5))


def test_what_is_only_tried_was_never_there(store: LedgerStore) -> None:
    told: list[object] = []
    with LedgerStore(store._engine, told.append).transaction("lab") as writes:
        writes.append([grant(5)])
        with writes.trial():
            writes.append([hold("tried")])
            writes.add_note("tried", {}, 10.0)
            assert len(writes.open_holds(["tried"])) == 1
        with suppress(ValueError), writes.trial():
            writes.append([hold("refused")])
            raise ValueError
        assert writes.open_holds(["tried", "refused"]) == {}
        writes.append([hold("done")])
    (committed,) = told
    assert [each.key for each in committed.entries] == ["g1", hold_key("done")]  # type: ignore[attr-defined]
    assert committed.notes == ()  # type: ignore[attr-defined]
    with store.reading("lab") as reads:
        assert reads.note("tried") is None
        assert set(reads.open_holds(["tried", "refused", "done"])) == {"done"}
