"""Sentences about bookings for notices, pages and REST: results, what this Slurm cannot reserve exactly, and problems.

Times are in the zone in which each booking was made.
"""

from __future__ import annotations

from collections.abc import Sequence

from carme_hub.booking.calendar import Supply
from carme_hub.domain.calendar.capacity import Need, Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation, by_type
from carme_hub.domain.cluster.jobs import Job
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.wording import duration, moment

from .context import ACTOR

#: Beginning of a problem whose cause is maintenance.
MAINTENANCE = "Maintenance of "
#: For a Slurm that reserves whole nodes.
WHOLE_NODES = "This cluster's Slurm reserves whole nodes"
#: For nodes with shards.
SHARED_NODES = "Nodes with shards of GPUs are reserved whole"
#: For GPUs that are counted by licenses.
COUNTED = (
    "This cluster’s Slurm reserves a number of GPUs of a type, and not particular ones: they may be on other nodes "
    "than planned, several for one session, or a whole node, may not be free on one node at once, and no CPUs and "
    "memory are reserved with them. Jobs that do not request GPUs by their license (--licenses), or that use shards "
    "of them, are not kept off."
)
#: For single GPUs: Slurm reserves CPU, GRES, Node, License and BB (scontrol(1) of 24.11, TRES), and accepts ``mem=``
#: without reserving any (seen on 24.11.5).
NO_MEMORY = (
    "No memory is reserved with single GPUs: if jobs of others use nearly all memory of a node, a session that is "
    "booked there waits for it."
)
#: For a site whose profiles the calendar does not know.
UNKNOWN_PROFILE = (
    "The calendar does not know the profiles of this site, so it cannot say whether sessions of {} start on these "
    "nodes."
)
#: Characters of a person's text that a notice repeats at most.
_LONGEST = 300
_NAMED = 5


def confirmed(there: Sequence[Reservation], now: float) -> str:
    """Return the notice for the owner that a booking is confirmed."""
    one = there[0]
    return f"“{one.title}” is confirmed{_by(one)}: {_gpus(one)} {_times(there, now)}.{_because(one)}"


def moved(one: Reservation, now: float) -> str:
    """Return the notice that a booking was moved to another time."""
    who = one.owner if one.actor == one.owner else one.actor
    return f"{who} has moved “{one.title}”. It is {_from_to(one.period, one.zone, now)} now: {_gpus(one)}."


def invited(there: Sequence[Reservation], now: float) -> str:
    """Return the notice for those for whom a booking was made."""
    one = there[0]
    return f"{one.owner} has booked {_gpus(one)} for you, “{one.title}”, {_times(there, now)}."


def waits(there: Sequence[Reservation], now: float) -> str:
    """Return the notice for an administrator that a booking needs an approval."""
    one = there[0]
    return f"{one.owner} asks for {_gpus(one)} {_times(there, now)}: “{one.title}” waits for an approval."


def cancelled(there: Sequence[Reservation], now: float) -> str:
    """Return the notice that a booking was cancelled."""
    one = there[0]
    by = "" if one.actor == ACTOR else f" by {one.actor}"
    return f"“{one.title}” {_times(there, now)} was cancelled{by}.{_because(one)}"


def released(one: Reservation, now: float) -> str:
    """Return the notice for the owner that a booking was released."""
    when = _from_to(one.period, one.zone, now)
    return f"“{one.title}” {when} was given back{_by(one)}.{_because(one)} The GPU time that it held is free again."


def problem(one: Reservation, now: float) -> str:
    """Return the notice for the owner of a booking with a problem."""
    return f"“{one.title}” {_from_to(one.period, one.zone, now)}: {one.problem}"


def soon(one: Reservation, now: float) -> str:
    """Return the reminder that a booking begins soon."""
    left = duration(60 * max(1, round((one.period.start - now) / 60)))
    until = moment(one.period.end, now, one.zone)
    start = moment(one.period.start, now, one.zone)
    return f"“{one.title}” begins in {left}, {start}: {_gpus(one)}, until {_at(until)}."


