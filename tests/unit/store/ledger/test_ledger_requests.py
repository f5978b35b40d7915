"""Requests and anomalies are found by the database, in pages without a gap, however many there ever were."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine

from carme_hub.store.ledger.requests import REQUEST, RequestFilter, requests_in
from carme_hub.store.ledger.writes import Anomaly, LedgerStore


def write(store: LedgerStore, id: str, user: str = "ada", account: str = "physics", **more: Any) -> None:
    """Keep one version of a request, written at the time of its decision."""
    value = {"id": id, "user": user, "account": account, "state": "open", "decided": 0.0, **more}
    with store.transaction("lab") as writes:
        writes.add_note(REQUEST, value, value["decided"] or 1.0, user)


def found(store: LedgerStore, which: RequestFilter, **more: Any) -> list[str]:
    with store.reading("lab") as reads:
        return [value["id"] for _, value in requests_in(reads, which, **more)]


@pytest.fixture
def some(store: LedgerStore) -> LedgerStore:
    """Four requests, of which the second and the first were answered, in this order."""
    for id, user, account in (("a", "ada", "physics"), ("b", "bob", "bio"), ("c", "ada", "bio"), ("d", "eve", "chem")):
        write(store, id, user, account)
    write(store, "b", "bob", "bio", state="denied", decided=100.5)
    write(store, "a", state="approved", decided=200.5)
    with store.transaction("lab") as writes:
        writes.add_note("policy", {"id": "x", "state": "open"}, 1.0)
    with store.transaction("other") as writes:
        writes.add_note(REQUEST, {"id": "y", "state": "open"}, 1.0)
    return store


def test_each_request_is_there_once_as_it_stands_the_newest_first(some: LedgerStore) -> None:
    with some.reading("lab") as reads:
        every = [(value["id"], value["state"]) for _, value in requests_in(reads, RequestFilter())]
    assert every == [("d", "open"), ("c", "open"), ("b", "denied"), ("a", "approved")]


def test_requests_are_told_apart_by_what_they_say_and_by_who_may_see_them(some: LedgerStore) -> None:
    assert found(some, RequestFilter(id="b")) == ["b"]
    assert found(some, RequestFilter(account="bio")) == ["c", "b"]
    assert found(some, RequestFilter(user="ada", state="open")) == ["c"]
    assert found(some, RequestFilter(state="open")) == ["d", "c"]
    assert found(some, RequestFilter(since=150)) == ["d", "c", "a"]
    assert found(some, RequestFilter(seen_by=("ada", ()))) == ["c", "a"]
    assert found(some, RequestFilter(seen_by=("bob", ("chem",)))) == ["d", "b"]
    assert found(some, RequestFilter(seen_by=("", ("bio",)), state="open")) == ["c"]
    assert found(some, RequestFilter(seen_by=("", ()))) == []


def test_notes_of_other_kinds_are_never_read_as_requests(some: LedgerStore, engine: Engine) -> None:
    """PostgreSQL may calculate a condition on rows that another condition leaves out."""
    with some.transaction("lab") as writes:
        writes.add_note("drift", {"missing": [], "decided": []}, 300.0)
    with engine.begin() as connection:
        connection.exec_driver_sql("ANALYZE")  # what it chooses for a table that it knows to be small
    assert found(some, RequestFilter(since=150)) == ["d", "c", "a"]
    assert found(some, RequestFilter(user="ada", since=150)) == ["c", "a"]


def test_pages_of_requests_follow_each_other_whatever_is_asked_and_answered_meanwhile(store: LedgerStore) -> None:
    for number in range(7):
        write(store, f"r{number}")
    seen, before, pages = [], 0, 0
    while pages == 0 or before:
        with store.reading("lab") as reads:
            page = requests_in(reads, RequestFilter(), before, 3)
        seen += [value["id"] for _, value in page]
        before, pages = (page[-1][0] if len(page) == 3 else 0), pages + 1
        write(store, f"new{pages}")
        write(store, "r2", state="denied", decided=5.0)
    assert seen == [f"r{number}" for number in reversed(range(7))]


def test_no_anomaly_is_left_out_because_there_are_many(store: LedgerStore) -> None:
    odd = [Anomaly(f"long:lab:{n}:5", "runaway" if n < 3 else "long", "lab", 1.0, n, 5) for n in range(1, 1204)]
    with store.transaction("lab") as writes:
        for each in odd:
            writes.add_anomalies([each])  # of several at once any may be the first
        writes.settle_anomaly(writes.anomalies()[-1].id, 2.0, "root", "no")
        assert writes.count_waiting() == 1202
        assert [each.job_id for each in writes.anomalies(kind="runaway")] == [2]
        assert [each.job_id for each in writes.anomalies()] == list(range(1203, 1, -1))
        newest = writes.anomalies(most=2)
        assert [each.job_id for each in writes.anomalies(before=newest[-1].id, most=2)] == [1201, 1200]
        oldest = writes.anomalies_waiting(most=2)
        assert [each.job_id for each in oldest] == [2, 3]
        assert [each.job_id for each in writes.anomalies_waiting(oldest[-1].id, 2)] == [4, 5]
        assert [each.job_id for each in writes.anomalies(settled=True)] == [1]
