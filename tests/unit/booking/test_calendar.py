"""Nobody is ever given what somebody else has, however many ask at once, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from rig.nightly import NIGHTLY

from carme_hub.booking.calendar import BookingRequest, Calendar, NoSuchGpus, RequestedTime, SlotTaken, Supply
from carme_hub.domain.calendar.capacity import GpuInventory, Need, OccupiedGpus
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationStore

HOUR = 3600
NOW = 1_795_000_000
INVENTORY = (GpuInventory("n1", "a100", 4, 8), GpuInventory("n2", "a100", 4, 8), GpuInventory("n3", "h100", 2, 8))
REPEATS = 20 if NIGHTLY else 2


@pytest.fixture
def calendar(store: LedgerStore) -> Calendar:
    return calendar_of(store)


def calendar_of(store: LedgerStore) -> Calendar:
    return Calendar(ReservationStore(store), "lab", lambda: Supply(INVENTORY), lambda: NOW)


async def storm(
    stores: Sequence[LedgerStore], wishes: Sequence[BookingRequest]
) -> list[tuple[Reservation, ...] | BaseException]:
    """Book all of it at once, by several processes."""
    calendars = [calendar_of(store) for store in stores]
    asked = (calendars[number % len(calendars)].book(each) for number, each in enumerate(wishes))
    return await asyncio.gather(*asked, return_exceptions=True)


def at(hour: float, hours: float = 2) -> Period:
    start = NOW + int(hour * HOUR)
    return Period(start, start + int(hours * HOUR))


def wish(*periods: Period, gpus: int = 1, seats: int = 1, type: str = "a100", owner: str = "tina") -> BookingRequest:
    return BookingRequest(
        owner, "teaching", "A class", Need(type, gpus, seats), [RequestedTime(each) for each in periods]
    )


async def everything(calendar: Calendar) -> list[Reservation]:
    with calendar.store.reading("lab") as reads:
        return reads.in_states(set(State))


def shares_no_gpu(known: Sequence[Reservation], room: dict[tuple[str, str], int]) -> bool:
    """Whether at no moment more of a node is booked than there is."""
    edges = {edge for each in known for edge in (each.period.start, each.period.end - 1)}
    for moment in edges:
        used: dict[tuple[str, str], int] = {}
        for each in known:
            if each.period.start <= moment < each.period.end:
                for place in each.places:
                    used[place.node, place.type] = used.get((place.node, place.type), 0) + place.count
        if any(count > room[item] for item, count in used.items()):
            return False
    return True


async def test_a_booking_has_its_places_and_cpus(calendar: Calendar) -> None:
    (one,) = await calendar.book(wish(at(24), gpus=2, seats=3))
    assert [(each.node, each.count, each.seats, each.cpus) for each in one.places] == [
        ("n1", 4, 2, 32),
        ("n2", 2, 1, 16),
    ]
    assert (one.state, one.owner, one.series) == (State.CONFIRMED, "tina", "")
    assert await everything(calendar) == [one]


async def test_what_is_taken_is_refused_with_what_could_be_had(calendar: Calendar) -> None:
    await calendar.book(wish(at(24), gpus=4, seats=1))
    await calendar.book(wish(at(24), gpus=1, seats=3))
    with pytest.raises(SlotTaken, match=r"not free at that time\. Nothing was booked") as refused:
        await calendar.book(wish(at(25), gpus=1, seats=2, owner="bob"))
    (conflict,) = refused.value.conflicts
    assert (conflict.seats, conflict.types) == (1, ("h100",))
    assert conflict.times[0] == at(26), "an hour later"
    assert at(22) in conflict.times
    await calendar.book(wish(conflict.times[0], gpus=1, seats=2, owner="bob"))
    assert len(await everything(calendar)) == 3


async def test_no_other_time_lies_in_the_past(calendar: Calendar) -> None:
    await calendar.book(wish(at(0.5), gpus=4, seats=2))
    with pytest.raises(SlotTaken) as refused:
        await calendar.book(wish(at(0.5), gpus=4, seats=1))
    assert all(each.start >= NOW for each in refused.value.conflicts[0].times)


async def test_a_booking_that_comes_again_is_all_of_its_times_or_none(calendar: Calendar) -> None:
    weeks = [at(24 * 7 * week) for week in range(1, 11)]
    await calendar.book(wish(weeks[3], weeks[8], gpus=4, seats=2, owner="bob"))
    with pytest.raises(SlotTaken, match="2 of the times") as refused:
        await calendar.book(wish(*weeks))
    assert [each.time.period for each in refused.value.conflicts] == [weeks[3], weeks[8]]
    assert {each.owner for each in await everything(calendar)} == {"bob"}
    assert [each.time.period for each in await calendar.conflicts(wish(*weeks))] == [weeks[3], weeks[8]]
    free = [week for week in weeks if week not in (weeks[3], weeks[8])]
    booked = await calendar.book(wish(*free))
    assert len({each.series for each in booked}) == 1
    assert len(await everything(calendar)) == 10


async def test_times_of_one_booking_that_overlap_take_gpus_of_each_other(calendar: Calendar) -> None:
    assert len(await calendar.book(wish(at(24), at(25), gpus=4, seats=1))) == 2
    with pytest.raises(SlotTaken):
        await calendar.book(wish(at(48), at(49), gpus=4, seats=2))


async def test_what_is_over_or_cancelled_is_free_again(calendar: Calendar) -> None:
    (one,) = await calendar.book(wish(at(24), gpus=4, seats=2))
    with calendar.store.transaction("lab") as writes:
        writes.save(one.in_state(State.CANCELLED, NOW, actor="tina"))
    await calendar.book(wish(at(24), gpus=4, seats=2, owner="bob"))


async def test_maintenance_and_nodes_that_are_down_cannot_be_booked(store: LedgerStore) -> None:
    gone = (OccupiedGpus(at(0, 100), "n1"), OccupiedGpus(at(30, 1), "n2"))
    calendar = Calendar(ReservationStore(store), "lab", lambda: Supply(INVENTORY, gone), lambda: NOW)
    (one,) = await calendar.book(wish(at(24), gpus=1))
    assert one.places[0].node == "n2"
    with pytest.raises(SlotTaken):
        await calendar.book(wish(at(30), gpus=1))


async def test_what_there_never_is_is_said_at_once(calendar: Calendar) -> None:
    for impossible in (wish(at(24), gpus=5), wish(at(24), gpus=4, seats=3), wish(at(24), type="v100")):
        with pytest.raises(NoSuchGpus, match=r"can never be booked here\. GPUs that may be: 8 a100, 2 h100"):
            await calendar.book(impossible)


@pytest.mark.parametrize("repeat", range(REPEATS))
async def test_two_hundred_who_want_the_same_at_once_are_one_winner(stores: list[LedgerStore], repeat: int) -> None:
    wishes = [wish(at(24 + number % 5 * 0.25), gpus=4, seats=2, owner=f"user{number}") for number in range(200)]
    answers = await storm(stores, wishes)
    won = [each for each in answers if not isinstance(each, BaseException)]
    assert len(won) == 1
    assert {type(each) for each in answers if isinstance(each, BaseException)} == {SlotTaken}
    assert len(await everything(calendar_of(stores[0]))) == 1


async def test_any_number_of_bookings_share_no_gpu_at_any_moment(stores: list[LedgerStore]) -> None:
    chance = random.Random(7)
    wishes = [
        wish(
            at(chance.randrange(0, 96), chance.randrange(1, 12)),
            gpus=chance.choice([0, 1, 2, 4]),
            seats=chance.choice([1, 1, 2]),
        )
        for _ in range(200)
    ]
    answers = await storm(stores, wishes)
    assert 10 < sum(not isinstance(each, BaseException) for each in answers) < 200
    assert all(isinstance(each, SlotTaken) for each in answers if isinstance(each, BaseException))
    known = await everything(calendar_of(stores[0]))
    assert shares_no_gpu(known, {(item.node, item.type): item.count for item in INVENTORY})
