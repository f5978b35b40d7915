"""Maintenance lies over bookings: those that can be elsewhere are, the others know why they cannot be kept."""

from __future__ import annotations

import pytest
from booking_parts import HOUR, INVENTORY, ROOT, FrontDesk, PurseOf, at, who

from carme_hub.booking.calendar import NoSuchGpus, SlotTaken
from carme_hub.domain.calendar.capacity import GpuInventory
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Kind, State
from carme_hub.errors import Refused
from carme_hub.store.ledger.writes import LedgerStore


async def test_it_takes_whole_nodes_and_nobody_pays(front: FrontDesk) -> None:
    it, touched = await front.desk.maintain(ROOT, ["n2", "n1", "n2"], at(24, 8), "Firmware")
    assert (it.kind, it.state, it.account, it.owner) == (Kind.MAINTENANCE, State.CONFIRMED, "", "root")
    assert [(each.node, each.whole) for each in it.places] == [("n1", True), ("n2", True)]
    assert (touched, front.held(), front.told) == ((), {}, 1)
    with pytest.raises(SlotTaken) as error:
        await front.book(at(30))
    assert at(32) in error.value.conflicts[0].times
    (view,) = await front.desk.between(who("eve", "physics"), at(24))
    assert view.reservation == it, "everybody may know of it"
    assert not view.may_change
    (one,) = await front.desk.cancel(ROOT, it.id)
    assert one.state is State.CANCELLED
    await front.book(at(30))


async def test_what_can_be_elsewhere_is_moved_there_and_the_rest_is_told(front: FrontDesk) -> None:
    one = await front.book(at(24, 4), gpus=4, zone="Europe/Berlin")
    two = await front.book(at(26, 4), gpus=2, owner="bob")
    (node,) = {place.node for place in one.places}
    it, touched = await front.desk.maintain(ROOT, ["n1", "n2"], at(25), "Firmware")
    assert {each.id for each in touched} == {one.id, two.id}
    assert front.one(one.id).problem == (
        f"Maintenance of {node} from Thursday 19 November at 13:06 to Thursday 19 November at 15:06: "
        "this booking cannot be kept there."
    )
    await front.desk.cancel(ROOT, it.id)
    assert {front.one(each.id).problem for each in (one, two)} == {""}
    other = "n2" if node == "n1" else "n1"
    await front.desk.cancel(who("bob"), two.id)
    _, (moved,) = await front.desk.maintain(ROOT, [node], at(25), "Firmware")
    assert (moved.id, moved.problem, [place.node for place in moved.places]) == (one.id, "", [other])
    assert front.sound()


async def test_what_runs_there_is_not_moved(front: FrontDesk) -> None:
    one = front.begin(await front.book(at(24, 4), gpus=4))
    _, (told,) = await front.desk.maintain(ROOT, [one.places[0].node], at(25), "Firmware")
    assert (told.id, told.places, told.state) == (one.id, one.places, State.ACTIVE)
    assert told.problem
    (shorter,) = await front.desk.move(who(), one.id, told.version, period=at(24, 1))
    assert shorter.problem == "", "it is over before the maintenance"


async def test_a_problem_ends_with_the_last_maintenance_that_causes_it(front: FrontDesk) -> None:
    one = await front.book(at(24, 8), gpus=4, seats=2)
    first, _ = await front.desk.maintain(ROOT, ["n1"], at(25), "Firmware")
    second, _ = await front.desk.maintain(ROOT, ["n2"], at(28), "Cables")
    assert front.one(one.id).problem.startswith("Maintenance of n2 ")
    await front.desk.cancel(ROOT, second.id)
    assert front.one(one.id).problem.startswith("Maintenance of n1 ")
    front.begin(first)
    await front.desk.release(ROOT, first.id)
    assert front.one(one.id).problem == ""
    assert front.sound()


async def test_a_booking_that_is_moved_away_has_no_problem_any_more(front: FrontDesk) -> None:
    one = await front.book(at(24), gpus=4, seats=2)
    _, (told,) = await front.desk.maintain(ROOT, ["n1"], at(24), "Firmware")
    assert told.problem
    (moved,) = await front.desk.move(who(), one.id, told.version, period=at(30))
    assert moved.problem == ""
    assert front.sound()


async def test_maintenance_itself_may_be_moved(front: FrontDesk) -> None:
    early, late = await front.book(at(24), gpus=4, seats=2), await front.book(at(30), gpus=4, seats=2)
    it, _ = await front.desk.maintain(ROOT, ["n1"], at(24), "Firmware")
    (it,) = await front.desk.move(ROOT, it.id, it.version, period=at(30), title="Cables")
    assert (it.period, it.title) == (at(30), "Cables")
    assert (front.one(early.id).problem, bool(front.one(late.id).problem)) == ("", True)
    with pytest.raises(Refused) as error:
        await front.desk.move(who("root"), it.id, it.version, period=at(40))
    assert error.value.reason == "not-yours", "who is no administrator any more"


async def test_nobody_pays_more_for_a_move_that_others_make(store: LedgerStore) -> None:
    front = FrontDesk(store, purse=PurseOf(8), by_node=True)
    front.inventory = (*INVENTORY, GpuInventory("n4", "a100", 8, 8))
    front.share = 100
    one = await front.book(at(24), gpus=4)  # by itself on a node of four, and all the money with it
    assert one.gpus == 4
    others = sorted({"n1", "n2"} - {one.places[0].node})
    _, (told,) = await front.desk.maintain(ROOT, ["n1", "n2"], at(24), "Firmware")
    assert (told.places, bool(told.problem), others) == (one.places, True, others)
    assert front.sound()


async def test_the_same_key_is_the_same_maintenance(front: FrontDesk) -> None:
    one = await front.book(at(30))
    first, changed = await front.desk.maintain(ROOT, ["n1", "n2"], at(30), "Disks", key="k")
    front.now += 31 * HOUR
    front.inventory = ()
    again, those = await front.desk.maintain(ROOT, ["n2", "n1"], at(30), "Disks", key="k")
    assert (again, [each.id for each in those]) == (first, [one.id])
    assert [each.id for each in changed] == [one.id]
    assert len(front.everything()) == 2
    with pytest.raises(Refused, match="used for something else") as error:
        await front.desk.maintain(ROOT, ["n1"], at(60), "Disks", key="k")
    assert error.value.reason == "key-used"


async def test_it_is_for_administrators_and_known_nodes(front: FrontDesk) -> None:
    with pytest.raises(Refused, match="Only administrators"):
        await front.desk.maintain(who(), ["n1"], at(24), "Firmware")
    with pytest.raises(NoSuchGpus, match="n9: no such node"):
        await front.desk.maintain(ROOT, ["n1", "n9"], at(24), "Firmware")
    for nodes, period, title in (
        ([], at(24), "Firmware"),
        (["n1"], at(24), ""),
        (["n1"], at(-3, 5), "Firmware"),
        (["n1"], Period(int(front.now), int(front.now) + 10), "Firmware"),
    ):
        with pytest.raises(Refused) as error:
            await front.desk.maintain(ROOT, nodes, period, title)
        assert error.value.reason == "bad-booking"
    assert front.everything() == []


async def test_it_does_not_count_in_the_share_that_may_be_booked(front: FrontDesk) -> None:
    front.share = 50
    await front.desk.maintain(ROOT, ["n1"], at(24), "Firmware")
    one = await front.book(at(24), gpus=4)
    assert one.places[0].node == "n2"
    assert one.period.length == 2 * HOUR
