"""What booking says in words: what this Slurm cannot keep exactly, and why a promise cannot be kept."""

from __future__ import annotations

from collections.abc import Sequence

from carme_hub.booking.calendar import Supply
from carme_hub.domain import wording
from carme_hub.domain.calendar.capacity import Need, Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation, by_type
from carme_hub.domain.cluster.resources import Gpus

#: How a problem begins that maintenance is the cause of.
MAINTENANCE = "Maintenance of "
#: What is said of a Slurm that reserves whole nodes.
WHOLE_NODES = "This cluster's Slurm reserves whole nodes"
#: What is said of nodes with shards.
SHARED_NODES = "Nodes with shards of GPUs are reserved whole"
#: What is said of GPUs that are counted.
COUNTED = (
    "This cluster’s Slurm keeps how many GPUs of a type are booked, and not which: they may be on other nodes than "
    "planned, several for one session, or a whole node, need not be free on one node at once, and no CPUs and memory "
    "are reserved with them. Jobs that do not say that they take GPUs by their licence (--licenses), or take shards of "
    "them, are not kept off."
)
#: What is said of single GPUs: Slurm reserves CPU, GRES, Node, License and BB (scontrol(1) of 24.11, TRES), and takes
#: ``mem=`` without reserving any (seen on 24.11.5).
NO_MEMORY = (
    "No memory is reserved with single GPUs: where jobs of others take nearly all of a node's, a session that is "
    "booked there waits for it."
)
#: What is said where the site's profiles are not known to the calendar.
UNKNOWN_PROFILE = (
    "The calendar does not know the profiles of this site, so it cannot say whether sessions of {} start on these "
    "nodes."
)
_NAMED = 5


def not_exact(supply: Supply) -> str:
    """Return what this Slurm cannot keep exactly, "" where it can all."""
    if supply.by_license:
        return COUNTED
    if supply.by_node:
        return f"{WHOLE_NODES}: a booking of some of a node's GPUs takes the node with all of them."
    found = []
    if alone := sorted({spot.node for spot in supply.spots if spot.alone}):
        found.append(f"{SHARED_NODES}, since Slurm lets shards run on reserved GPUs: {listed(alone)}.")
    if not all(spot.alone for spot in supply.spots):
        found.append(NO_MEMORY)
    return " ".join(found)


def notes(supply: Supply, need: Need, places: Sequence[Place], profile: str = "") -> tuple[str, ...]:
    """Return what of a booking at these places, for a profile, is not as it was asked for, or is not known to be."""
    unknown = (UNKNOWN_PROFILE.format(profile),) if profile and supply.profiles is None else ()
    return (*_not_as_asked(supply, need, places), *unknown)


def _not_as_asked(supply: Supply, need: Need, places: Sequence[Place]) -> tuple[str, ...]:
    if supply.by_license:
        return (COUNTED,)
    whole = [place for place in places if place.whole]
    nodes, types = [place.node for place in whole], by_type(whole)
    taken, asked = sum(types.values()), need.gpus * sum(place.seats for place in whole)
    if taken <= asked or (not asked and len(types) < 2):
        return ()
    count, whose = asked or len(nodes), "their" if len(nodes) > 1 else "its"
    if asked:
        what = f"{WHOLE_NODES if supply.by_node else SHARED_NODES}: {asked} × {need.type}"
    else:
        what = f"{count} whole nodes of {need.type}" if count > 1 else f"A whole node of {need.type}"
    told = f" ({listed([str(Gpus(*each)) for each in types.items()])})" if len(types) > 1 else ""
    verb = "takes" if count == 1 else "take"
    return (f"{what} {verb} {listed(nodes)} with all {whose} {taken} GPUs{told}.",)


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
    start, end = (wording.moment(at, now, zone).removeprefix("on ") for at in (period.start, period.end))
    return f"from {start} to {end}"


_NOT_KEPT = "this booking cannot be kept there."
