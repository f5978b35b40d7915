"""What can be booked is what nobody has at any moment, by a count of every GPU at every moment."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carme_hub.domain.calendar.capacity import Capacity, GpuInventory, Need, OccupiedGpus, Place
from carme_hub.domain.calendar.periods import Period

HOURS = 24
#: Two nodes with four a100 each, a smaller one, and one with two types, as cut GPUs are.
INVENTORY = (
    GpuInventory("n1", "a100", 4, 0),
    GpuInventory("n2", "a100", 4, 0),
    GpuInventory("n3", "a100", 2, 0),
    GpuInventory("n4", "1g.10gb", 7),
    GpuInventory("n4", "3g.40gb", 2),
)
ROOM = {(item.node, item.type): item.count for item in INVENTORY}


def taken(node: str, start: int, end: int, type: str = "", count: int = 0, *, booked: bool = True) -> OccupiedGpus:
    return OccupiedGpus(Period(start, end), node, type, count, booked)


def in_use(known: Sequence[OccupiedGpus], node: str, type: str, at: int, *, by_node: bool = False) -> int:
    """Count the GPUs of a type that somebody has on a node at one moment: the oracle."""
    there = [each for each in known if each.node == node and each.period.start <= at < each.period.end]
    if any(not each.count for each in there) or (there and by_node):
        return ROOM[node, type]
    return sum(each.count for each in there if each.type == type)


def seats_by_hand(known: Sequence[OccupiedGpus], need: Need, period: Period, *, by_node: bool = False) -> int:
    """Return for how many seats there is room, moment by moment and node by node."""
    found = 0
    for (node, type), count in ROOM.items():
        if type != need.type:
            continue
        left = min(count - in_use(known, node, type, at, by_node=by_node) for at in range(period.start, period.end))
        if need.gpus:
            found += max(0, left) // need.gpus
        else:
            exclusive = not any(each.node == node and each.period.overlaps(period) for each in known)
            found += int(exclusive)
    return found


@st.composite
def periods(draw: st.DrawFn) -> Period:
    start = draw(st.integers(0, HOURS - 1))
    return Period(start, draw(st.integers(start + 1, HOURS)))


@st.composite
def needs(draw: st.DrawFn) -> Need:
    return Need(draw(st.sampled_from(["a100", "1g.10gb", "3g.40gb"])), draw(st.integers(0, 5)), draw(st.integers(1, 6)))


TAKEN = st.builds(
    lambda item, period, count: OccupiedGpus(
        period, item.node, item.type if count else "", min(count, item.count), True
    ),
    st.sampled_from(INVENTORY),
    periods(),
    st.integers(0, 4),
)


@settings(max_examples=500)
@given(st.lists(TAKEN, max_size=12), needs(), periods(), st.booleans())
def test_a_place_is_found_exactly_where_there_is_room(
    known: list[OccupiedGpus], need: Need, period: Period, by_node: bool
) -> None:
    places = Capacity(INVENTORY, known, by_node=by_node).place(need, period)
    assert (places is not None) == (seats_by_hand(known, need, period, by_node=by_node) >= need.seats)
    if places is not None:
        assert sum(each.seats for each in places) == need.seats
        assert len({each.node for each in places}) == len(places)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(needs(), periods()), min_size=100, max_size=100), st.booleans(), st.integers(20, 100))
def test_no_two_bookings_ever_have_the_same_gpu_and_the_share_is_kept(
    asked: list[tuple[Need, Period]], by_node: bool, share: int
) -> None:
    known: list[OccupiedGpus] = []
    for need, period in asked:
        places = Capacity(INVENTORY, known, by_node=by_node, share=share).place(need, period)
        known += [place.occupied(period) for place in places or ()]
    for (node, type), count in ROOM.items():
        for at in range(HOURS):
            there = [each for each in known if each.node == node and each.period.start <= at < each.period.end]
            whole = [each for each in there if not each.count]
            assert len(whole) <= 1
            assert not (whole and len(there) > 1), "who has a whole node has it alone"
            assert sum(each.count for each in there if each.type == type) <= count
            assert not by_node or len(there) <= 1
    for type in ("a100", "1g.10gb", "3g.40gb"):
        total = sum(count for (_, kind), count in ROOM.items() if kind == type)
        for at in range(HOURS):
            assert sum(in_use(known, node, kind, at) for node, kind in ROOM if kind == type) <= total * share // 100


@settings(max_examples=300)
@given(st.lists(TAKEN, max_size=12), st.sampled_from(["a100", "1g.10gb"]), periods(), st.booleans())
def test_the_band_is_what_is_free_at_each_moment(
    known: list[OccupiedGpus], type: str, period: Period, by_node: bool
) -> None:
    band = Capacity(INVENTORY, known, by_node=by_node).free_over_time(type, period)
    assert (band[0][0].start, band[-1][0].end) == (period.start, period.end)
    for (before, level), (after, next_level) in itertools.pairwise(band):
        assert before.end == after.start
        assert level != next_level
    for part, level in band:
        for at in range(part.start, part.end):
            left = [
                max(0, count - in_use(known, node, kind, at, by_node=by_node))
                for (node, kind), count in ROOM.items()
                if kind == type
            ]
            assert level == sum(left)


@settings(max_examples=300, deadline=None)
@given(st.lists(TAKEN, max_size=12), needs(), periods(), st.booleans())
def test_the_nearest_time_is_found_wherever_there_is_one(
    known: list[OccupiedGpus], need: Need, period: Period, by_node: bool
) -> None:
    capacity, within = Capacity(INVENTORY, known, by_node=by_node), Period(0, HOURS)
    found = capacity.other_times(need, period, within)
    possible = [
        start
        for start in range(HOURS - period.length + 1)
        if seats_by_hand(known, need, period.at(start), by_node=by_node) >= need.seats
    ]
    assert bool(found) == bool(possible)
    for each in found:
        assert each.start in possible
        assert each.length == period.length
    if possible:
        assert abs(found[0].start - period.start) == min(abs(start - period.start) for start in possible)
    assert not any(one.overlaps(other) for one in found for other in found if one != other)


@settings(max_examples=300)
@given(st.lists(TAKEN, max_size=12), needs(), periods(), st.booleans())
def test_fewer_seats_and_other_types_are_offered_where_they_fit(
    known: list[OccupiedGpus], need: Need, period: Period, by_node: bool
) -> None:
    capacity = Capacity(INVENTORY, known, by_node=by_node)
    room = min(need.seats, seats_by_hand(known, need, period, by_node=by_node))
    fewer = capacity.fewer_seats(need, period)
    assert (fewer.seats if fewer else 0) == room
    types = [each.type for each in capacity.other_types(need, period)]
    fits = {
        type
        for type in ("a100", "1g.10gb", "3g.40gb")
        if seats_by_hand(known, Need(type, need.gpus, need.seats), period, by_node=by_node) >= need.seats
    }
    assert types == sorted(fits - {need.type})


def test_touching_ends_are_fine() -> None:
    known = [taken("n1", 9, 11), taken("n2", 9, 11), taken("n3", 9, 11)]
    capacity = Capacity(INVENTORY, known)
    assert capacity.place(Need("a100", 4, 2), Period(11, 13)) is not None
    assert capacity.place(Need("a100", 4, 2), Period(7, 9)) is not None
    assert capacity.place(Need("a100", 1), Period(10, 12)) is None


def test_a_booking_is_on_few_nodes_and_leaves_room_for_large_ones() -> None:
    capacity = Capacity(INVENTORY, [taken("n1", 0, 24, "a100", 3)])
    assert capacity.place(Need("a100", 1), Period(1, 2)) == (Place("n1", "a100", 1, 1),)
    assert capacity.place(Need("a100", 2), Period(1, 2)) == (Place("n3", "a100", 2, 1),)
    assert capacity.place(Need("a100", 1, 4), Period(1, 2)) == (Place("n2", "a100", 4, 4),)
    assert capacity.place(Need("a100", 1, 5), Period(1, 2)) == (Place("n1", "a100", 1, 1), Place("n2", "a100", 4, 4))


def test_cpus_go_with_the_gpus() -> None:
    places = Capacity([GpuInventory("n1", "a100", 4, 8), GpuInventory("n2", "a100", 4, 16)], []).place(
        Need("a100", 2, 3), Period(1, 2)
    )
    assert [(each.node, each.cpus) for each in places or ()] == [("n1", 32), ("n2", 32)]


def test_where_slurm_keeps_whole_nodes_a_class_fills_them() -> None:
    places = Capacity(INVENTORY, [], by_node=True).place(Need("a100", 1, 5), Period(1, 2))
    assert places == (Place("n1", "a100", 4, 4, True), Place("n3", "a100", 2, 1, True))
    assert [each.occupied(Period(1, 2)) for each in places] == [taken("n1", 1, 2), taken("n3", 1, 2)]


def test_a_whole_node_is_taken_with_its_gpus_of_other_types() -> None:
    for by_node, need, also, gpus in (
        (False, Need("3g.40gb", 0), (("1g.10gb", 7),), 9),
        (True, Need("1g.10gb", 1), (("3g.40gb", 2),), 9),
        (False, Need("1g.10gb", 7), (), 7),
        (True, Need("a100", 2), (), 2),
    ):
        places = Capacity(INVENTORY, [], by_node=by_node).place(need, Period(1, 2))
        assert places is not None
        (place,) = places
        assert (place.also, place.gpus) == (also, gpus)


def test_the_share_of_the_cluster_counts_bookings_and_not_maintenance() -> None:
    half = Need("a100", 1, 5)
    for booked, fits in ((False, True), (True, False)):
        known = [taken("n3", 0, 24, "a100", 1, booked=booked)]
        assert (Capacity(INVENTORY, known, share=50).place(half, Period(1, 2)) is not None) is fits


@pytest.mark.parametrize(("type", "gpus", "seats"), [("", 1, 1), ("a100", -1, 1), ("a100", 1, 0)])
def test_nothing_cannot_be_booked(type: str, gpus: int, seats: int) -> None:
    with pytest.raises(ValueError, match="a booking has"):
        Need(type, gpus, seats)


def test_a_period_has_at_least_a_second() -> None:
    with pytest.raises(ValueError, match="ends after it starts"):
        Period(5, 5)
