"""What is moved keeps what it can, what has begun stays where it is, and what grows needs leave and money again."""

from __future__ import annotations

import asyncio
import random

import pytest
from booking_parts import GPU_HOUR, HOUR, ROOT, FrontDesk, PurseOf, at, who, wish

from carme_hub.booking.bookings import Booker, Bookings
from carme_hub.booking.calendar import SlotTaken
from carme_hub.domain.calendar.capacity import Need, OccupiedGpus
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.quotas.booking_rules import BookingRule
from carme_hub.domain.quotas.rules import Person
from carme_hub.errors import Refused
from carme_hub.store.ledger.writes import LedgerStore


async def test_it_keeps_its_places_where_they_are_free_and_takes_others_where_not(front: FrontDesk) -> None:
    await front.book(at(24), gpus=3)  # on n1
    one = await front.book(at(24), gpus=2, owner="bob")
    assert one.places[0].node == "n2"
    (one,) = await front.desk.move(who("bob"), one.id, 1, period=at(30))
    assert one.places[0].node == "n2", "n1 would leave as much"
    await front.book(at(40), gpus=4, owner="carl")
    await front.book(at(40), gpus=3, owner="carl")
    (one,) = await front.desk.move(who("bob"), one.id, 2, period=at(36))
    with pytest.raises(SlotTaken):
        await front.desk.move(who("bob"), one.id, 3, period=at(40))
    front.taken = (OccupiedGpus(at(44), "n2"),)
    (one,) = await front.desk.move(who("bob"), one.id, 3, period=at(44))
    assert one.places[0].node == "n1"
    assert front.sound()


async def test_a_change_of_what_was_changed_meanwhile_is_refused(front: FrontDesk) -> None:
    one = await front.book(at(24))
    await front.desk.move(who(), one.id, 1, title="Other")
    with pytest.raises(Refused, match="changed meanwhile") as error:
        await front.desk.move(who(), one.id, 1, period=at(30))
    assert error.value.reason == "changed-meanwhile"
    same = await front.desk.move(who(), one.id, 2, period=at(24), title="Other")
    assert same == (front.one(one.id),)
    assert same[0].version == 2, "what changes nothing is no change"


async def test_size_title_and_time_may_change_together(front: FrontDesk) -> None:
    one = await front.book(at(24), gpus=2)
    (new,) = await front.desk.move(who(), one.id, 1, period=at(25), need=Need("h100", 1, 2), title="Two h100")
    assert (new.period, new.need, new.title, new.places[0].node) == (at(25), Need("h100", 1, 2), "Two h100", "n3")
    assert front.sound()
    with pytest.raises(Refused, match="can never be booked"):
        await front.desk.move(who(), one.id, 2, need=Need("h100", 3))
    with pytest.raises(Refused, match="Give it a title"):
        await front.desk.move(who(), one.id, 2, title=" ")


async def test_what_has_begun_only_ends_at_another_time_where_it_is(front: FrontDesk) -> None:
    one = front.begin(await front.book(at(24, 4), gpus=4))
    await front.book(at(30), gpus=4, owner="bob")
    node = one.places[0].node
    front.taken = (OccupiedGpus(at(33), node),)
    front.now += HOUR
    for change in ({"period": at(25, 3)}, {"need": Need("a100", 2)}):
        with pytest.raises(Refused, match="only its end can be moved") as error:
            await front.desk.move(who(), one.id, 2, **change)
        assert error.value.reason == "not-possible"
    with pytest.raises(Refused, match="give it back"):
        await front.desk.move(who(), one.id, 2, period=at(24, 1))
    with pytest.raises(SlotTaken) as taken:
        await front.desk.move(who(), one.id, 2, period=at(24, 12))
    (conflict,) = taken.value.conflicts
    other = next(each.places[0].node for each in front.everything() if each.owner == "bob")
    assert conflict.times == ((at(24, 6),) if other == node else (at(24, 9),)), "as long as its own places are free"
    (longer,) = await front.desk.move(who(), one.id, 2, period=conflict.times[0])
    assert longer.places == one.places
    (shorter,) = await front.desk.move(who(), one.id, 3, period=at(24, 2))
    assert (shorter.period, shorter.state) == (at(24, 2), State.ACTIVE)
    assert front.sound()


