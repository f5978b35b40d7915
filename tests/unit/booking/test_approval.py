"""What waits for an approval keeps its GPUs from others, so it has to be something that could be had."""

from __future__ import annotations

import pytest
from booking_parts import GPU_HOUR, FrontDesk, PurseOf, at, who

from carme_hub.booking.calendar import SlotTaken
from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.reservations import State
from carme_hub.domain.quotas.booking_rules import BookingRule
from carme_hub.errors import Refused
from carme_hub.store.ledger.writes import LedgerStore


@pytest.fixture
def front(store: LedgerStore) -> FrontDesk:
    """A desk where all above one GPU-hour is approved, and there are six."""
    return FrontDesk(store, purse=PurseOf(6), rule=BookingRule(approval_above=GPU_HOUR))


async def test_what_there_is_no_money_for_waits_for_nobody(front: FrontDesk) -> None:
    with pytest.raises(Refused, match="The purse holds 6") as error:
        await front.book(at(24), at(48), at(72), at(96))  # two each
    assert error.value.reason == "over-budget"
    assert (front.everything(), front.held(), front.told) == ([], {}, 0)
    found = await front.book(at(24), at(48), at(72))
    assert {each.state for each in found} == {State.PENDING}
    assert front.held() == {}, "it was asked for, and is not held"
    assert front.sound()


async def test_who_waits_for_gpus_goes_on_waiting_where_there_is_no_money_for_an_approval(front: FrontDesk) -> None:
    front.rule = BookingRule()
    there = await front.book(at(24, 0.5), gpus=4, seats=2, owner="bob")
    one = await front.book(at(24), gpus=4, wait=True)
    await front.desk.cancel(who("bob"), there.id)
    front.rule = BookingRule(approval_above=GPU_HOUR)
    assert await front.desk.promote() == ()
    assert front.one(one.id).state is State.DRAFT


async def test_what_waits_for_an_approval_grows_no_further_than_there_is_money(front: FrontDesk) -> None:
    one, two = await front.book(at(24), at(48))
    with pytest.raises(Refused, match="The purse holds 6") as error:
        await front.desk.move(who(), one.id, 1, need=Need("a100", 3))  # six, and two for the other
    assert error.value.reason == "over-budget"
    assert front.one(one.id) == one
    (one,) = await front.desk.move(who(), one.id, 1, need=Need("a100", 2))
    assert (one.state, one.gpus, front.held()) == (State.PENDING, 2, {})
    front.purse.amount = 0
    (one,) = await front.desk.move(who(), one.id, 2, period=at(24, 1))
    assert (one.state, one.period) == (State.PENDING, at(24, 1)), "less needs neither leave nor money"
    await front.desk.move(who(), two.id, 1, title="Other")
    with pytest.raises(SlotTaken):
        await front.book(at(24), gpus=4, seats=2, owner="bob")
    assert front.sound()