def is_now(one: Reservation, now: float) -> str:
    """Return the sentence that a booking's time is now."""
    return f"“{one.title}” is now: {_gpus(one)}, until {_at(moment(one.period.end, now, one.zone))}."


def other_nodes(one: Reservation, before: Reservation, now: float) -> str:
    """Return the notice for the owner that a booking was moved to other nodes."""
    new, old = _nodes(one.places), _nodes(before.places)
    return f"“{one.title}” {_from_to(one.period, one.zone, now)} is on {new} now instead of {old}.{_because(one)}"


def maintenance(one: Reservation, job: Job, now: float, *, refunds: bool) -> str:
    """Return the notice of maintenance for a user whose session runs there, with what they can do.

    Args:
        refunds: whether the session's GPU time is refunded if its user stops it for the maintenance.
    """
    nodes = ", ".join(sorted(one.nodes & set(job.nodes)))
    begins = "has begun" if one.period.start <= now else f"begins {moment(one.period.start, now, one.zone)}"
    stop = "stop it now with a refund of the GPU time that it used" if refunds else "stop it now"
    return (
        f"Maintenance of {nodes} {begins}, and your session there may run longer than that. Save your work. On your "
        f"home page you can move the session to another node, or {stop}."
    )


def not_exact(supply: Supply) -> str:
    """Return what this Slurm cannot reserve exactly, "" if it can reserve all."""
    if supply.by_license:
        return COUNTED
    if supply.by_node:
        return f"{WHOLE_NODES}: a booking of some GPUs of a node takes the whole node."
    found = []
    if exclusive := sorted({item.node for item in supply.inventory if item.exclusive}):
        found.append(f"{SHARED_NODES}, because Slurm lets shards run on reserved GPUs: {listed(exclusive)}.")
    if not all(item.exclusive for item in supply.inventory):
        found.append(NO_MEMORY)
    return " ".join(found)


def notes(supply: Supply, need: Need, places: Sequence[Place], profile: str = "") -> tuple[str, ...]:
    """Return how a booking at these places differs from the request, and what is not known about its profile."""
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
    """Return the problem of a booking with maintenance on its nodes."""
    theirs = {place.node for place in booking.places}
    nodes = [place.node for place in maintenance.places if place.node in theirs]
    when = _from_to(maintenance.period, booking.zone, now)
    return f"{MAINTENANCE}{listed(nodes)} {when}: this booking cannot be kept there."


def listed(names: Sequence[str]) -> str:
    """Return "node1, node2 and node3", or the first few and how many more."""
    known = list(dict.fromkeys(names))
    if len(known) > _NAMED:
        known = [*known[:_NAMED], f"{len(known) - _NAMED} more"]
    return known[0] if len(known) == 1 else f"{', '.join(known[:-1])} and {known[-1]}"


def _gpus(one: Reservation) -> str:
    what = f"{one.need.gpus} {one.need.type}" if one.need.gpus else f"a whole node of {one.need.type}"
    return what if one.need.seats == 1 else f"{one.need.seats} × {what}"


def _times(there: Sequence[Reservation], now: float) -> str:
    one, more = there[0], len(there) - 1
    after = f" and {more} more time{'' if more == 1 else 's'}" if more else ""
    return _from_to(one.period, one.zone, now) + after


def _from_to(period: Period, zone: str, now: float) -> str:
    start, end = (_at(moment(at, now, zone)) for at in (period.start, period.end))
    return f"from {start} to {end}"


def _at(words: str) -> str:
    return words.removeprefix("on ")


def _nodes(places: Sequence[Place]) -> str:
    names = list(dict.fromkeys(place.node for place in places))
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + rest or "no node"


def _by(one: Reservation) -> str:
    """Return " by" and the actor; "" if that is the owner or no person."""
    return "" if one.actor in ("", ACTOR, one.owner) else f" by {one.actor}"


def _because(one: Reservation) -> str:
    """Return the given reason as a sentence of its own."""
    said = one.reason.strip()[:_LONGEST]
    if not said:
        return ""
    return f" Reason: {said}{'' if said[-1] in '.!?' else '.'}"