async def test_what_is_over_is_not_moved(front: FrontDesk) -> None:
    one = await front.book(at(24))
    front.now = one.period.end
    with pytest.raises(Refused, match="is over, and cannot be changed"):
        await front.desk.move(who(), one.id, 1, period=at(30))


async def test_what_becomes_less_needs_neither_leave_nor_room(front: FrontDesk) -> None:
    one = await front.book(at(24, 4), gpus=2, seats=2)
    front.may_book = False
    front.taken = (OccupiedGpus(at(0, 100), "n1"), OccupiedGpus(at(0, 100), "n2"))  # both nodes are down
    (less,) = await front.desk.move(who(), one.id, 1, period=at(25, 2))
    assert less.places == one.places
    with pytest.raises(Refused, match="with this account"):
        await front.desk.move(who(), one.id, 2, period=at(25, 3))


async def test_what_keeps_its_places_for_sure_comes_before_what_looks_for_some(front: FrontDesk) -> None:
    before = await front.book(at(24, 1), gpus=4, owner="bob")
    one, two = await front.book(at(24, 4), at(25, 4), gpus=2)
    (two,) = await front.desk.move(who(), two.id, 1, need=Need("a100", 4))
    assert [each.places[0].node for each in (before, one, two)] == ["n1", "n2", "n1"]
    await front.desk.cancel(who("bob"), before.id)
    both = await front.desk.move(who(), one.id, 1, period=at(24, 3), need=Need("a100", 4), series="all")
    assert [(each.places[0].node, each.period) for each in both] == [("n2", at(24, 3)), ("n1", at(25, 3))]
    assert front.sound()


async def test_rules_hold_for_what_is_moved_but_it_is_not_in_its_own_way(front: FrontDesk) -> None:
    front.rule = BookingRule(at_once=1, cooldown=12 * HOUR, ahead=48 * HOUR)
    one = await front.book(at(24))
    (one,) = await front.desk.move(who(), one.id, 1, period=at(27))
    with pytest.raises(Refused) as error:
        await front.desk.move(who(), one.id, 2, period=at(60))
    assert error.value.reason == "too-far"
    assert front.one(one.id) == one


async def test_money_is_held_for_what_it_is_now(store: LedgerStore) -> None:
    front = FrontDesk(store, purse=PurseOf(10))
    one = await front.book(at(24, 4), gpus=2)
    with pytest.raises(Refused, match="holds 10 GPU-hours") as error:
        await front.desk.move(who(), one.id, 1, period=at(24, 6))
    assert error.value.reason == "over-budget"
    assert front.one(one.id) == one
    await front.desk.move(who(), one.id, 1, period=at(24, 1))
    assert front.held() == {one.id: 2 * GPU_HOUR}
    assert front.sound()


async def test_what_is_given_back_pays_for_what_else_grows(store: LedgerStore) -> None:
    front = FrontDesk(store, purse=PurseOf(10))
    two = await front.book(at(24), at(48))
    await front.desk.move(who(), two[1].id, 1, need=Need("a100", 4))  # 2 and 8 of 10
    both = await front.desk.move(who(), two[0].id, 1, need=Need("a100", 2), series="all")
    assert [each.gpus for each in both] == [2, 2]
    assert front.sound()


