"""Who comes keeps a booking, who does not loses it with a refund, and nothing is taken while nobody can know."""

from __future__ import annotations

import logging

import pytest
from forged_reservations import HOUR, NOW, Kept

from carme_hub.domain.calendar.reservations import Kind, State
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.store.ledger.writes import LedgerStore

MINUTE = 60


@pytest.fixture
def kept(store: LedgerStore) -> Kept:
    return Kept(store)


def overs(kept: Kept) -> list[object]:
    return [done for done in kept.ledger.done if done[0] == "over"]


async def test_who_does_not_come_within_the_time_gives_it_back_and_the_rest_is_free(kept: Kept) -> None:
    one = await kept.book()
    await kept.at(HOUR + 15 * MINUTE - 1)
    assert kept.get(one).state is State.ACTIVE
    last = await kept.at(HOUR + 15 * MINUTE)
    now = kept.get(one)
    assert (now.state, now.reason, now.actor) == (State.RELEASED, "unused for 15 min", "carme-hub")
    assert now.ended == NOW + HOUR + 15 * MINUTE
    assert overs(kept) == [("over", one.id, "released", NOW + HOUR + 15 * MINUTE)]
    assert kept.slurm.there == {}, "its reservation goes in the same pass"
    assert [each.state for each in kept.told] == [State.ACTIVE, State.RELEASED]
    assert last.changed == (now,)
    assert (await kept.book(seats=8)).gpus == 8


async def test_who_comes_keeps_it_to_its_end_also_when_they_go_at_once(kept: Kept) -> None:
    one = await kept.book()
    await kept.at(HOUR + MINUTE)
    kept.run("n1", inside=one)
    await kept.at(HOUR + 2 * MINUTE)
    assert kept.get(one).used == NOW + HOUR + 90
    kept.jobs.clear()
    await kept.at(3 * HOUR - 1)
    assert kept.get(one).state is State.ACTIVE
    await kept.at(3 * HOUR)
    assert kept.get(one).state is State.ENDED
    assert overs(kept) == [("over", one.id, "ended", NOW + 3 * HOUR)]


async def test_a_job_that_came_and_went_between_two_looks_was_there(kept: Kept) -> None:
    one = await kept.book()
    await kept.at(HOUR + MINUTE)
    kept.run("n1", inside=one, phase=Phase.TERMINAL, end=kept.slurm.now + 5)
    await kept.at(HOUR + 20 * MINUTE)
    assert kept.get(one).used


async def test_a_job_that_waits_for_it_keeps_it_and_one_that_was_cancelled_does_not(kept: Kept) -> None:
    one, two = await kept.book(), await kept.book()
    await kept.at(HOUR)
    kept.run(inside=one, phase=Phase.WAITING)
    kept.run(inside=two, phase=Phase.TERMINAL, start=NOW + HOUR, end=NOW + HOUR)
    await kept.at(HOUR + 20 * MINUTE)
    assert (kept.get(one).state, kept.get(one).used) == (State.ACTIVE, 0)
    assert kept.get(two).state is State.RELEASED


async def test_jobs_elsewhere_and_in_other_bookings_are_no_use_of_it(kept: Kept) -> None:
    one, two = await kept.book(), await kept.book(seats=1)
    await kept.at(HOUR)
    kept.run("n2", inside=two)
    kept.run("n2")
    await kept.at(HOUR + 15 * MINUTE)
    assert kept.get(one).state is State.RELEASED
    assert kept.get(two).used


async def test_a_job_that_named_several_is_in_that_on_whose_node_it_is(kept: Kept) -> None:
    one, two = await kept.book(gpus=4, seats=1), await kept.book(gpus=4, seats=1)
    (first,), (second,) = one.nodes, two.nodes
    assert first != second
    await kept.at(HOUR)
    kept.run(second, reservation=f"{one.names()[0]},{two.names()[0]}")
    await kept.at(HOUR + MINUTE)
    assert (kept.get(one).used, bool(kept.get(two).used)) == (0, True)


