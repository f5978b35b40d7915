"""Violations: why reservations cannot be kept, and where else they could be. Pure; ``rebooking`` calls it.

It checks reservations that begin within a day or have begun, and maintenance at all times. A node that is out of order
now may be back by then, and a job may end long before its limit, so other places are searched first, and no reservation
is cancelled.

Slurm ignores running jobs when it reserves single GPUs. So the jobs that may still run at a booking's start are counted
here: all that are not in bookings which are active then. The GPUs that they leave on a node go to its bookings in the
order of their starts.

A reservation that is kept by licenses may be on any nodes, so it is violated if too few GPUs of its type are left in
total. Its places exist only in the calendar. They are moved, too, so that nobody else books the GPUs that it will use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from carme_hub.booking import messages
from carme_hub.booking.calendar import Supply
from carme_hub.domain.calendar.bookable_nodes import is_unavailable, occupied_by_jobs
from carme_hub.domain.calendar.capacity import Capacity, OccupiedGpus, Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import PROMISED, Kind, Reservation, by_type
from carme_hub.domain.calendar.slurm_reservations import SlurmReservation, stem_of
from carme_hub.domain.cluster.jobs import Job
from carme_hub.domain.cluster.resources import Node

#: Seconds before its start from which a booking is checked.
SOON = 86_400
#: Words in Slurm's refusals that are about nodes, so that other nodes may help (not those on users and accounts).
_NODE_WORDS = ("node", "overlap", "busy")
_DRAINED = frozenset({"drain", "drained", "draining"})
_SILENT = frozenset({"not_responding", "no_respond"})


@dataclass(frozen=True, slots=True)
class ObservedSlurm:
    """The observed state of Slurm at one time.

    Attributes:
        there: its reservations. refused: Slurm's message by the name of the reservation that it refused.
    """

    now: int
    nodes: Mapping[str, Node]
    jobs: Iterable[Job]
    there: Sequence[SlurmReservation] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a reservation cannot be kept.

    Attributes:
        nodes: the reason in words by node; {} if other nodes would not help.
        other: the reason then. maintenance: the maintenance that causes it, if one does.
        places: only its places in the calendar are affected: Slurm keeps it on any nodes.
    """

    nodes: Mapping[str, str]
    other: str = ""
    maintenance: Reservation | None = None
    places: bool = False

    @property
    def text(self) -> str:
        """Return all reasons as one text."""
        return messages.listed([*self.nodes.values()]) if self.nodes else self.other


