"""What cannot be kept where it was promised is kept elsewhere; where that cannot be, its owner is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from forged_reservations import HOUR, NOW, Kept, node

from carme_hub.booking import messages
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Kind, Reservation, State
from carme_hub.domain.calendar.slurm_reservations import SlurmReservation, Step
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import SHARD, Gpus
from carme_hub.domain.cluster.tres import ANY_TYPE
from carme_hub.store.ledger.writes import LedgerStore

DAY = 24


@pytest.fixture
def kept(store: LedgerStore) -> Kept:
    return Kept(store)


def nodes(reservation: Reservation) -> set[str]:
    return {*reservation.nodes}


async def test_it_is_moved_from_a_node_that_stays_down_and_slurm_with_it(kept: Kept) -> None:
    one = await kept.book()
    await kept.at(0)
    kept.nodes["n1"] = node("n1", "down")
    await kept.at(30)
    assert nodes(kept.get(one)) == {"n1"}, "a node that flaps moves nobody"
    await kept.at(60)
    now = kept.get(one)
    assert (nodes(now), now.period, now.state, now.problem) == ({"n2"}, one.period, State.CONFIRMED, "")
    assert (now.reason, now.version) == ("moved from n1 to n2: n1 is down", one.version + 1)
    assert kept.told == [now]
    await kept.at(61)
    assert {each.nodes for each in kept.slurm.there.values()} == {frozenset({"n2"})}
    assert (await kept.at(62)).equal


async def test_a_node_that_comes_and_goes_moves_nobody(kept: Kept) -> None:
    one = await kept.book()
    for seconds in range(0, 600, 30):
        kept.nodes["n1"] = node("n1", "down" if seconds % 60 else "idle")
        await kept.at(seconds)
    assert kept.get(one) == one


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (node("n1", "idle", flags=("drain",)), "n1 is drained"),
        (node("n1", "idle", flags=("not_responding",)), "n1 does not answer"),
        (None, "n1 is not in Slurm any more"),
    ],
)
async def test_the_reason_is_said(kept: Kept, broken: object, said: str) -> None:
    one = await kept.book()
    kept.nodes.pop("n1") if broken is None else kept.nodes.update(n1=broken)
    await kept.at(60)
    assert kept.get(one).reason == f"moved from n1 to n2: {said}"


async def test_where_nothing_else_is_free_its_owner_is_told_once_until_it_can_be_kept(kept: Kept) -> None:
    one, two = await kept.book(seats=4), await kept.book(seats=3)
    kept.nodes["n1"] = node("n1", "down")
    await kept.at(600)
    (problem,) = [each for each in kept.told if each.problem]
    assert problem.id == one.id
    assert problem.problem == (
        "This booking cannot be kept as it is: n1 is down, and no other a100 are free for all of its time. The "
        "search continues."
    )
    assert (nodes(kept.get(one)), kept.get(two)) == ({"n1"}, two)
    kept.nodes["n1"] = node("n1")
    await kept.at(630)
    assert kept.get(one).problem
    await kept.at(660)
    assert (kept.get(one).problem, kept.told[-1]) == ("", kept.get(one))


async def test_a_place_that_becomes_free_later_is_taken_then(kept: Kept) -> None:
    one, two = await kept.book(seats=4), await kept.book(seats=3)
    kept.nodes["n1"] = node("n1", "down")
    await kept.at(60)
    assert kept.get(one).problem
    with kept.calendar.store.transaction("lab") as writes:
        writes.save(two.in_state(State.CANCELLED, kept.slurm.now, actor="tina"))
    await kept.at(90)
    assert (nodes(kept.get(one)), kept.get(one).problem) == ({"n2"}, "")


async def test_of_a_booking_on_two_nodes_no_name_is_left_behind_in_slurm(kept: Kept) -> None:
    kept.nodes["n2"] = node("n2", gpus=2)
    one = await kept.book(seats=6)
    kept.nodes |= {"n3": node("n3", gpus=8)}
    await kept.at(0)
    assert len(kept.slurm.there) == 2
    kept.nodes["n2"] = node("n2", "down", gpus=2)
    await kept.at(90)
    assert nodes(kept.get(one)) == {"n3"}
    assert list(kept.slurm.there) == [one.names()[0]]


async def test_what_has_begun_is_moved_only_while_no_job_runs_in_it(kept: Kept) -> None:
    one = await kept.book(0, seats=5)
    await kept.at(30)
    kept.nodes |= {"n3": node("n3")}
    kept.run("n1", inside=one)
    kept.nodes["n2"] = node("n2", "down")
    await kept.at(90)
    assert kept.get(one).problem.endswith("n2 is down. It is not moved to other nodes, because jobs run in it.")
    kept.jobs[0] = replace(kept.jobs[0], phase=Phase.TERMINAL, end=kept.slurm.now)
    kept.run(inside=one, phase=Phase.WAITING)
    await kept.at(120)
    assert nodes(kept.get(one)) == {"n1", "n3"}
    assert kept.get(one).reason.endswith("n2 is down. Stop and restart the sessions and jobs that waited for it")


async def test_what_begins_later_than_in_a_day_waits_for_its_node(kept: Kept) -> None:
    one = await kept.book(DAY + 1)
    kept.nodes["n1"] = node("n1", "down")
    await kept.at(HOUR - 30)
    assert kept.get(one) == one
    await kept.at(HOUR + 60)
    assert nodes(kept.get(one)) == {"n2"}


async def test_while_slurm_is_not_known_nothing_is_broken(kept: Kept) -> None:
    one = await kept.book()
    kept.nodes["n1"] = node("n1", "down")
    kept.slurm.down = True
    await kept.at(600)
    kept.slurm.down, kept.blind = False, True
    await kept.at(1200)
    assert kept.get(one) == one


# -- jobs of others ---------------------------------------------------------------------------------------------------


async def test_jobs_that_may_still_hold_its_gpus_move_it(kept: Kept) -> None:
    one = await kept.book(seats=2)
    for end in (NOW + HOUR, NOW + HOUR + 1, 0.0):  # the first ends in time, the last has no limit
        kept.run("n1", end=end)
    await kept.at(60)
    assert kept.get(one) == one, "there is room beside the two that may stay"
    kept.run("n1", end=NOW + 2 * HOUR)
    await kept.at(120)
    assert (nodes(kept.get(one)), kept.get(one).reason) == (
        {"n2"},
        "moved from n1 to n2: jobs of others may still run then on n1",
    )


async def test_what_jobs_leave_goes_to_who_begins_first(kept: Kept) -> None:
    first, second = await kept.book(0.9, seats=2), await kept.book(1, seats=2)
    assert nodes(first) == nodes(second) == {"n1"}
    kept.run("n1", end=NOW + 2 * HOUR)
    await kept.at(60)
    assert (nodes(kept.get(first)), nodes(kept.get(second))) == ({"n1"}, {"n2"})


async def test_jobs_in_bookings_of_that_moment_are_not_counted_twice(kept: Kept) -> None:
    one = await kept.book(0, 1, seats=2)
    two = await kept.book(0.5, 1, seats=2)
    assert nodes(one) == nodes(two) == {"n1"}
    await kept.at(0)
    for _ in range(2):
        kept.run("n1", inside=one)
    await kept.at(60)
    assert kept.get(two) == two


async def test_a_job_in_what_was_given_back_is_one_of_others(kept: Kept) -> None:
    one = await kept.book(0, 4, seats=4)
    await kept.at(0)
    for _ in range(4):
        kept.run("n1", inside=one)
    kept.slurm.in_use = {one.names()[0]}
    await kept.at(30)
    kept.save(kept.get(one).replace(state=State.RELEASED, ended=kept.slurm.now))
    two = await kept.book(0.1, seats=4)
    assert nodes(two) == {"n1"}
    await kept.at(120)
    assert nodes(kept.get(two)) == {"n2"}


async def test_no_place_is_better_where_jobs_run_too(kept: Kept) -> None:
    one = await kept.book(seats=2)
    for name in ("n1", "n2"):
        kept.run(name, gpus=Gpus("a100", 3))
    await kept.at(60)
    assert kept.get(one).problem.startswith(
        "This booking cannot be kept as it is: jobs of others may still run then on n1, and no other a100"
    )


@pytest.mark.parametrize(
    ("gpus", "moves"),
    [
        (Gpus(SHARD, 5), True),  # of two GPUs
        (Gpus(SHARD, 4), False),
        (Gpus(ANY_TYPE, 2), True),
        (Gpus(), False),
        (Gpus("h100", 4), False),
    ],
)
async def test_what_kind_of_gpus_jobs_hold_counts(kept: Kept, gpus: Gpus, moves: bool) -> None:
    one = await kept.book(seats=3)
    kept.nodes["n1"] = node("n1", shards=16)
    kept.run("n1", gpus=gpus)
    await kept.at(60)
    assert (nodes(kept.get(one)) == {"n2"}) is moves


async def test_a_whole_node_is_not_whole_with_any_job_on_it(kept: Kept) -> None:
    one = await kept.book(gpus=0)
    kept.run("n1", gpus=Gpus())
    await kept.at(60)
    assert nodes(kept.get(one)) == {"n2"}


# -- Slurm's refusals and maintenance ---------------------------------------------------------------------------------


async def test_what_slurm_refuses_on_a_node_is_tried_elsewhere_and_not_to_and_fro(kept: Kept) -> None:
    one = await kept.book()
    kept.slurm.busy = {"n1", "n2"}
    await kept.at(1200)
    assert [each.reason for each in kept.told if not each.problem] == ["moved from n1 to n2: Slurm does not reserve n1"]
    assert "Slurm does not reserve n2, and no other" in kept.get(one).problem
    kept.slurm.busy = set()
    await kept.at(1290)
    assert kept.get(one).problem == ""
    assert {each.nodes for each in kept.slurm.there.values()} == {frozenset({"n2"})}


async def test_what_slurm_refuses_for_its_people_is_not_moved(kept: Kept) -> None:
    one = await kept.book()

    async def refuse(_: Step) -> str:
        return "Error creating the reservation: Invalid user id"

    kept.slurm.take = refuse
    await kept.at(600)
    assert nodes(kept.get(one)) == {"n1"}
    assert "Slurm refuses it (Error creating the reservation: Invalid user id)" in kept.get(one).problem
    assert len(kept.told) == 1


async def test_maintenance_in_slurm_by_hand_moves_bookings_at_any_time(kept: Kept) -> None:
    one = await kept.book(DAY * 5)
    await kept.at(0)
    kept.slurm.there["root_1"] = SlurmReservation(
        "root_1", Period(NOW, NOW + 6 * DAY * HOUR), frozenset({"n1"}), flags=frozenset({"MAINT", "SPEC_NODES"})
    )
    await kept.at(60)
    assert kept.get(one).reason == "moved from n1 to n2: n1 is in maintenance then"


async def test_maintenance_in_the_calendar_is_in_slurm_and_its_problem_stays_as_it_was_told(kept: Kept) -> None:
    one = await kept.book(5 * DAY, seats=8)
    over = one.replace(id="maintenance", kind=Kind.MAINTENANCE, account="", owner="root", version=1)
    over = over.replace(places=tuple(each for each in one.places if each.node == "n1"))
    with kept.calendar.store.transaction("lab") as writes:
        writes.add([over])
    await kept.at(60)
    (there,) = [each for each in kept.slurm.there.values() if each.maintenance]
    assert (there.flags, there.users, there.nodes, there.accounts) == (
        {"MAINT", "IGNORE_JOBS"},
        {"root"},
        {"n1"},
        frozenset(),
    )
    assert kept.get(one).problem == messages.maintenance_problem(over, one, NOW)
    told = len(kept.told)
    kept.slurm.now += 4 * DAY * HOUR  # its days are said in other words by now
    await kept.at(4 * DAY * HOUR + 120)
    assert len(kept.told) == told
    with kept.calendar.store.transaction("lab") as writes:
        writes.save(over.in_state(State.CANCELLED, kept.slurm.now, actor="root"))
    await kept.at(4 * DAY * HOUR + 180)
    assert kept.get(one).problem == ""


async def test_who_took_the_place_meanwhile_keeps_it(kept: Kept) -> None:
    one = await kept.book(seats=4)
    kept.nodes["n1"] = node("n1", "down")
    await kept.at(30)
    kept.nodes["n3"] = node("n3")
    two = await kept.book(seats=4)
    three = await kept.book(seats=4)
    assert nodes(two) | nodes(three) == {"n2", "n3"}
    await kept.at(90)
    assert (kept.get(two), kept.get(three), nodes(kept.get(one))) == (two, three, {"n1"})


async def test_as_many_gpus_as_before_and_no_more(kept: Kept) -> None:
    kept.by_node = True
    one = await kept.book(gpus=2, seats=1)
    kept.nodes["n2"] = node("n2", gpus=8)
    kept.nodes["n1"] = node("n1", "down")
    await kept.at(60)
    assert kept.get(one).problem, "nobody was asked who would pay for eight"
    kept.nodes["n3"] = node("n3")
    await kept.at(90)
    assert (nodes(kept.get(one)), kept.get(one).gpus) == ({"n3"}, 4)


async def test_a_maintenance_that_ends_by_itself_is_no_problem_and_who_could_not_come_is_not_missed(kept: Kept) -> None:
    one = await kept.book(3, 8, gpus=4)
    period = Period(NOW + HOUR, NOW + 4 * HOUR)
    window = one.replace(id="maintenance", kind=Kind.MAINTENANCE, account="", owner="root", period=period)
    with kept.calendar.store.transaction("lab") as writes:
        writes.add([window])
    kept.save(one.replace(problem=messages.maintenance_problem(window, one, NOW)))
    await kept.at(4 * HOUR - 30)
    assert kept.get(one).problem
    await kept.at(4 * HOUR + 60)
    assert (kept.get(one).state, kept.get(one).problem) == (State.ACTIVE, "")
    await kept.at(4 * HOUR + 900 - 30)
    assert kept.get(one).state is State.ACTIVE
    await kept.at(4 * HOUR + 960)
    assert kept.get(one).state is State.RELEASED
