"""What is offered in place of what is not free can be taken: no rule refuses it."""

from __future__ import annotations

import pytest
from booking_parts import HOUR, NOW, FrontDesk, at, who, wish

from carme_hub.booking.calendar import Conflict, SlotTaken
from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.quotas.booking_rules import Blackout, BookingRule


async def conflict(front: FrontDesk, hour: float, hours: float = 2) -> Conflict:
    """Ask for all a100; return what is said of the time that is taken."""
    with pytest.raises(SlotTaken) as error:
        await front.book(at(hour, hours), gpus=4, seats=2)
    checked = await front.desk.check(who(), wish(at(hour, hours), gpus=4, seats=2))
    assert checked.conflicts == error.value.conflicts
    (found,) = error.value.conflicts
    return found


async def test_times_that_may_not_be_booked_are_not_offered(front: FrontDesk) -> None:
    await front.book(at(24), gpus=4, seats=2, owner="bob")
    assert (await conflict(front, 24)).times[:2] == (at(22), at(26)), "the nearest ones"
    front.blackouts = (Blackout(Period(NOW + 20 * HOUR, NOW + 24 * HOUR), "Holiday"),)
    front.rule = BookingRule(ahead=27 * HOUR)
    found = await conflict(front, 24)
    assert found.times, "others are"
    for each in found.times:
        assert (await front.desk.check(who(), wish(each, gpus=4, seats=2))).ok, (each.start - NOW) / HOUR


async def test_what_the_rules_refuse_is_checked_without_offers_at_that_time(front: FrontDesk) -> None:
    await front.book(at(24), gpus=4, seats=1, owner="bob")
    checked = await front.desk.check(who(), wish(at(24), gpus=4, seats=2))
    assert (checked.conflicts[0].seats, checked.refusal) == (1, "")
    front.blackouts = (Blackout(at(20, 6), "Holiday"),)
    checked = await front.desk.check(who(), wish(at(24), gpus=4, seats=2))
    assert "Holiday" in checked.refusal
    assert (checked.conflicts[0].seats, checked.conflicts[0].types) == (0, ())
    assert all(not each.overlaps(at(20, 6)) for each in checked.conflicts[0].times)


async def test_a_move_is_offered_what_its_owner_may_book(front: FrontDesk) -> None:
    one = await front.book(at(24), gpus=4, seats=2)
    await front.book(at(48), gpus=4, seats=2, owner="bob")
    front.blackouts = (Blackout(at(50, 12), "Holiday"),)
    with pytest.raises(SlotTaken) as error:
        await front.desk.move(who(), one.id, one.version, period=at(48))
    times = error.value.conflicts[0].times
    assert times
    for each in times:
        assert (await front.desk.check(who(), wish(each, gpus=4, seats=2), instead_of=one.id)).ok


async def test_how_long_something_can_stay_is_offered_as_far_as_the_rules_go(front: FrontDesk) -> None:
    one = await front.book(at(1), gpus=4, seats=2)
    await front.book(at(5), gpus=4, seats=2, owner="bob")
    front.begin(one)
    one = front.one(one.id)
    with pytest.raises(SlotTaken) as error:
        await front.desk.move(who(), one.id, one.version, period=at(1, 6))
    assert error.value.conflicts[0].times == (at(1, 4),)
    front.blackouts = (Blackout(at(4, 1), "Holiday"),)
    checked = await front.desk.check(who(), wish(at(1, 6), gpus=4, seats=2), instead_of=one.id)
    assert "Holiday" in checked.refusal
    assert checked.conflicts[0].times == ()
    assert one.need == Need("a100", 4, 2)