class ViolationCheck:
    """Check of the reservations against the observed state of Slurm."""

    def __init__(self, known: Iterable[Reservation], seen: ObservedSlurm) -> None:
        self._seen = seen
        promised = [each for each in known if each.state in PROMISED]
        self._refused_stems = {stem_of(name) for name in seen.refused}
        self._promised = sorted(promised, key=lambda each: (each.period.start, each.created, each.id))
        #: The bookings on each node, by start.
        self._on: dict[str, list[tuple[Reservation, Place]]] = {}
        for each in self._promised:
            for place in each.places if each.kind is Kind.BOOKING else ():
                self._on.setdefault(place.node, []).append((each, place))
        self._windows: dict[str, list[tuple[Period, Reservation | None]]] = {}
        ours = [(each.nodes, each.period, each) for each in promised if each.kind is Kind.MAINTENANCE]
        by_hand = [(each.nodes, each.period, None) for each in seen.there if each.maintenance and not each.ours]
        for nodes, period, it in (*ours, *by_hand):
            for node in nodes:
                self._windows.setdefault(node, []).append((period, it))
        #: The GPUs of each running job on a node, and the booking in which it runs.
        self._held: dict[str, list[tuple[OccupiedGpus, Reservation | None]]] = {}
        stems = {each.stem: each for each in promised}
        for job in seen.jobs:
            asked = (stems[stem] for stem in map(stem_of, job.reservations) if stem in stems)
            of = next((each for each in asked if each.license or not each.nodes.isdisjoint(job.nodes)), None)
            for held in occupied_by_jobs((job,), seen.nodes, seen.now):
                self._held.setdefault(held.node, []).append((held, of))

    def broken(self) -> dict[str, Violation]:
        """Return the violations by the id of the reservation."""
        found = {each.id: self._violation(each) for each in self._promised}
        return {id: violation for id, violation in found.items() if violation is not None}

    def elsewhere(
        self, reservation: Reservation, supply: Supply, booked: Iterable[OccupiedGpus], without: Collection[str]
    ) -> tuple[Place, ...] | None:
        """Return other places for the same period, None if there are none.

        They have as many GPUs as now, since nobody is asked whether they pay for more. Its share was granted when it
        was booked.

        Args:
            booked: GPUs of all other bookings. without: nodes on which it cannot be.
        """
        period, nodes = reservation.period, self._seen.nodes
        sizes = {place.count for place in reservation.places if place.whole}
        inventory = (
            item
            for item in supply.inventory
            if item.node in nodes and item.node not in without and not is_unavailable(nodes[item.node])
            if not sizes or item.count in sizes
        )
        running = (held for node in self._held for held in self._running(node, reservation))
        taken = (each for each in (*supply.taken, *booked, *running) if each.period.overlaps(period))
        need, capacity = reservation.need, Capacity(inventory, taken, by_node=supply.by_node)
        places = capacity.restricted_to(supply.places_for_profile(reservation.profile, need)).place(need, period)
        return places if places and by_type(places) == reservation.by_type else None

    def _violation(self, reservation: Reservation) -> Violation | None:
        refused = self._refused(reservation)
        nodes, planned = self._maintenance_then(reservation)
        if reservation.kind is Kind.MAINTENANCE or not all(_is_about_nodes(said) for _, said in refused):
            return Violation({}, f"Slurm refuses it ({refused[0][1]})") if refused else None
        soon = reservation.period.start - self._seen.now <= SOON
        for place in reservation.places if soon else ():
            jobs = "" if reservation.license else self._jobs_in_the_way(reservation, place)
            if reason := self._node_fault(place.node) or jobs:
                nodes.setdefault(place.node, reason)
        if reservation.license:
            if reason := self._too_few(reservation, soon=soon):
                return Violation({}, reason)
            return Violation(nodes, places=True) if nodes else None
        for part, _ in refused:
            for node in sorted(part.nodes):
                nodes.setdefault(node, f"Slurm does not reserve {node}")
        return Violation(nodes, maintenance=planned) if nodes else None

    def _refused(self, reservation: Reservation) -> list[tuple[SlurmReservation, str]]:
        refused = self._seen.refused
        if reservation.stem not in self._refused_stems:
            return []
        return [(part, refused[part.name]) for part in reservation.slurm_reservations() if part.name in refused]

    def _maintenance_then(self, reservation: Reservation) -> tuple[dict[str, str], Reservation | None]:
        """Return its nodes with maintenance in its time, in words, and the calendar's maintenance if any."""
        there = [
            (node, it)
            for node in sorted(reservation.nodes)
            for period, it in self._windows.get(node, ())
            if period.overlaps(reservation.period)
        ]
        nodes = {node: f"{node} is in maintenance then" for node, _ in there}
        return nodes, next((it for _, it in there if it is not None), None)

    def _node_fault(self, name: str) -> str:
        node = self._seen.nodes.get(name)
        if node is None:
            return f"{name} is not in Slurm any more"
        if not is_unavailable(node):
            return ""
        state = {node.state, *node.flags}
        if state & _DRAINED:
            return f"{name} is drained"
        return f"{name} does not answer" if state & _SILENT else f"{name} is down"

    def _jobs_in_the_way(self, reservation: Reservation, place: Place) -> str:
        """Return a sentence if jobs leave too few GPUs on a node for a booking and earlier ones, "" otherwise."""
        theirs = self._running(place.node, reservation)
        need = reservation.need
        if theirs and need.gpus:
            node, at = self._seen.nodes[place.node], self._at(reservation)
            ahead = takewhile(lambda each: each[0] is not reservation, self._on[place.node])
            before = sum(
                other.count
                for each, other in ahead
                if each.period.start <= at < each.period.end and other.type == place.type
            )
            running = sum(held.count for held in theirs if held.type == place.type)
            if not running or running + before + need.gpus * place.seats <= node.gpus.get(place.type, 0):
                return ""
        if not theirs:
            return ""
        return f"jobs of others {self._when(reservation)} on {place.node}"

    def _too_few(self, reservation: Reservation, *, soon: bool) -> str:
        """Return why too few GPUs of its type are left in all of its time, in words; "" if there are enough."""
        type, at = reservation.need.type, self._at(reservation)
        gone: list[str] = []
        left = 0
        for node in self._seen.nodes.values():
            if not (count := node.gpus.get(type, 0)):
                continue
            windows = (period for period, _ in self._windows.get(node.name, ()))
            if soon and (reason := self._node_fault(node.name)):
                gone.append(reason)
            elif any(period.overlaps(reservation.period) for period in windows):
                gone.append(f"{node.name} is in maintenance then")
            else:
                running = (held.count for held in self._running(node.name, reservation) if held.type == type)
                used = min(count, sum(running)) if soon else 0
                left += count - used
                gone += [f"jobs of others {self._when(reservation)} on {node.name}"] if used else []
        ahead = takewhile(lambda each: each is not reservation, self._promised)
        same = (each for each in ahead if each.kind is Kind.BOOKING)
        left -= sum(each.own_type_gpus for each in same if each.period.start <= at < each.period.end)
        if left >= reservation.own_type_gpus or not gone:
            return ""
        return f"only {max(0, left)} of its {reservation.own_type_gpus} × {type} are left: {messages.listed(gone)}"

    def _when(self, reservation: Reservation) -> str:
        return "run" if reservation.period.start <= self._seen.now else "may still run then"

    def _at(self, reservation: Reservation) -> int:
        return max(reservation.period.start, self._seen.now)

    def _running(self, node: str, reservation: Reservation) -> list[OccupiedGpus]:
        """Return the GPUs on a node that jobs outside of bookings may still use when a reservation begins."""
        at = self._at(reservation)
        return [
            held
            for held, of in self._held.get(node, ())
            if held.period.end > at and not (of is not None and of.period.start <= at < of.period.end)
        ]