async def test_while_slurm_is_not_known_nothing_is_given_back_and_the_time_counts_anew_after_it(kept: Kept) -> None:
    one = await kept.book()
    await kept.at(HOUR + MINUTE)
    kept.slurm.down = True
    await kept.at(HOUR + 40 * MINUTE)
    assert kept.get(one).state is State.ACTIVE
    kept.slurm.down = False
    await kept.at(HOUR + 41 * MINUTE)
    await kept.at(HOUR + 55 * MINUTE)
    assert kept.get(one).state is State.ACTIVE
    await kept.at(HOUR + 56 * MINUTE)
    assert kept.get(one).state is State.RELEASED


@pytest.mark.parametrize("how", ["blind", "stale"])
async def test_without_a_new_answer_of_squeue_nothing_is_given_back(kept: Kept, how: str) -> None:
    one = await kept.book()
    await kept.at(HOUR)
    setattr(kept, how, True)
    await kept.at(HOUR + 30 * MINUTE)
    assert kept.get(one).state is State.ACTIVE


async def test_what_slurm_did_not_have_nobody_could_use(kept: Kept) -> None:
    one = await kept.book()
    kept.slurm.busy = {"n1", "n2"}
    await kept.at(HOUR + 20 * MINUTE)
    assert kept.get(one).state is State.ACTIVE
    kept.slurm.busy = set()
    await kept.at(HOUR + 21 * MINUTE)
    await kept.at(HOUR + 35 * MINUTE)
    assert kept.get(one).state is State.ACTIVE
    await kept.at(HOUR + 37 * MINUTE)
    assert kept.get(one).state is State.RELEASED


async def test_what_was_deleted_by_hand_counts_from_when_it_is_back(kept: Kept) -> None:
    one = await kept.book()
    await kept.at(HOUR + 10 * MINUTE)
    kept.slurm.there.clear()
    await kept.at(HOUR + 20 * MINUTE)
    assert kept.get(one).state is State.ACTIVE
    await kept.at(HOUR + 26 * MINUTE)
    assert kept.get(one).state is State.RELEASED


async def test_a_service_that_was_away_did_not_see_who_came(kept: Kept) -> None:
    one = await kept.book()
    await kept.at(HOUR)
    kept.slurm.now = NOW + HOUR + 30 * MINUTE
    kept.keeper = kept.new_keeper()
    await kept.keeper.once()
    assert kept.get(one).state is State.ACTIVE
    await kept.at(HOUR + 45 * MINUTE)
    assert kept.get(one).state is State.RELEASED


async def test_what_nobody_has_approved_is_cancelled_when_its_time_comes(kept: Kept) -> None:
    one = await kept.book(state=State.PENDING)
    await kept.at(HOUR - 1)
    assert kept.get(one).state is State.PENDING
    await kept.at(HOUR)
    assert (kept.get(one).state, kept.get(one).reason) == (State.CANCELLED, "not approved in time")
    assert kept.ledger.done == [("give back", one.id, "not approved in time", "carme-hub")]


async def test_maintenance_is_never_unused_and_costs_nothing(kept: Kept) -> None:
    one = await kept.book(gpus=0)
    kept.save(one.replace(kind=Kind.MAINTENANCE))
    await kept.at(3 * HOUR)
    assert kept.get(one).state is State.ENDED
    assert kept.ledger.done == []


