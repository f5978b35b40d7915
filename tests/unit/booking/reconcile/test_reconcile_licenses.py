"""Where Slurm counts GPUs by licences, as many as were booked are kept, wherever they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from forged_reservations import HOUR, NOW, Kept, node

from carme_hub.booking import messages
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.slurm_reservations import SlurmReservation
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationStore


@pytest.fixture
def kept(store: LedgerStore) -> Kept:
    return Kept(store, licenses={"a100": "gpu_a100"})


async def test_a_booking_is_one_reservation_of_licences_for_its_people(kept: Kept) -> None:
    one = await kept.book(gpus=2, seats=3)
    assert len(one.places) == 2
    assert (await kept.at(0)).steps == 1
    (there,) = kept.slurm.there.values()
    assert (there.name,) == one.names() == kept.get(one).names()
    assert (there.nodes, there.gpus, there.licenses) == (frozenset(), {}, {"gpu_a100": 6})
    assert (there.users, there.accounts, there.flags) == ({"tina"}, {"teaching"}, {"ANY_NODES"})
    assert (await kept.at(1)).equal
    kept.slurm.there[there.name] = replace(there, licenses={"gpu_a100": 1})
    await kept.at(2)
    assert kept.slurm.there[there.name].licenses == {"gpu_a100": 6}, "what was changed by hand is put right"


async def test_what_was_booked_before_the_site_counted_is_counted_from_then_on(store: LedgerStore) -> None:
    kept = Kept(store)
    one = await kept.book(seats=6)
    await kept.at(0)
    assert len(kept.slurm.there) == 2
    kept.calendar.store = ReservationStore(store, licenses={"a100": "gpu_a100"})
    kept.keeper = kept.new_keeper()
    await kept.at(1)
    assert {name: each.licenses for name, each in kept.slurm.there.items()} == {one.names()[0]: {"gpu_a100": 6}}
    assert (await kept.at(2)).equal


async def test_a_node_that_is_down_breaks_it_only_when_too_few_are_left_in_all(kept: Kept) -> None:
    one = await kept.book(seats=4)
    await kept.at(0)
    kept.nodes["n1"] = node("n1", "down")
    await kept.at(90)
    now = kept.get(one)
    assert (now.problem, now.nodes) == ("", {"n2"}), "so that nobody else books what it will be on"
    assert (await kept.at(91)).equal, "Slurm has nothing to do with that"
    kept.nodes["n2"] = node("n2", gpus=3)
    await kept.at(180)
    assert kept.get(one).problem == (
        "This booking cannot be kept as it is: only 3 of its 4 × a100 are left: n1 is down. It is tried again every "
        "half minute; ask an administrator for help."
    )
    kept.nodes["n1"] = node("n1")
    await kept.at(270)
    assert kept.get(one).problem == ""


async def test_who_begins_first_has_what_is_left(kept: Kept) -> None:
    first, second = await kept.book(1, seats=4), await kept.book(2, seats=4)
    kept.nodes["n1"] = node("n1", "down")
    await kept.at(90)
    assert kept.get(first).problem == ""
    assert "only 0 of its 4 × a100 are left: n1 is down" in kept.get(second).problem


async def test_jobs_of_others_are_counted_wherever_they_run_and_those_in_bookings_are_not(kept: Kept) -> None:
    one, two = await kept.book(0.9, seats=4), await kept.book(seats=2)
    await kept.at(HOUR, interval=HOUR)
    kept.run("n2", inside=one, gpus=Gpus("a100", 4))  # on the nodes of the other
    kept.run("n1", gpus=Gpus("a100", 2), end=NOW + 2 * HOUR)
    await kept.at(HOUR + 90)
    assert [kept.get(each).problem for each in (one, two)] == ["", ""]
    assert kept.get(one).used
    kept.run("n1", gpus=Gpus("a100", 1))
    await kept.at(HOUR + 180)
    problem = kept.get(two).problem
    assert "only 1 of its 2 × a100 are left: jobs of others run on n1" in problem
    kept.jobs[-1] = replace(kept.jobs[-1], phase=Phase.TERMINAL)
    await kept.at(HOUR + 270)
    assert kept.get(two).problem == ""


async def test_nodes_in_maintenance_are_not_counted(kept: Kept) -> None:
    one = await kept.book(40, seats=6)
    window = SlurmReservation("by-hand", Period(NOW, NOW + 100 * HOUR), frozenset({"n2"}), flags=frozenset({"MAINT"}))
    kept.slurm.there["by-hand"] = window
    await kept.at(90)
    assert "only 4 of its 6 × a100 are left: n2 is in maintenance then" in kept.get(one).problem


async def test_what_slurm_refuses_is_said_with_its_words(kept: Kept) -> None:
    one = await kept.book()
    take = kept.slurm.take

    async def refuse(step: object) -> str:
        return "Error creating the reservation: Invalid license specification"

    kept.slurm.take = refuse  # type: ignore[method-assign]
    await kept.at(90)
    assert "Slurm refuses it (Error creating the reservation: Invalid license specification)" in kept.get(one).problem
    kept.slurm.take = take  # type: ignore[method-assign]
    await kept.at(180)
    assert kept.get(one).problem == ""


async def test_the_calendar_says_before_it_is_booked_what_is_not_kept_exactly(kept: Kept) -> None:
    one = await kept.book()
    said = messages.not_exact(kept.supply())
    for part in ("other nodes", "on one node", "--licenses", "shards"):
        assert part in said
    assert messages.notes(kept.supply(), one.need, one.places) == (said,)


async def test_what_slurm_adds_up_without_need_is_made_in_the_order_of_the_starts(kept: Kept) -> None:
    short = [await kept.book(start, 1, seats=4) for start in (2, 4, 6)]
    assert (await kept.at(0)).refused == {}
    long = await kept.book(1, 8, seats=4)  # never more than eight at one moment
    assert len((await kept.at(1)).refused) == 1
    assert (await kept.at(2)).refused == {}
    assert set(kept.slurm.there) == {name for each in (*short, long) for name in each.names()}
    assert (await kept.at(90)).equal
    assert not any(kept.get(each).problem for each in (*short, long))


async def test_what_jobs_name_makes_no_way_and_what_cannot_be_kept_is_not_tried_over_and_over(kept: Kept) -> None:
    early, late = await kept.book(2, 1, seats=4), await kept.book(4, 1, seats=4)
    waiting = kept.run(inside=late, phase=Phase.WAITING)
    await kept.at(0)
    long = await kept.book(1, 8, seats=4)
    kept.slurm.licenses = 7
    for seconds in range(1, 200, 20):
        await kept.at(seconds)
        assert set(late.names()) <= set(kept.slurm.there), waiting
    assert "Invalid license specification" in kept.get(long).problem
    assert set(early.names()) <= set(kept.slurm.there)
