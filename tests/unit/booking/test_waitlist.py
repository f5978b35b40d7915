"""Who waits is booked when GPUs become free, the first who asked first, and never beyond the rules or the money."""

from __future__ import annotations

import asyncio

import pytest
from booking_parts import GPU_HOUR, HOUR, ROOT, FrontDesk, PurseOf, at, who, wish

from carme_hub.booking.calendar import NoSuchGpus
from carme_hub.booking.waitlist import TOO_LATE
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.quotas.booking_rules import BookingRule
from carme_hub.errors import Refused
from carme_hub.store.ledger.writes import LedgerStore


async def full(front: FrontDesk, hour: float = 24) -> Reservation:
    """Book all a100."""
    found: Reservation = await front.book(at(hour), gpus=4, seats=2, owner="root")
    return found


async def wait(front: FrontDesk, hour: float = 24, **more: object) -> Reservation:
    front.now += 1
    found: Reservation = await front.book(at(hour), wait=True, **more)  # type: ignore[arg-type]
    return found


async def test_what_is_free_does_not_wait(front: FrontDesk) -> None:
    one = await wait(front)
    assert (one.state, one.waits) == (State.CONFIRMED, False)


async def test_what_waits_holds_nothing(front: FrontDesk) -> None:
    await full(front)
    one = await wait(front)
    assert (one.state, one.waits, one.places) == (State.DRAFT, True, ())
    assert one.id not in front.held()
    told = front.told
    assert await front.desk.promote() == ()
    assert front.told == told, "nothing has changed"
    assert front.sound()


async def test_the_first_who_asked_is_booked_first(front: FrontDesk) -> None:
    there = await full(front)
    large, small, last = [await wait(front, owner=name, gpus=gpus) for name, gpus in (("a", 4), ("b", 4), ("c", 1))]
    await front.desk.cancel(who("root"), there.id)
    await front.book(at(24), gpus=1, owner="quick")
    done = await front.desk.promote()
    assert [(each.id, each.state, each.waits) for each in done] == [
        (large.id, State.CONFIRMED, False),
        (last.id, State.CONFIRMED, False),
    ]
    assert front.one(small.id).waits, "there is no room for it, and who is smaller need not wait for that"
    assert front.sound()


async def test_many_desks_at_once_promote_once(front: FrontDesk) -> None:
    there = await full(front)
    one = await wait(front)
    await front.desk.cancel(who("root"), there.id)
    answers = await asyncio.gather(*(front.desk.promote() for _ in range(10)))
    assert [each.id for answer in answers for each in answer] == [one.id]
    assert front.sound()


async def test_what_waited_until_its_start_is_dropped(front: FrontDesk) -> None:
    there = await full(front)
    one = await wait(front)
    front.now = there.period.start + 301
    (gone,) = await front.desk.promote()
    assert (gone.id, gone.state, gone.reason, gone.waits) == (one.id, State.CANCELLED, TOO_LATE, False)
    assert await front.desk.promote() == ()


async def test_rules_and_money_of_the_moment_hold(store: LedgerStore) -> None:
    front = FrontDesk(store, purse=PurseOf(20))
    there = await full(front)
    one = await wait(front, gpus=2)
    two = await front.book(at(48), gpus=2)
    await front.desk.cancel(who("root"), there.id)
    three = await front.book(at(72, 7), gpus=2, owner="bob")  # 18 of 20 GPU-hours
    assert await front.desk.promote() == (), "the money is gone"
    await front.desk.cancel(who("bob"), three.id)
    front.rule = BookingRule(at_once=1)
    assert await front.desk.promote() == (), "one is not over"
    await front.desk.cancel(who(), two.id)
    front.rule = BookingRule(at_once=1, approval_above=3 * GPU_HOUR)
    (done,) = await front.desk.promote()
    assert (done.id, done.state) == (one.id, State.PENDING)
    assert front.sound()


async def test_who_is_not_in_the_account_any_more_goes_on_waiting_and_so_where_nobody_knows(front: FrontDesk) -> None:
    there = await full(front)
    one = await wait(front, owner="bob")
    await front.desk.cancel(who("root"), there.id)
    for accounts in (("physics",), (), None):
        front.accounts = accounts
        assert await front.desk.promote() == (), accounts
        assert front.one(one.id).waits
    front.accounts = ("physics", "teaching")
    (done,) = await front.desk.promote()
    assert (done.id, done.state) == (one.id, State.CONFIRMED)


async def test_an_administrator_puts_nobody_on_the_waitlist_who_could_never_be_booked(front: FrontDesk) -> None:
    await full(front)
    asked = wish(at(24), owner="bob", account="physics")
    with pytest.raises(Refused, match="bob is not a member of physics") as error:
        await front.desk.book(ROOT, asked, wait=True)
    assert error.value.reason == "not-possible"
    front.accounts = None
    (one,) = await front.desk.book(ROOT, asked, wait=True)
    assert one.waits


async def test_only_what_comes_once_and_can_be_waits(front: FrontDesk) -> None:
    with pytest.raises(Refused, match="Only a single time") as error:
        await front.book(at(24), at(48), wait=True)
    assert error.value.reason == "not-possible"
    with pytest.raises(NoSuchGpus):
        await wait(front, type="v100")
    front.rule = BookingRule(at_once=2)
    await full(front)
    await wait(front)
    await wait(front)
    with pytest.raises(Refused, match="have 2 bookings"):
        await wait(front)


async def test_who_waits_may_change_their_mind(front: FrontDesk) -> None:
    await full(front)
    one, two = await wait(front), await wait(front)
    (gone,) = await front.desk.cancel(who(), one.id)
    assert (gone.state, gone.waits) == (State.CANCELLED, False)
    (moved,) = await front.desk.move(who(), two.id, 1, period=at(40))
    assert (moved.state, moved.places) == (State.DRAFT, ())
    front.now += HOUR
    (done,) = await front.desk.promote()
    assert (done.id, done.period) == (two.id, at(40))
    assert front.sound()