async def test_what_an_owner_makes_larger_than_may_be_without_approval_is_pending_again(front: FrontDesk) -> None:
    front.rule = BookingRule(approval_above=8 * GPU_HOUR)
    two = await front.book(at(24), at(48), gpus=2)
    assert {each.state for each in two} == {State.CONFIRMED}
    (grown,) = await front.desk.move(who(), two[0].id, 1, period=at(24, 3))
    assert (grown.state, front.one(two[1].id).state) == (State.PENDING, State.CONFIRMED)
    assert front.held() == {two[0].id: 6 * GPU_HOUR, two[1].id: 4 * GPU_HOUR}, "for what it is to be"
    (smaller,) = await front.desk.move(who(), two[1].id, 1, period=at(48, 1))
    assert smaller.state is State.CONFIRMED
    (renamed,) = await front.desk.move(who(), two[1].id, 2, title="Renamed")
    assert renamed.state is State.CONFIRMED
    (approved,) = await front.desk.decide(ROOT, two[1].id, True, "fine")
    assert (approved.id, approved.state) == (grown.id, State.CONFIRMED)
    front.rule = BookingRule(approval_above=0)
    (moved,) = await front.desk.move(ROOT, grown.id, approved.version, period=at(30, 3))
    assert moved.state is State.CONFIRMED, "who approves has approved"
    assert front.sound()


async def test_what_is_pending_again_goes_on_holding_what_it_needs_until_it_is_decided(store: LedgerStore) -> None:
    front = FrontDesk(store, purse=PurseOf(8))
    front.rule = BookingRule(approval_above=4 * GPU_HOUR)
    one, two = await front.book(at(24, 2)), await front.book(at(48, 2))
    with pytest.raises(Refused, match="holds 8 GPU-hours"):
        await front.desk.move(who(), one.id, 1, period=at(24, 7))
    for version, hours in ((1, 6), (2, 5)):  # moved once more while it is pending
        (grown,) = await front.desk.move(who(), one.id, version, period=at(24, hours))
        assert (grown.state, front.held()[one.id]) == (State.PENDING, hours * GPU_HOUR)
    (approved,) = await front.desk.decide(ROOT, one.id, True, "fine")
    assert (approved.state, front.sound()) == (State.CONFIRMED, True)
    (again,) = await front.desk.move(who(), one.id, approved.version, period=at(72, 6))
    assert (again.state, front.held()[one.id]) == (State.PENDING, 6 * GPU_HOUR)
    await front.desk.decide(ROOT, one.id, False, "too long")
    assert front.held() == {two.id: 2 * GPU_HOUR}
    (other,) = await front.desk.move(who(), two.id, 1, period=at(24, 6))
    await front.desk.cancel(who(), other.id)
    assert front.held() == {}


async def test_what_has_begun_is_not_made_pending(front: FrontDesk) -> None:
    one = front.begin(await front.book(at(24)))
    front.rule = BookingRule(approval_above=0)
    with pytest.raises(Refused, match="needs an approval, and it has begun"):
        await front.desk.move(who(), one.id, 2, period=at(24, 3))
    await front.desk.move(who(), one.id, 2, period=at(24, 1))
    await front.desk.move(ROOT, one.id, 3, period=at(24, 3))
    assert front.sound()


async def test_what_was_always_pending_stays_so_and_holds_no_money(front: FrontDesk) -> None:
    front.rule = BookingRule(approval_above=0)
    one = await front.book(at(24))
    (one,) = await front.desk.move(who(), one.id, 1, period=at(30))
    assert (one.state, front.held()) == (State.PENDING, {})


async def test_who_is_not_in_the_account_any_more_only_makes_it_less(front: FrontDesk) -> None:
    one = await front.book(at(24), gpus=2)
    gone = Booker(Person("tina"), ("physics",))
    for more in ({"period": at(24, 3)}, {"period": at(30)}, {"need": Need("a100", 4)}):
        with pytest.raises(Refused, match="You may not charge account teaching") as error:
            await front.desk.move(gone, one.id, 1, **more)  # type: ignore[arg-type]
        assert error.value.reason == "not-allowed"
    longer = await front.desk.check(gone, wish(at(24, 3), gpus=2), instead_of=one.id)
    assert longer.reason == "not-allowed"
    shorter = await front.desk.check(gone, wish(at(24, 1), gpus=2), instead_of=one.id)
    assert shorter.ok
    (one,) = await front.desk.move(gone, one.id, 1, period=at(24, 1), title="Less")
    assert (one.period, one.title) == (at(24, 1), "Less")
    (one,) = await front.desk.move(ROOT, one.id, 2, period=at(24, 3))
    assert one.period == at(24, 3)
    assert front.sound()


