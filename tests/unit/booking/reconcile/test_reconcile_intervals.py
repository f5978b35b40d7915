"""When the keeper looks: at each start and end, at once when asked, and at a fault no oftener than it says."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forged_reservations import HOUR, NOW, SlurmWithReservations

from carme_hub.booking.calendar import BookingRequest, Calendar, RequestedTime, Supply
from carme_hub.booking.reconcile import reconciler as keeper_module
from carme_hub.booking.reconcile.reconciler import ReservationReconciler
from carme_hub.domain.calendar.capacity import GpuInventory, Need
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import State
from carme_hub.domain.calendar.slurm_reservations import Create, Step
from carme_hub.domain.cluster.jobs import Snapshot
from carme_hub.domain.cluster.resources import Node
from carme_hub.errors import StoreError
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationStore

INVENTORY = (GpuInventory("n1", "a100", 4, 8),)


class Rhythm:
    """A keeper whose loop runs by a clock that begins at NOW and goes on."""

    def __init__(self, store: LedgerStore, *, interval: float) -> None:
        self.began = time.monotonic()
        self.slurm = SlurmWithReservations()
        self.store = ReservationStore(store)
        self.calendar = Calendar(self.store, "lab", lambda: Supply(INVENTORY), self.clock)
        self.answers = 0
        self.keeper = ReservationReconciler(
            self.store,
            self.slurm,
            "lab",
            clock=self.clock,
            members=lambda _: (),
            interval=interval,
            jobs=self.snapshot,
            nodes=lambda: (Node("n1", "idle", True, cpus=32, gpus={"a100": 4}),),
            supply=lambda: Supply(INVENTORY),
        )

    def clock(self) -> float:
        self.slurm.now = NOW + 0.2 + time.monotonic() - self.began
        return self.slurm.now

    def snapshot(self) -> Snapshot:
        self.answers += 1
        return Snapshot(float(self.answers), self.answers + 0.1, {})

    async def book(self, start: float, end: float = 2 * HOUR) -> str:
        times = [RequestedTime(Period(NOW + int(start), NOW + int(end)))]
        (booked,) = await self.calendar.book(BookingRequest("tina", "teaching", "A class", Need("a100", 1, 1), times))
        return booked.id

    def state(self, id: str) -> State:
        with self.store.reading("lab") as reads:
            found = reads.get(id)
        assert found is not None
        return found.state


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    """Hold the calendar in one kind of database alone: these tests take seconds."""
    engine = CarmeStore(url=f"sqlite:///{tmp_path / 'carme.sqlite'}").open()
    yield LedgerStore(engine)
    engine.dispose()


async def wait(condition: Callable[[], bool], limit: float = 30.0) -> None:
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.01)


async def test_its_state_turns_with_its_start_and_its_end_however_seldom_slurm_is_looked_at(
    store: LedgerStore,
) -> None:
    rhythm = Rhythm(store, interval=600)
    begins, ends = await rhythm.book(1), await rhythm.book(-HOUR, 2)
    rhythm.keeper.start()
    try:
        await wait(lambda: rhythm.state(begins) is State.ACTIVE)
        await wait(lambda: rhythm.state(ends) is State.ENDED)
        assert rhythm.slurm.now < NOW + 25, "long before the next look that it would have made"
    finally:
        await rhythm.keeper.stop()


async def test_who_asks_gets_a_pass_that_began_after_that_and_many_share_it(store: LedgerStore) -> None:
    rhythm = Rhythm(store, interval=600)
    await rhythm.keeper.look()  # nobody makes passes yet, so nobody is waited for
    id = await rhythm.book(HOUR)
    rhythm.keeper.start()
    try:
        await wait(lambda: rhythm.keeper.last is not None)
        assert rhythm.keeper.has_access(id, "tina")
        assert not rhythm.keeper.has_access(id, "sam")
        other = await rhythm.book(HOUR)
        before = rhythm.answers
        await asyncio.gather(*(rhythm.keeper.look() for _ in range(50)))
        assert rhythm.keeper.has_access(other, "tina")
        assert rhythm.answers - before <= 2
    finally:
        await rhythm.keeper.stop()


async def test_what_slurm_had_when_it_last_answered_lets_people_in(store: LedgerStore) -> None:
    rhythm = Rhythm(store, interval=600)
    id = await rhythm.book(HOUR)
    await rhythm.keeper.once()
    rhythm.slurm.down = True
    await rhythm.keeper.once()
    assert rhythm.keeper.has_access(id, "tina")
    rhythm.slurm.down, rhythm.slurm.there, rhythm.slurm.busy = False, {}, {"n1"}
    await rhythm.keeper.once()
    assert not rhythm.keeper.has_access(id, "tina")


async def test_a_refusal_in_ever_other_words_is_not_tried_in_a_tight_circle(store: LedgerStore) -> None:
    rhythm = Rhythm(store, interval=0.2)
    await rhythm.book(HOUR)
    tried = 0

    async def refuse(step: Step) -> str:
        nonlocal tried
        tried += isinstance(step, Create)
        return f"Error creating the reservation: Invalid user id ({tried})"

    rhythm.slurm.take = refuse  # type: ignore[method-assign]
    began = time.monotonic()
    rhythm.keeper.start()
    try:
        await wait(lambda: tried >= 2)
        await asyncio.sleep(1.5)
    finally:
        await rhythm.keeper.stop()
    assert tried <= (time.monotonic() - began) / 0.2 + 2


async def test_the_same_refusal_is_logged_once_also_when_slurm_was_away_meanwhile(
    store: LedgerStore, caplog: pytest.LogCaptureFixture
) -> None:
    rhythm = Rhythm(store, interval=600)
    await rhythm.book(HOUR)
    rhythm.slurm.busy = {"n1"}
    with caplog.at_level(logging.WARNING):
        for down in (False, False, True, False):
            rhythm.slurm.down = down
            await rhythm.keeper.once()
    assert len([each for each in caplog.records if "refuses reservation" in each.message]) == 1


async def test_a_pass_that_cannot_be_made_is_tried_soon_and_then_ever_more_rarely_and_said_once(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeper_module, "RETRY_DELAY", 0.02)
    rhythm = Rhythm(store, interval=600)
    tried: list[float] = []
    away = True

    async def once() -> None:
        tried.append(time.monotonic())
        if away:
            raise StoreError("The database is away")

    monkeypatch.setattr(rhythm.keeper, "once", once)
    with caplog.at_level(logging.INFO):
        rhythm.keeper.start()
        try:
            await wait(lambda: len(tried) >= 6)  # soon: else the second would come after ten minutes
            pauses = [after - before for before, after in itertools.pairwise(tried)]
            assert all(pause > 0.99 * 0.02 * 2**number for number, pause in enumerate(pauses)), "ever more rarely"
            away = False
            await wait(lambda: "can be compared with Slurm again" in caplog.text)
        finally:
            await rhythm.keeper.stop()
    assert len([each for each in caplog.records if "The database is away" in each.message]) == 1
