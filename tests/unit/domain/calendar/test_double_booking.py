"""What is promised twice is counted from the bookings alone."""

from __future__ import annotations

from carme_hub.domain.calendar.capacity import Need, Place
from carme_hub.domain.calendar.double_booking import double_booked
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Kind, Reservation, State
from carme_hub.domain.cluster.resources import Node

NODES = [Node("n1", "idle", True, gpus={"a100": 4, "v100": 2}), Node("n2", "idle", True, gpus={"a100": 4})]


def booking(start: int, end: int, *places: Place, kind: Kind = Kind.BOOKING, license: str = "") -> Reservation:
    facts = ("id", "lab", "tina", "teaching", "A class", Need("a100", 1), Period(start, end), places)
    return Reservation(*facts, state=State.CONFIRMED, created=0.0, kind=kind, license=license)


def test_bookings_that_fit_and_that_follow_each_other_are_no_double_booking() -> None:
    places = Place("n1", "a100", 4, 1)
    assert double_booked([booking(0, 100, places), booking(100, 200, places)], NODES) == 0
    assert double_booked([], NODES) == 0


def test_gpus_that_are_booked_twice_are_counted_at_the_worst_moment_of_each_node() -> None:
    twice = [booking(0, 100, Place("n1", "a100", 3, 3)), booking(50, 60, Place("n1", "a100", 3, 3))]
    assert double_booked(twice, NODES) == 2
    other = [booking(0, 9, Place("n2", "a100", 4, 1)), booking(0, 9, Place("n2", "a100", 1, 1))]
    assert double_booked([*twice, *other], NODES) == 3


def test_a_whole_node_takes_its_gpus_of_other_types_too() -> None:
    whole = booking(0, 100, Place("n1", "a100", 4, 1, whole=True, also=(("v100", 2),)))
    assert double_booked([whole], NODES) == 0
    assert double_booked([whole, booking(0, 100, Place("n1", "v100", 1, 1))], NODES) == 1


def test_maintenance_licences_and_nodes_that_slurm_does_not_name_do_not_count() -> None:
    there = booking(0, 100, Place("n1", "a100", 4, 1))
    maintenance = booking(0, 100, Place("n1", "a100", 4, 1, whole=True), kind=Kind.MAINTENANCE)
    by_license = booking(0, 100, Place("n1", "a100", 4, 1), license="a100")
    elsewhere = booking(0, 100, Place("gone", "a100", 4, 1))
    assert double_booked([there, maintenance, by_license, elsewhere], NODES) == 0
