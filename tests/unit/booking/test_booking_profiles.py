"""What is booked for a profile is where its sessions can start, whatever is done with it later."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from booking_parts import INVENTORY, NOW, ROOT, FrontDesk, at, who, wish

from carme_hub.booking.calendar import NoSuchGpus, SlotTaken, Supply
from carme_hub.booking.reconcile.violations import ObservedSlurm, ViolationCheck
from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.sessions.profile_list import parse_profiles
from carme_hub.errors import ProfileNotAllowed

PARTITIONS = {"n1": ("batch", ""), "n2": ("interactive", ""), "n3": ("interactive", "")}


@pytest.fixture
def offer(front: FrontDesk) -> FrontDesk:
    """A desk that knows the profiles of the site."""
    gpus = {"types": {"a100": 4}, "max": 4}
    said = [
        {"slug": "torch", "display_name": "PyTorch", "gpus": gpus, "partition": "interactive"},
        {"slug": "long", "display_name": "Long", "gpus": gpus, "partition": "batch"},
        {"slug": "one", "display_name": "One", "gpus": {"types": ["a100"], "max": 1}},
        {"slug": "lost", "display_name": "Lost", "gpus": gpus, "partition": "no-such"},
        {"slug": "any", "display_name": "Any", "gpus": {"types": {"a100": 2, "h100": 2}, "max": 2}},
    ]
    profiles = {each.slug: each for each in parse_profiles(said)}
    usual = front.calendar.supply
    front.calendar.supply = lambda: replace(usual(), profiles=profiles, partitions=PARTITIONS)
    return front


def nodes(*found: Any) -> list[str]:
    return [place.node for one in found for place in one.places]


def on_n1(one: Reservation) -> Reservation:
    return one.replace(places=tuple(replace(place, node="n1") for place in one.places), version=one.version + 1)


async def test_a_class_is_placed_in_the_partition_of_its_profile(offer: FrontDesk) -> None:
    assert nodes(await offer.book(at(24), seats=4, profile="torch")) == ["n2"]
    assert nodes(await offer.book(at(24), seats=4, profile="long")) == ["n1"]
    with pytest.raises(SlotTaken) as error:
        await offer.book(at(24), profile="torch")
    (conflict,) = error.value.conflicts
    assert (conflict.seats, conflict.types) == (0, ()), "PyTorch gives no h100"
    assert at(26) in conflict.times


async def test_other_types_are_offered_that_the_profile_gives(offer: FrontDesk) -> None:
    await offer.book(at(24), gpus=4, seats=2)
    with pytest.raises(SlotTaken) as error:
        await offer.book(at(24), profile="any")
    assert error.value.conflicts[0].types == ("h100",)


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"profile": "no-such"}, ProfileNotAllowed, "There is no profile no-such. Profiles are: any, long, lost, one,"),
        ({"profile": "one", "gpus": 4}, ProfileNotAllowed, "A session of “One” has 1 × a100, and a seat would have 4"),
        ({"profile": "torch", "type": "h100"}, ProfileNotAllowed, "“PyTorch” gives no h100, but a100"),
        (
            {"profile": "torch", "gpus": 4, "seats": 2},
            NoSuchGpus,
            r"2 × 4 a100 can never be booked here for “PyTorch”, whose sessions start on 1 of the 2 nodes with a100",
        ),
        ({"profile": "lost"}, NoSuchGpus, "1 × 1 a100 can never be booked here for “Lost”, whose sessions start on no"),
    ],
)
async def test_what_a_profile_cannot_start_with_is_refused_and_said_before(
    offer: FrontDesk, asked: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await offer.book(at(24), **asked)
    checked = await offer.desk.check(who(), wish(at(24), **asked))
    assert not checked.ok
    assert words[:20].replace("\\", "") in checked.refusal
    assert offer.everything() == []


async def test_who_waits_is_booked_where_their_profile_starts(offer: FrontDesk) -> None:
    there = await offer.book(at(24), gpus=4, seats=2)
    waits = await offer.book(at(24), seats=4, profile="torch", wait=True)
    assert waits.waits
    await offer.desk.cancel(who(), there.id)
    (done,) = await offer.desk.promote()
    assert (done.state, nodes(done)) == (State.CONFIRMED, ["n2"])


async def test_a_move_stays_in_the_partition_and_leaves_one_that_is_not_its(offer: FrontDesk) -> None:
    one = await offer.book(at(24), gpus=4, profile="torch")
    await offer.book(at(48), gpus=4, profile="torch")
    with pytest.raises(SlotTaken):
        await offer.desk.move(who(), one.id, one.version, period=at(48))
    (one,) = await offer.desk.move(who(), one.id, one.version, need=Need("a100", 2, 2))
    assert nodes(one) == ["n2"]
    # As it was placed before its profile came into that partition.
    wrong = offer.set(on_n1(one))
    (moved,) = await offer.desk.move(who(), wrong.id, wrong.version, period=at(30))
    assert nodes(moved) == ["n2"]


async def test_what_has_begun_in_another_partition_can_be_made_longer(offer: FrontDesk) -> None:
    one = await offer.book(at(24), gpus=4, profile="torch")
    offer.set(on_n1(one))
    begun = offer.begin(one)
    (longer,) = await offer.desk.move(who(), one.id, begun.version, period=at(24, 3))
    assert nodes(longer) == ["n1"]


async def test_maintenance_moves_it_within_the_partition(offer: FrontDesk) -> None:
    one = await offer.book(at(24), gpus=4, profile="torch")
    other = await offer.book(at(24), gpus=1, profile="one")
    assert nodes(one, other) == ["n2", "n1"]
    window, changed = await offer.desk.maintain(ROOT, ["n2"], at(24), "Disks")
    assert [(nodes(each), bool(each.problem)) for each in changed] == [(["n2"], True)]
    await offer.desk.cancel(who(), other.id)
    await offer.desk.cancel(ROOT, window.id)
    _, changed = await offer.desk.maintain(ROOT, ["n2"], at(24), "Disks")
    assert [(nodes(each), bool(each.problem)) for each in changed] == [(["n2"], True)], "n1 is free, and in batch"


async def test_what_is_broken_is_moved_within_the_partition(offer: FrontDesk) -> None:
    one = await offer.book(at(1), gpus=2, profile="torch")
    there = {name: Node(name, "idle", True, gpus={"a100": 4}) for name in ("n1", "n2")}
    promises = ViolationCheck([one], ObservedSlurm(NOW, there, ()))
    assert promises.elsewhere(one, offer.calendar.supply(), (), {"n2"}) is None
    found = promises.elsewhere(one.replace(profile=""), offer.calendar.supply(), (), {"n2"})
    assert found is not None
    assert [place.node for place in found] == ["n1"]


async def test_where_profiles_are_not_known_it_is_said_and_the_rest_is_kept(front: FrontDesk) -> None:
    assert Supply(INVENTORY).profiles is None
    checked = await front.desk.check(who(), wish(at(24), profile="torch"))
    assert checked.ok
    assert checked.notes == (
        "The calendar does not know the profiles of this site, so it cannot say whether sessions of torch start on "
        "these nodes.",
    )
    assert (await front.desk.check(who(), wish(at(24)))).notes == ()
    assert (await front.book(at(24), profile="torch")).profile == "torch"