async def test_two_who_move_at_the_same_moment_are_one_winner(front: FrontDesk) -> None:
    one, two = await front.book(at(24), gpus=4, seats=2), await front.book(at(48), gpus=4, seats=2, owner="bob")
    answers = await asyncio.gather(
        front.desk.move(who(), one.id, 1, period=at(60)),
        front.desk.move(who("bob"), two.id, 1, period=at(61)),
        return_exceptions=True,
    )
    assert [type(each) for each in answers].count(SlotTaken) == 1
    assert front.sound()


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_is_booked_moved_and_taken_back_nobody_shares_a_gpu(store: LedgerStore, seed: int) -> None:
    front = FrontDesk(store, purse=PurseOf(300))
    chance = random.Random(seed)
    front.by_node = seed % 3 == 2
    front.rule = BookingRule(approval_above=60 * GPU_HOUR)
    done: dict[str, int] = {}
    refused = 0
    for _ in range(60):
        front.now += chance.randrange(0, 2 * HOUR)
        front.turn()
        name, act = chance.choice([*_ACTS.items()])
        try:
            await act(front.desk, front, chance)
            done[name] = done.get(name, 0) + 1
        except Refused:
            refused += 1
        assert front.sound(), (seed, name)
    assert sum(done.values()) > 15, (done, refused)


async def _book(desk: Bookings, front: FrontDesk, chance: random.Random) -> None:
    first = _period(front, chance)
    periods = [first.at(first.start + 24 * HOUR * day) for day in range(chance.choice([1, 1, 1, 3]))]
    need = {"gpus": chance.choice([0, 1, 2, 4]), "seats": chance.choice([1, 1, 2, 3])}
    await desk.book(who(), wish(*periods, type=chance.choice(["a100", "a100", "h100"]), **need), wait=len(periods) == 1)


async def _move(desk: Bookings, front: FrontDesk, chance: random.Random) -> None:
    one = _any(front, chance)
    period = _period(front, chance)
    if one.state is State.ACTIVE:
        period = Period(one.period.start, max(period.end, one.period.start + HOUR))
    need = chance.choice([None, None, Need("a100", chance.choice([1, 2]), chance.choice([1, 2, 4]))])
    which = chance.choice(["one", "later", "all"])
    await desk.move(chance.choice([who(), ROOT]), one.id, one.version, period=period, need=need, series=which)  # type: ignore[arg-type]


async def _cancel(desk: Bookings, front: FrontDesk, chance: random.Random) -> None:
    await desk.cancel(who(), _any(front, chance).id, series=chance.choice(["one", "later", "all"]))  # type: ignore[arg-type]


async def _release(desk: Bookings, front: FrontDesk, chance: random.Random) -> None:
    await desk.release(who(), _any(front, chance).id)


async def _decide(desk: Bookings, front: FrontDesk, chance: random.Random) -> None:
    await desk.decide(ROOT, _any(front, chance).id, chance.random() < 0.7, "so")


async def _promote(desk: Bookings, front: FrontDesk, chance: random.Random) -> None:
    await desk.promote()


async def _maintain(desk: Bookings, front: FrontDesk, chance: random.Random) -> None:
    await desk.maintain(ROOT, [chance.choice(["n1", "n2", "n3"])], _period(front, chance), "Upgrade")


_ACTS = {
    **dict.fromkeys(("book", "book 2", "book 3", "book 4"), _book),
    **dict.fromkeys(("move", "move 2", "move 3"), _move),
    **{"cancel": _cancel, "release": _release, "decide": _decide, "promote": _promote, "maintain": _maintain},
}


def _period(front: FrontDesk, chance: random.Random) -> Period:
    start = int(front.now) + chance.randrange(0, 24) * HOUR
    return Period(start, start + chance.randrange(1, 8) * HOUR)


def _any(front: FrontDesk, chance: random.Random) -> Reservation:
    known = [each for each in front.everything() if each.period.end > front.now]
    if not known:
        raise Refused("nothing is there", reason="nothing")
    return chance.choice(known)
