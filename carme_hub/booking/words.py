"""What booking says in words: what this Slurm cannot keep exactly, and why a promise cannot be kept."""

from __future__ import annotations

from collections.abc import Sequence

from carme_hub.domain import quota_sentences as sentences
from carme_hub.domain.capacity import Need, Place
from carme_hub.domain.periods import Period
from carme_hub.domain.reservations import Reservation

from .calendar import Supply

#: How a problem begins that maintenance is the cause of.
MAINTENANCE = "Maintenance of "
#: What is said of a Slurm that reserves whole nodes.
WHOLE_NODES = "This cluster's Slurm reserves whole nodes"
#: What is said of nodes with shards.
SHARED_NODES = "Nodes with shards of GPUs are reserved whole"
_NAMED = 5


def by_node(supply: Supply) -> str:
    """Return what this Slurm cannot keep exactly, "" where it can all."""
    if supply.by_node:
        return f"{WHOLE_NODES}: a booking of some of a node's GPUs takes the node with all of them."
    if alone := sorted({spot.node for spot in supply.spots if spot.alone}):
        return f"{SHARED_NODES}, since Slurm lets shards run on reserved GPUs: {listed(alone)}."
    return ""


def notes(supply: Supply, need: Need, places: Sequence[Place]) -> tuple[str, ...]:
    """Return what a booking at these places takes beyond what was asked for."""
    whole = [place for place in places if place.whole]
    nodes = [place.node for place in whole]
    taken = sum(spot.count for spot in supply.spots if spot.node in nodes)
    asked = need.gpus * sum(place.seats for place in whole)
    if not asked or taken <= asked:
        return ()
    why = WHOLE_NODES if supply.by_node else SHARED_NODES
    verb, whose = ("takes", "its") if asked == 1 else ("take", "their" if len(nodes) > 1 else "its")
    return (f"{why}: {asked} × {need.type} {verb} {listed(nodes)} with all {whose} {taken} GPUs.",)


def maintenance_problem(maintenance: Reservation, booking: Reservation, now: float) -> str:
    """Return why a booking cannot be kept while there is maintenance on its nodes."""
    theirs = {place.node for place in booking.places}
    nodes = [place.node for place in maintenance.places if place.node in theirs]
    return f"{MAINTENANCE}{listed(nodes)} {_span(maintenance.period, now, booking.zone)}: {_NOT_KEPT}"


def listed(names: Sequence[str]) -> str:
    """Return "node1, node2 and node3", or the first few and how many more."""
    known = list(dict.fromkeys(names))
    if len(known) > _NAMED:
        known = [*known[:_NAMED], f"{len(known) - _NAMED} more"]
    return known[0] if len(known) == 1 else f"{', '.join(known[:-1])} and {known[-1]}"


def _span(period: Period, now: float, zone: str) -> str:
    start, end = (sentences.moment(at, now, zone).removeprefix("on ") for at in (period.start, period.end))
    return f"from {start} to {end}"


_NOT_KEPT = "this booking cannot be kept there."
