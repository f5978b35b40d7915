"""The time in which nobody could have used a booking is noted, so that it is not charged; and no more than that."""

from __future__ import annotations

import pytest
from forged_reservations import HOUR, NOW, Kept, node

from carme_hub.domain.calendar.reservations import State
from carme_hub.domain.calendar.slurm_reservations import Step
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.store.ledger.writes import LedgerStore

MINUTE = 60
WHOLE = 2 * 2 * HOUR


@pytest.fixture
def kept(store: LedgerStore) -> Kept:
    return Kept(store)


def refuse_everybody(kept: Kept) -> None:
    async def refuse(_: Step) -> str:
        return "Error creating the reservation: Invalid user id"

    kept.slurm.take = refuse  # type: ignore[method-assign]


async def test_what_slurm_had_all_the_time_has_no_lapse(kept: Kept) -> None:
    one = await kept.book()
    await kept.at(HOUR)
    kept.run("n1", inside=one)
    await kept.at(3 * HOUR)
    assert kept.get(one).state is State.ENDED
    assert kept.ledger.lapsed(one) == 0


async def test_what_slurm_refused_throughout_is_not_charged_at_all(kept: Kept) -> None:
    one = await kept.book()
    refuse_everybody(kept)
    await kept.at(3 * HOUR)
    assert kept.get(one).state is State.ENDED
    assert kept.ledger.lapsed(one) == WHOLE
    before = len(kept.ledger.done)
    await kept.at(4 * HOUR)
    assert len(kept.ledger.done) == before, "what is over is written once"
    assert before < 60, "and not at each pass"


@pytest.mark.parametrize("minutes", [0, 30, 60, 119])
async def test_also_where_the_service_is_started_again_meanwhile(kept: Kept, minutes: int) -> None:
    one = await kept.book()
    refuse_everybody(kept)
    await kept.at(HOUR + minutes * MINUTE)
    kept.keeper = kept.new_keeper()
    kept.slurm.now += 50
    await kept.keeper.once()
    await kept.at(3 * HOUR)
    assert kept.ledger.lapsed(one) == pytest.approx(WHOLE, abs=2 * 2 * MINUTE)


async def test_also_where_the_service_was_away_at_its_end(kept: Kept) -> None:
    one = await kept.book()
    refuse_everybody(kept)
    await kept.at(HOUR + 10 * MINUTE)
    kept.keeper = kept.new_keeper()
    kept.slurm.now = NOW + 5.0 * HOUR
    await kept.keeper.once()
    assert kept.ledger.lapsed(one) == pytest.approx(WHOLE, abs=2 * 2 * MINUTE)
    before = len(kept.ledger.done)
    await kept.at(6 * HOUR)
    assert len(kept.ledger.done) == before


async def test_while_slurm_is_silent_what_it_had_before_counts_as_kept_and_what_it_never_had_does_not(
    kept: Kept,
) -> None:
    there = await kept.book()
    await kept.at(30 * MINUTE)
    kept.slurm.down = True
    never = await kept.book()
    await kept.at(4 * HOUR)
    assert (kept.ledger.lapsed(there), kept.ledger.lapsed(never)) == (0, WHOLE)


async def test_the_part_in_which_it_was_gone_is_noted_and_no_more(kept: Kept) -> None:
    one = await kept.book()
    await kept.at(HOUR)
    kept.run("n1", inside=one)
    kept.run("n1", inside=one, gpus=Gpus("a100", 0))
    await kept.at(HOUR + 30 * MINUTE)
    kept.jobs.clear()
    kept.slurm.there.clear()
    take = kept.slurm.take
    refuse_everybody(kept)
    await kept.at(HOUR + 60 * MINUTE)
    kept.slurm.take = take  # type: ignore[method-assign]
    await kept.at(3 * HOUR)
    # Until half a minute after it is back, when the problem is taken away.
    assert kept.ledger.lapsed(one) == pytest.approx(2 * 30 * MINUTE, abs=2 * 90)


async def test_gpus_that_jobs_have_are_charged_themselves_while_there_is_a_problem(kept: Kept) -> None:
    one = await kept.book(0, 1, seats=5)
    await kept.at(0)
    await kept.at(MINUTE)
    kept.run("n1", inside=one, gpus=Gpus("a100", 3))
    kept.nodes["n2"] = node("n2", "down")
    await kept.at(HOUR)
    assert kept.ledger.lapsed(one) == pytest.approx(2 * (HOUR - 2 * MINUTE), abs=2 * 60)


async def test_what_was_given_back_lapses_up_to_then(kept: Kept) -> None:
    one = await kept.book()
    refuse_everybody(kept)
    await kept.at(HOUR + 12 * MINUTE)
    kept.save(kept.get(one).replace(state=State.RELEASED, ended=kept.slurm.now + 1))
    await kept.at(HOUR + 14 * MINUTE)
    assert kept.ledger.lapsed(one) == pytest.approx(2 * 12 * MINUTE, abs=4)


async def test_what_waits_for_an_approval_again_has_no_lapse(kept: Kept) -> None:
    one = await kept.book()
    refuse_everybody(kept)
    await kept.at(30 * MINUTE)
    kept.save(kept.get(one).replace(state=State.PENDING))
    await kept.at(40 * MINUTE)
    assert kept.ledger.lapsed(one) == 0