async def test_money_is_made_level_when_sessions_come_and_go_and_now_and_then(kept: Kept) -> None:
    one = await kept.book()

    def levels() -> list[tuple[object, ...]]:
        found = [done[2:] for done in kept.ledger.done if done[0] == "level"]
        kept.ledger.done.clear()
        return [(inside, at - NOW) for inside, at in found]

    await kept.at(HOUR - 30)
    assert levels() == [], "nothing has changed before it begins"
    kept.run(inside=one, phase=Phase.WAITING, name="carme-early")
    kept.run(inside=one, phase=Phase.WAITING, name="no session")
    await kept.at(HOUR - 20)
    assert levels() == [(("early",), HOUR - 20)]
    await kept.at(HOUR + 100)
    assert levels() == []
    kept.jobs.clear()
    kept.run("n1", inside=one, name="carme-s1")
    kept.run("n1", name="carme-outside")
    await kept.at(HOUR + 110)
    assert levels() == [(("s1",), HOUR + 110)]
    await kept.at(HOUR + 120)
    assert levels() == []
    kept.jobs[0] = kept.run("n1", inside=one, phase=Phase.TERMINAL, end=kept.slurm.now + 1)
    await kept.at(HOUR + 130)
    assert levels() == [((), HOUR + 130)]
    await kept.at(HOUR + 430)
    assert levels() == [((), HOUR + 430)]


async def test_what_jobs_of_no_session_have_used_is_told_also_when_squeue_has_forgotten_them(kept: Kept) -> None:
    one = await kept.book()
    await kept.at(HOUR)
    kept.run("n1", inside=one, name="by hand", gpus=Gpus("a100", 4))
    kept.run("n1", inside=one, name="carme-s1")
    kept.run("n1", name="outside")
    await kept.at(HOUR + 600)
    assert kept.ledger.unmanaged == [0, 4 * 30, 4 * 330], "with the money, not at each pass"
    kept.jobs.clear()
    kept.run("n1", inside=one, name="by hand, later", id=9)
    await kept.at(HOUR + 1200)
    assert kept.ledger.unmanaged[-1] == 4 * 600 + 330


async def test_what_was_never_active_in_its_time_is_not_charged(kept: Kept) -> None:
    one, two = await kept.book(), await kept.book()
    kept.save(two.replace(used=NOW + HOUR + 1.0))
    kept.slurm.now = NOW + 4.0 * HOUR
    await kept.keeper.once()
    assert kept.get(one).state is kept.get(two).state is State.ENDED
    given_back, charged = sorted(kept.ledger.done)
    assert given_back == ("give back", one.id, "it could not be kept", "carme-hub")
    assert charged == ("over", two.id, "ended", NOW + 4 * HOUR)


async def test_a_turn_whose_money_fails_is_undone_and_tried_again_and_keeps_nobody_else(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    one = await kept.book(hours=1)
    await kept.at(HOUR)
    two = await kept.book(2)
    kept.ledger.broken = True
    with caplog.at_level(logging.ERROR):
        await kept.at(2 * HOUR)
    assert one.id in caplog.text
    assert kept.get(one).state is State.ACTIVE
    assert (kept.get(two).state, two.names()[0] in kept.slurm.there) == (State.ACTIVE, True)
    kept.ledger.broken = False
    await kept.at(2 * HOUR + 30)
    assert kept.get(one).state is State.ENDED


async def test_somebody_who_changes_it_at_the_same_time_is_faster(kept: Kept) -> None:
    one = await kept.book()
    await kept.at(HOUR)
    before = kept.slurm.show

    async def show_and_change() -> object:
        kept.save(kept.get(one).replace(title="Another class"))
        kept.slurm.show = before
        return await before()

    kept.slurm.show = show_and_change
    kept.run("n1", inside=one)
    await kept.at(HOUR + 30)
    assert (kept.get(one).title, kept.get(one).used) == ("Another class", 0)
    await kept.at(HOUR + 60)
    assert (kept.get(one).title, bool(kept.get(one).used)) == ("Another class", True)


async def test_who_waits_is_asked_for_at_each_pass_and_only_then(kept: Kept) -> None:
    one = await kept.book()
    await kept.at(1)
    assert kept.promoted == []
    kept.save(one.replace(state=State.DRAFT, waits=True, places=()))
    await kept.at(31)
    kept.slurm.down = True
    await kept.at(61)
    assert kept.promoted == [NOW + 31, NOW + 61]


async def test_who_cannot_be_told_keeps_slurm_from_nothing(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    kept.deaf = True
    one = await kept.book(0)
    await kept.at(0)
    assert one.names()[0] in kept.slurm.there
    assert "no mail today" in caplog.text
