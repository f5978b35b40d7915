"""Whatever happens in between, the next pass that reaches Slurm makes its reservations those of the calendar."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from forged_reservations import HOUR, NOW, SlurmWithReservations

from carme_hub.booking.calendar import BookingRequest, Calendar, RequestedTime, Supply
from carme_hub.booking.reconcile.reconciler import ReservationReconciler
from carme_hub.domain.calendar.capacity import GpuInventory, Need
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.calendar.slurm_reservations import SlurmReservation
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationStore

INVENTORY = (GpuInventory("n1", "a100", 4, 8), GpuInventory("n2", "a100", 4, 8))


@dataclass
class Desk:
    """A calendar, the Slurm that keeps it, and the keeper between them."""

    calendar: Calendar
    slurm: SlurmWithReservations
    keeper: ReservationReconciler
    groups: dict[str, set[str]]

    async def book(self, start: float = 1, hours: float = 2, **more: object) -> Reservation:
        begin = NOW + int(start * HOUR)
        times = [RequestedTime(Period(begin, begin + int(hours * HOUR)))]
        plain = BookingRequest("tina", "teaching", "A class", Need("a100", 1, 2), times)
        (booked,) = await self.calendar.book(replace(plain, **more))
        return booked

    async def change(self, id: str, state: State) -> None:
        with self.calendar.store.transaction("lab") as writes:
            now = writes.get(id)
            assert now is not None
            writes.save(now.in_state(state, self.slurm.now, actor="tina"))

    def state(self, id: str) -> State:
        with self.calendar.store.reading("lab") as reads:
            found = reads.get(id)
        assert found is not None
        return found.state

    def equal(self) -> bool:
        """Whether Slurm has what the calendar promises and nothing more, by a count of its own."""
        with self.calendar.store.reading("lab") as reads:
            promised = reads.in_states({State.CONFIRMED, State.ACTIVE})
        ends = {name: each.period.end for each in promised for name in each.names()}
        there = {name: each.period.end for name, each in self.slurm.there.items()}
        return there == {name: end for name, end in ends.items() if end > self.slurm.now}


@pytest.fixture
async def desk(store: LedgerStore) -> AsyncIterator[Desk]:
    slurm, groups = SlurmWithReservations(), {"course": {"alice", "bob"}}
    reservations = ReservationStore(store)
    keeper = ReservationReconciler(
        reservations, slurm, "lab", clock=lambda: slurm.now, members=lambda name: groups.get(name, set()), interval=0.02
    )
    yield Desk(Calendar(reservations, "lab", lambda: Supply(INVENTORY), lambda: slurm.now), slurm, keeper, groups)
    await keeper.stop()


async def test_what_was_booked_is_in_slurm_after_one_pass_and_then_nothing_is_done(desk: Desk) -> None:
    one = await desk.book(group="course")
    assert (await desk.keeper.once()).steps == 1
    (there,) = desk.slurm.there.values()
    assert (there.name, there.users, there.accounts) == (one.names()[0], {"tina", "alice", "bob"}, {"teaching"})
    assert (await desk.keeper.once()).equal
    desk.groups["course"].add("carol")
    await desk.keeper.once()
    assert "carol" in desk.slurm.there[there.name].users, "who joins the group may start in it"


async def test_its_state_follows_the_time(desk: Desk) -> None:
    one = await desk.book()
    for hours, state in ((0, State.CONFIRMED), (1, State.ACTIVE), (2.5, State.ACTIVE), (3, State.ENDED)):
        desk.slurm.now = NOW + hours * HOUR
        await desk.keeper.once()
        assert desk.state(one.id) is state, hours
    assert desk.equal()


async def test_a_hub_that_was_away_the_whole_time_finds_it_over(desk: Desk) -> None:
    one = await desk.book()
    desk.slurm.now = NOW + 9 * HOUR
    assert (await desk.keeper.once()).steps == 0
    assert desk.state(one.id) is State.ENDED


async def test_what_is_cancelled_or_given_back_leaves_slurm_once_its_jobs_have_ended(desk: Desk) -> None:
    one, two = await desk.book(), await desk.book(30)
    await desk.keeper.once()
    desk.slurm.now = NOW + 2 * HOUR
    await desk.keeper.once()
    desk.slurm.in_use = {one.names()[0]}
    await desk.change(one.id, State.RELEASED)
    await desk.change(two.id, State.CANCELLED)
    found = await desk.keeper.once()
    assert found.refused == {one.names()[0]: "Requested reservation is in use"}
    assert list(desk.slurm.there) == [one.names()[0]]
    desk.slurm.in_use = set()
    await desk.keeper.once()
    assert desk.equal()


async def test_what_was_deleted_or_moved_by_hand_is_put_right(desk: Desk) -> None:
    one = await desk.book()
    await desk.keeper.once()
    (name,) = one.names()
    for break_it in (
        lambda: desk.slurm.there.clear(),
        lambda: desk.slurm.there.update({name: replace(desk.slurm.there[name], period=Period(NOW, NOW + 60))}),
        lambda: desk.slurm.there.update({name: replace(desk.slurm.there[name], users=frozenset({"mallory"}))}),
        lambda: desk.slurm.there.update({name: replace(desk.slurm.there[name], nodes=frozenset({"n2"}))}),
    ):
        break_it()
        assert not (await desk.keeper.once()).equal
        assert (await desk.keeper.once()).equal
        assert (desk.slurm.there[name].period, desk.slurm.there[name].nodes) == (one.period, {"n1"})
        assert desk.slurm.there[name].users == {"tina"}


async def test_reservations_of_others_are_left_alone(desk: Desk) -> None:
    for name in ("root_1", "carme-ffffffffffffffff-0"):
        desk.slurm.there[name] = SlurmReservation(name, Period(NOW, NOW + HOUR), frozenset({"n1"}))
    assert (await desk.keeper.once()).equal
    assert len(desk.slurm.there) == 2


async def test_an_outage_is_known_as_one_and_made_up_for(desk: Desk) -> None:
    one = await desk.book()
    desk.slurm.down = True
    assert (await desk.keeper.once()).unreachable == "connection refused"
    assert desk.state(one.id) is State.CONFIRMED
    desk.slurm.now = NOW + 1.5 * HOUR  # its start has come meanwhile
    desk.slurm.down = False
    await desk.keeper.once()
    assert desk.slurm.there[one.names()[0]].period == Period(int(desk.slurm.now), one.period.end)
    assert desk.state(one.id) is State.ACTIVE
    assert (await desk.keeper.once()).equal


@pytest.mark.parametrize("after", range(4))
async def test_a_pass_that_was_broken_off_is_finished_by_the_next(desk: Desk, after: int) -> None:
    gone = await desk.book(30)
    await desk.keeper.once()
    await desk.change(gone.id, State.CANCELLED)
    for start in (1, 2, 3):
        await desk.book(start)
    desk.slurm.dies_after = after
    assert (await desk.keeper.once()).unreachable
    desk.slurm.dies_after = 10**9
    await desk.keeper.once()
    assert desk.equal()


async def test_what_slurm_refuses_is_said_and_tried_again(desk: Desk) -> None:
    one = await desk.book()
    desk.slurm.busy = {"n1"}
    assert "busy" in (await desk.keeper.once()).refused[one.names()[0]]
    assert "busy" in (await desk.keeper.once()).refused[one.names()[0]]
    desk.slurm.busy = set()
    assert (await desk.keeper.once()).refused == {}
    assert desk.equal()


async def test_what_is_far_ahead_comes_to_slurm_later(desk: Desk) -> None:
    await desk.book(40 * 24)
    assert (await desk.keeper.once()).steps == 0
    desk.slurm.now = NOW + 11 * 24 * HOUR
    assert (await desk.keeper.once()).steps == 1


async def test_the_loop_goes_on_whatever_happens_and_looks_at_once_when_told(desk: Desk) -> None:
    desk.slurm.down = True
    desk.keeper.start()
    await desk.book()
    async with asyncio.timeout(30):
        while desk.keeper.last is None:
            await asyncio.sleep(0.01)
        desk.slurm.down = False
        desk.keeper.trigger()
        while not desk.slurm.there:
            await asyncio.sleep(0.01)
