"""Booking keeps rules, places and money together: all of it is written, or nothing, whoever asks at the same moment."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from booking_parts import GPU_HOUR, HOUR, INVENTORY, NOW, ROOT, FrontDesk, PurseOf, at, who, wish
from rig.nightly import NIGHTLY

from carme_hub.booking.bookings import Booker, Bookings, NoLedger
from carme_hub.booking.calendar import BookingRequest, NoSuchGpus, RequestedTime, SlotTaken
from carme_hub.booking.validation import MAX_AHEAD
from carme_hub.domain.calendar.capacity import GpuInventory, Need
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Kind, State
from carme_hub.domain.quotas.booking_rules import Blackout, BookingRule
from carme_hub.domain.quotas.rules import Person
from carme_hub.errors import Refused
from carme_hub.store.ledger.writes import LedgerStore

REPEATS = 20 if NIGHTLY else 2


async def refused(front: FrontDesk, wanted: BookingRequest, by: Booker | None = None) -> Refused:
    """Return the refusal of a booking, after which there is nothing: no row, no money, and nobody was told."""
    with pytest.raises(Refused) as error:
        await front.desk.book(by or who(), wanted)
    assert (front.everything(), front.held(), front.told) == ([], {}, 0)
    return error.value


# -- booking ----------------------------------------------------------------------------------------------------------


async def test_a_booking_is_confirmed_held_for_and_told_to_the_keeper(front: FrontDesk) -> None:
    one = await front.book(at(24), gpus=2, seats=2, users=frozenset({"bob"}), group="course", profile="torch")
    assert (one.state, one.owner, one.actor, one.account, one.series) == (
        State.CONFIRMED,
        "tina",
        "tina",
        "teaching",
        "",
    )
    assert front.everything() == [one]
    assert front.held() == {one.id: 8 * GPU_HOUR}
    assert front.told == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"title": "  "}, "Give it a title"),
        ({"title": "x" * 201}, "has 201 characters; at most 200 are allowed"),
        ({"title": "two\nlines"}, "one line of plain text"),
        ({"title": "bell\a"}, "one line of plain text"),
        ({"title": "\u202egnihcaet"}, "one line of plain text"),
        ({"title": "\ud800"}, "one line of plain text"),
        ({"users": frozenset({"bob smith"})}, "'bob smith' is not a user name"),
        ({"users": frozenset(f"u{n}" for n in range(501))}, "at most 500 users"),
        ({"group": "a\nb"}, "The group must be one line"),
        ({"profile": "Torch!"}, "by its slug"),
        ({"zone": "Berlin"}, "'Berlin' is not a time zone"),
        ({"zone": "../../etc/passwd"}, "is not a time zone"),
        ({"times": []}, "from 1 to 366 times"),
        ({"times": [RequestedTime(Period(NOW - 301, NOW + HOUR))]}, "start in the past"),
        ({"times": [RequestedTime(Period(NOW + HOUR, NOW + HOUR + 299))]}, "shorter than 5 minutes"),
        ({"times": [RequestedTime(Period(NOW - 200, NOW + 200))]}, "shorter than 5 minutes"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_what_to_write(
    front: FrontDesk, changes: dict[str, object], words: str
) -> None:
    error = await refused(front, replace(wish(at(24)), **changes))
    assert words in error.message
    assert error.reason == "bad-booking"


async def test_what_is_absurdly_far_ahead_is_too_far_whatever_the_rules_say(front: FrontDesk) -> None:
    for period in (Period(NOW + MAX_AHEAD, NOW + MAX_AHEAD + HOUR), Period(NOW, 10**30)):
        assert (await refused(front, wish(period))).reason == "too-far"


async def test_one_books_in_ones_own_name_and_for_ones_own_account(front: FrontDesk) -> None:
    assert (await refused(front, wish(at(24), owner="bob"))).reason == "not-allowed"
    error = await refused(front, wish(at(24), account="physics"))
    assert error.message == "You may not charge account physics. You may charge teaching."
    assert (await refused(front, wish(at(24)), Booker(Person("tina")))).reason == "not-allowed"
    (one,) = await front.desk.book(ROOT, wish(at(24), owner="bob", account="physics"))
    assert (one.owner, one.account, one.actor) == ("bob", "physics", "root")


async def test_one_books_for_groups_that_one_is_in_and_who_teaches_for_every_course(front: FrontDesk) -> None:
    for group in ("course", "account:teaching", "role:teacher"):
        error = await refused(front, wish(at(24), group=group), who("tina", groups={"choir"}))
        assert error.reason == "not-allowed"
    teacher = Booker(Person("tina", roles=frozenset({"teacher"})), ("teaching",))
    error = await refused(front, wish(at(24), group="account:teaching"), teacher)
    assert error.message.startswith("You cannot book for the group of an account or role.")
    mine = await front.desk.book(who("tina", groups={"choir"}), wish(at(24), group="choir"))
    taught = await front.desk.book(teacher, wish(at(24), group="course"))
    assert [each.group for each in (*mine, *taught)] == ["choir", "course"]


async def test_a_start_a_few_minutes_ago_is_now(front: FrontDesk) -> None:
    one = await front.book(Period(NOW - 300, NOW + HOUR))
    assert one.period == Period(NOW, NOW + HOUR)


async def test_the_rules_of_the_policy_hold(front: FrontDesk) -> None:
    front.rule = BookingRule(ahead=7 * 24 * HOUR, length=8 * HOUR)
    front.blackouts = (Blackout(at(48), "Upgrade."),)
    far = await refused(front, wish(at(24 * 8)))
    assert (far.reason, "ahead" in far.message) == ("too-far", True)
    assert "at most 8 h at a time" in (await refused(front, wish(at(24, 9)))).message
    assert "Upgrade" in (await refused(front, wish(at(24), at(49)))).message
    front.may_book = False
    error = await refused(front, wish(at(24)))
    assert (error.reason, "with this account" in error.message) == ("not-allowed", True)


async def test_how_many_and_how_close_counts_a_users_own_bookings(front: FrontDesk) -> None:
    front.rule = BookingRule(at_once=2, cooldown=4 * HOUR)
    one = await front.book(at(24), at(28))
    with pytest.raises(Refused, match="must be 4 h"):
        await front.book(at(32))
    await front.book(at(40))
    with pytest.raises(Refused, match="You have 2 bookings"):
        await front.book(at(60))
    await front.book(at(60), owner="bob")
    await front.desk.cancel(who(), one[0].id, series="all")
    await front.book(at(60))


async def test_no_more_than_the_share_is_booked_at_one_moment(front: FrontDesk) -> None:
    front.rule = BookingRule(share=50)
    await front.book(at(24), gpus=2, seats=2)
    with pytest.raises(SlotTaken):
        await front.book(at(24), owner="bob")
    with pytest.raises(NoSuchGpus):
        await front.book(at(48), gpus=1, seats=5)


async def test_money_that_does_not_last_for_all_times_books_none(store: LedgerStore) -> None:
    front = FrontDesk(store, purse=PurseOf(5))
    error = await refused(front, wish(at(24), at(48), at(72)))
    assert (error.reason, error.message) == ("over-budget", "The purse holds 5 GPU-hours.")
    await front.book(at(24), at(48))


@pytest.mark.parametrize("repeat", range(REPEATS))
async def test_two_hundred_at_once_with_money_for_few(stores: list[LedgerStore], repeat: int) -> None:
    fronts = [FrontDesk(store, purse=PurseOf(20)) for store in stores]
    front = fronts[0]
    # Room for 8 at each of five times, 40 GPU-hours in all, and money for 20.
    wishes = (
        fronts[number % len(fronts)].book(at(24 + number % 5 * 2), gpus=2, owner=f"user{number}")
        for number in range(200)
    )
    answers = await asyncio.gather(*wishes, return_exceptions=True)
    won = [each for each in answers if not isinstance(each, BaseException)]
    assert len(won) == 5
    assert {each.reason for each in answers if isinstance(each, Refused)} <= {"over-budget", "slot-taken"}
    assert all(isinstance(each, Refused) for each in answers if isinstance(each, BaseException))
    assert front.sound()
    assert sum(front.held().values()) == front.purse.amount


# -- keys -------------------------------------------------------------------------------------------------------------


async def test_the_same_key_is_the_same_booking(front: FrontDesk) -> None:
    first = await front.book(at(24), at(48), key="k")
    assert await front.book(at(24), at(48), key="k") == first
    assert len(front.everything()) == 2
    with pytest.raises(Refused, match="used for something else") as error:
        await front.book(at(24), key="k")
    assert error.value.reason == "key-used"
    other = await front.book(at(24), at(48), key="k", owner="bob")
    assert {each.owner for each in other} == {"bob"}
    front.now += 47 * HOUR
    assert [each.id for each in await front.book(at(24), at(48), key="k")] == [each.id for each in first], "though over"


async def test_a_key_that_was_refused_may_be_used_again(front: FrontDesk) -> None:
    await front.book(at(24), gpus=4, seats=2, owner="bob", key="k")
    with pytest.raises(SlotTaken):
        await front.book(at(24), key="k")
    await front.book(at(48), key="k")


async def test_the_same_key_many_times_at_once_is_one_booking(front: FrontDesk) -> None:
    found = await asyncio.gather(*(front.book(at(24), users=frozenset({"a", "b", "c"}), key="k") for _ in range(30)))
    assert len({each.id for each in found}) == 1
    assert len(front.everything()) == 1
    assert front.sound()


# -- approval ---------------------------------------------------------------------------------------------------------


async def test_a_large_booking_waits_for_its_approval_and_keeps_its_place(front: FrontDesk) -> None:
    front.rule = BookingRule(approval_above=7 * GPU_HOUR)
    two = await front.book(at(24), at(48), gpus=2)  # 8 GPU-hours together
    assert {each.state for each in two} == {State.PENDING}
    assert front.held() == {}
    with pytest.raises(SlotTaken):
        await front.book(at(24), gpus=4, seats=2, owner="bob")
    with pytest.raises(Refused, match="administrators") as error:
        await front.desk.decide(who(), two[0].id, True, "me")
    assert error.value.reason == "not-allowed"
    assert await front.desk.pending(who("bob")) == ()
    assert await front.desk.pending(ROOT) == await front.desk.pending(who()) == two
    approved = await front.desk.decide(ROOT, two[1].id, True, "good course")
    assert {(each.state, each.reason, each.actor) for each in approved} == {(State.CONFIRMED, "good course", "root")}
    assert front.sound()
    with pytest.raises(Refused, match="waits for no approval"):
        await front.desk.decide(ROOT, two[0].id, True, "again")


async def test_what_is_denied_is_free_again(front: FrontDesk) -> None:
    front.rule = BookingRule(approval_above=0)
    one = await front.book(at(24), gpus=4, seats=2)
    (denied,) = await front.desk.decide(ROOT, one.id, False, "exam week")
    assert (denied.state, denied.reason) == (State.CANCELLED, "exam week")
    await front.book(at(24), gpus=4, seats=2, owner="bob")


async def test_an_approval_for_which_the_money_is_gone_is_refused_whole(store: LedgerStore) -> None:
    front = FrontDesk(store, purse=PurseOf(6), rule=BookingRule(approval_above=0))
    two = await front.book(at(24), at(48))
    front.rule = BookingRule()
    await front.book(at(72), owner="bob", gpus=2)
    with pytest.raises(Refused, match="The purse holds 6") as error:
        await front.desk.decide(ROOT, two[0].id, True, "yes")
    assert error.value.reason == "over-budget"
    assert {front.one(each.id).state for each in two} == {State.PENDING}
    assert front.sound()


async def test_what_an_administrator_books_needs_no_approval(front: FrontDesk) -> None:
    front.rule = BookingRule(approval_above=0)
    (one,) = await front.desk.book(ROOT, wish(at(24)))
    assert one.state is State.CONFIRMED
    assert front.sound()


# -- taking back ------------------------------------------------------------------------------------------------------


async def test_what_is_cancelled_gives_back_place_and_money(front: FrontDesk) -> None:
    one = await front.book(at(24), gpus=4, seats=2)
    (gone,) = await front.desk.cancel(who(), one.id, reason="ill")
    assert (gone.state, gone.reason, gone.version) == (State.CANCELLED, "ill", 2)
    assert front.held() == {}
    with pytest.raises(Refused, match="is cancelled, and cannot be") as error:
        await front.desk.cancel(who(), one.id)
    assert error.value.reason == "not-possible"
    await front.book(at(24), gpus=4, seats=2, owner="bob")


@pytest.mark.parametrize("noted", [True, False])
async def test_what_has_begun_is_given_back_whether_or_not_the_keeper_has_noted_it(
    front: FrontDesk, noted: bool
) -> None:
    for number, take_back in enumerate((front.desk.cancel, front.desk.release)):
        one = await front.book(at(24 + 24 * number), gpus=4, seats=2)
        if noted:
            front.begin(one)
        front.now = one.period.start + HOUR
        done = await take_back(who(), one.id, reason="done")
        released = done[0] if isinstance(done, tuple) else done
        assert (released.state, released.ended, released.reason) == (State.RELEASED, front.now, "done")
        assert front.held() == {}
        rest = await front.book(Period(int(front.now), one.period.end), gpus=4, seats=2, owner="bob")
        await front.desk.cancel(who("bob"), rest.id)


async def test_what_has_not_begun_or_is_over_cannot_be_given_back(front: FrontDesk) -> None:
    one = await front.book(at(24))
    with pytest.raises(Refused, match=r"has not begun\. Cancel it instead"):
        await front.desk.release(who(), one.id)
    front.now = one.period.end
    for take_back in (front.desk.cancel, front.desk.release):
        with pytest.raises(Refused, match="is over"):
            await take_back(who(), one.id)
    assert front.one(one.id) == one, "the keeper settles it"


async def test_only_who_booked_it_or_an_administrator_changes_it(front: FrontDesk) -> None:
    one = await front.book(at(24))
    for stranger, reason in ((who("bob"), "not-yours"), (who("eve", "physics"), "unknown")):
        for ask in (
            front.desk.cancel(stranger, one.id),
            front.desk.release(stranger, one.id),
            front.desk.move(stranger, one.id, 1, title="Mine"),
        ):
            with pytest.raises(Refused) as error:
                await ask
            assert error.value.reason == reason
    with pytest.raises(Refused) as error:
        await front.desk.cancel(who(), "no-such")
    assert error.value.reason == "unknown"
    await front.desk.cancel(ROOT, one.id)


# -- checking ---------------------------------------------------------------------------------------------------------


async def test_a_check_writes_nothing_and_says_what_would_come_of_it(front: FrontDesk) -> None:
    front.rule = BookingRule(approval_above=7 * GPU_HOUR)
    checked = await front.desk.check(who(), wish(at(24), gpus=2, seats=2, title=""))
    assert checked.ok
    assert (checked.price, checked.gpus, checked.needs_approval, checked.notes) == (8 * GPU_HOUR, 4, True, ())
    assert (front.everything(), front.told) == ([], 0)
    await front.book(at(24), gpus=4, seats=1)
    taken = await front.desk.check(who(), wish(at(25), gpus=4, seats=2))
    assert not taken.ok
    assert (taken.conflicts[0].seats, taken.conflicts[0].times[0]) == (1, at(26))
    front.may_book = False
    both = await front.desk.check(who(), wish(at(25), gpus=4, seats=2))
    assert (both.conflicts[0].time, both.reason) == (taken.conflicts[0].time, "not-allowed")
    assert (both.conflicts[0].times, both.conflicts[0].seats) == ((), 0), "nothing is offered that would be refused"
    assert [each.period for each in both.times] == [at(25)]
    assert (await front.desk.check(who(), wish(at(25), type="v100"))).reason == "no-such-gpus"


async def test_what_is_moved_is_not_in_its_own_way_when_it_is_checked(front: FrontDesk) -> None:
    one = await front.book(at(24), gpus=4, seats=2)
    wanted = wish(at(25), gpus=4, seats=2)
    assert not (await front.desk.check(who(), wanted)).ok
    assert (await front.desk.check(who(), wanted, instead_of=one.id)).ok
    assert (await front.desk.check(who("bob"), wish(at(25), owner="bob"), instead_of=one.id)).reason == "not-yours"
    front.begin(one)
    assert "only its end" in (await front.desk.check(who(), wanted, instead_of=one.id)).refusal
    assert (await front.desk.check(who(), wish(at(24, 5), gpus=4, seats=2), instead_of=one.id)).ok
    assert (await front.desk.check(who(), wish(at(24, 1), gpus=4, seats=2), instead_of=one.id)).ok


async def test_what_this_slurm_cannot_keep_exactly_is_said_before(front: FrontDesk) -> None:
    front.by_node = True
    front.inventory = (*INVENTORY, GpuInventory("n1", "l40s", 2, 8))
    front.taken = ()
    (note,) = (await front.desk.check(who(), wish(at(24), gpus=2, seats=3))).notes
    whole = "This cluster's Slurm reserves whole nodes: "
    assert note == f"{whole}6 × a100 take n1 and n2 with all their 10 GPUs (8 × a100 and 2 × l40s)."
    assert (await front.desk.check(who(), wish(at(24), gpus=2, type="h100"))).notes == (), "all of it was asked for"
    assert (await front.desk.supply()).note.startswith("This cluster's Slurm reserves whole nodes")


async def test_a_hub_without_a_ledger_books_all_the_same(front: FrontDesk) -> None:
    desk = Bookings(front.calendar, rules=front.rules, ledger=NoLedger())
    (one,) = await desk.book(who(), wish(at(24)))
    assert desk.price(one) == 2 * GPU_HOUR
    (one,) = await desk.move(who(), one.id, 1, period=at(25))
    assert (one.kind, one.need) == (Kind.BOOKING, Need("a100", 1))
    await desk.cancel(who(), one.id)
