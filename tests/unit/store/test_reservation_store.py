"""Reservations are kept as they are, on SQLite and on PostgreSQL, and nobody writes over what they have not seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Engine, text

from carme_hub.domain.calendar.capacity import Need, Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import HOLDING, Reservation, State
from carme_hub.errors import StoreError
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ConcurrentChange, ReservationStore


def booked(id: str = "r1", start: int = 1000, end: int = 2000, **changes: object) -> Reservation:
    plain = Reservation(
        id=id,
        cluster="lab",
        owner="tina",
        account="teaching",
        title="Deep learning “2”",
        need=Need("a100", 1, 5),
        period=Period(start, end),
        places=(Place("n1", "a100", 1, 1, cpus=8), Place("n2", "a100", 4, 4, whole=True)),
        state=State.CONFIRMED,
        created=500.5,
        users=frozenset({"bob", "alice"}),
        group="course",
        zone="Europe/Berlin",
        series="s1",
        occurrence="2026-10-06T09:00:00",
    )
    return replace(plain, **changes)


@pytest.fixture
def calendar(store: LedgerStore) -> ReservationStore:
    return ReservationStore(store)


def test_a_reservation_is_read_as_it_was_written(calendar: ReservationStore) -> None:
    with calendar.transaction("lab") as writes:
        writes.add([booked(), booked("r2", everybody=True, group="")])
    with calendar.reading("lab") as reads:
        assert reads.get("r1") == booked()
        assert reads.get("r2") == booked("r2", everybody=True, group="")
        assert reads.get("r3") is None
    with calendar.reading("another") as reads:
        assert reads.get("r1") is None


def test_what_a_whole_node_has_of_other_types_is_kept_and_rows_of_before_have_none(
    calendar: ReservationStore, engine: Engine
) -> None:
    mixed = booked("r2", places=(Place("n4", "l4", 1, 1, whole=True, also=(("a100", 4), ("t4", 2))),))
    with calendar.transaction("lab") as writes:
        writes.add([booked(), mixed])
    with calendar.reading("lab") as reads:
        assert reads.get("r2") == mixed
        assert [hash(each) for each in reads.in_states(HOLDING)]
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT id, places FROM reservation"))
        assert {id: "also" in str(places) for id, places in rows} == {"r1": False, "r2": True}


def test_as_many_as_anybody_may_book_are_written_at_once(calendar: ReservationStore) -> None:
    many = [booked(f"r{number:04}", number, number + 1) for number in range(2500)]
    with calendar.transaction("lab") as writes:
        writes.add(many)
    with calendar.reading("lab") as reads:
        assert reads.of_series("s1") == many


def test_what_shares_a_second_is_found_and_what_touches_is_not(calendar: ReservationStore) -> None:
    with calendar.transaction("lab") as writes:
        writes.add([booked(), booked("r2", 2000, 3000), booked("r3", 500, 5000, state=State.CANCELLED)])

    def ids(start: int, end: int) -> list[str]:
        with calendar.reading("lab") as reads:
            return [each.id for each in reads.overlapping(Period(start, end))]

    assert (ids(0, 1000), ids(1999, 2000), ids(2000, 2001), ids(3000, 9000)) == ([], ["r1"], ["r2"], [])
    assert ids(0, 9000) == ["r1", "r2"]
    with calendar.reading("lab") as reads:
        assert reads.occupied(Period(1999, 2000)) == list(booked().occupied())
        assert set(reads.occupied(Period(0, 9000))) == {*booked().occupied(), *booked("r2", 2000, 3000).occupied()}
    with calendar.reading("lab") as reads:
        assert [each.id for each in reads.in_states(set(State))] == ["r3", "r1", "r2"]
        assert [each.id for each in reads.of_owner("tina", 2000)] == ["r3", "r2"]
        assert [each.id for each in reads.of_series("s1")] == ["r3", "r1", "r2"]
        assert [each.id for each in reads.changed_since(2500)] == ["r3", "r2"]


def test_a_change_of_what_was_changed_meanwhile_is_refused(calendar: ReservationStore) -> None:
    with calendar.transaction("lab") as writes:
        writes.add([booked()])
    ended = booked().in_state(State.CANCELLED, 600.0, actor="tina", reason="rain")
    with calendar.transaction("lab") as writes:
        writes.save(ended)
    with pytest.raises(ConcurrentChange, match="Look at it again"), calendar.transaction("lab") as writes:
        writes.save(booked().in_state(State.ACTIVE, 1000.0, actor="carme-hub"))
    with calendar.reading("lab") as reads:
        assert reads.get("r1") == ended
        assert reads.overlapping(Period(0, 9000), HOLDING) == []


def test_what_breaks_off_leaves_nothing(calendar: ReservationStore) -> None:
    with pytest.raises(ZeroDivisionError), calendar.transaction("lab") as writes:
        writes.add([booked(created=float(writes.add([booked("r2")]) is None) / 0)])
    with calendar.reading("lab") as reads:
        assert reads.get("r1") is None


def test_the_database_itself_refuses_a_period_without_a_second(calendar: ReservationStore, engine: Engine) -> None:
    with calendar.transaction("lab") as writes:
        writes.add([booked()])
    with pytest.raises(Exception, match="ck_reservation_period"), engine.begin() as connection:
        connection.execute(text('UPDATE reservation SET "end" = "start"'))


def test_a_row_that_cannot_be_understood_is_named(calendar: ReservationStore, engine: Engine) -> None:
    with calendar.transaction("lab") as writes:
        writes.add([booked()])
    with engine.begin() as connection:
        connection.execute(text("UPDATE reservation SET state = 'odd'"))
    with pytest.raises(StoreError, match="Reservation r1 cannot be understood"), calendar.reading("lab") as reads:
        reads.get("r1")