def problem(reservation: Reservation, violation: Violation, now: int, *, in_use: bool) -> str:
    """Return the sentence for the owner of a reservation that cannot be kept and has no other places."""
    if violation.maintenance is not None:
        # The sentence names days relative to today, so it is written once.
        known = reservation.problem.startswith(messages.MAINTENANCE)
        return reservation.problem if known else messages.maintenance_problem(violation.maintenance, reservation, now)
    begin = f"This booking cannot be kept as it is: {violation.text}"
    if not violation.nodes:
        return f"{begin}. It is tried again every half minute; ask an administrator for help."
    if in_use:
        return f"{begin}. It is not moved to other nodes, because jobs run in it."
    return f"{begin}, and no other {reservation.need.type} are free for all of its time. The search continues."


def moved(old: Reservation, new: Sequence[Place], violation: Violation, *, waited: bool) -> str:
    """Return the reason text of a reservation that was moved to other places."""
    after = frozenset(place.node for place in new)
    left, come = sorted(old.nodes - after), sorted(after - old.nodes)
    where = f"moved from {messages.listed(left)} to {messages.listed(come or sorted(after))}: {violation.text}"
    # Slurm holds jobs that wait for a deleted reservation; this one is created again on the other nodes.
    return f"{where}. Stop and restart the sessions and jobs that waited for it" if waited else where


def _is_about_nodes(said: str) -> bool:
    return any(word in said.lower() for word in _NODE_WORDS)
