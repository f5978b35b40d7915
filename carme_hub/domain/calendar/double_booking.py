"""How many GPUs the calendar has promised twice: an invariant, computed anew from the bookings alone. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from carme_hub.domain.cluster.resources import Node

from .reservations import Kind, Reservation
from .step_function import StepFunction


def double_booked(bookings: Iterable[Reservation], nodes: Iterable[Node]) -> int:
    """Return how many GPUs are booked that are not there, at the worst moment of each node and type.

    Maintenance may overlap bookings. Bookings by licences are on no nodes, and those on nodes that Slurm does not name
    have no GPUs to compare with; neither counts.
    """
    changes: dict[tuple[str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for booking in bookings:
        if booking.kind is not Kind.BOOKING or booking.license:
            continue
        for place in booking.places:
            for type, count in ((place.type, place.count), *place.also):
                changes[place.node, type][booking.period.start] += count
                changes[place.node, type][booking.period.end] -= count
    there = {node.name: node.gpus for node in nodes}
    most = {key: max(StepFunction.of(0, steps).levels) for key, steps in changes.items() if key[0] in there}
    return sum(max(0, booked - there[node].get(type, 0)) for (node, type), booked in most.items())
