"""Why what was promised cannot be kept, and where else it could be. Pure.

Looked at is what begins within a day or has begun; maintenance at all times. A node that is out of order now may be
back by then, and a job may end long before its limit, so places elsewhere are sought first and nothing is taken away.

Slurm does not look at running jobs when it reserves single GPUs, and a booking for now asks nobody who is there. So the
jobs that may still run at its start are counted here: all that are not in bookings which hold at that moment.
What they leave of a node goes to its bookings in the order in which those begin.

What is kept by licences may be on any nodes, so it is broken when too few GPUs of its type are left in all. Its places
are the calendar's alone. They are moved all the same, so that nobody else books what it will be on instead.
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

#: Seconds before its start from which a booking is looked at.
SOON = 86_400
#: How the words of a refusal show that other nodes might do (Slurm's errors on nodes; not on users and accounts).
_ABOUT_NODES = ("node", "overlap", "busy")
_DRAINED = frozenset({"drain", "drained", "draining"})
_SILENT = frozenset({"not_responding", "no_respond"})


@dataclass(frozen=True, slots=True)
class ObservedSlurm:
    """What is known of Slurm at one moment.

    Attributes:
        there: its reservations. refused: Slurm's words by the name of the reservation that it does not keep.
    """

    now: int
    nodes: Mapping[str, Node]
    jobs: Iterable[Job]
    there: Sequence[SlurmReservation] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ViolationReason:
    """Why a promise cannot be kept.

    Attributes:
        nodes: where it cannot be, and the reason in words; {} where other nodes would not help.
        other: the reason then. maintenance: that is the cause of it.
        places: only its places in the calendar are meant: it is kept wherever they are.
    """

    nodes: Mapping[str, str]
    other: str = ""
    maintenance: Reservation | None = None
    places: bool = False

    @property
    def words(self) -> str:
        """Return the reasons in a row."""
        return messages.listed([*self.nodes.values()]) if self.nodes else self.other


class ViolationCheck:
    """What is promised, against what is known of Slurm."""

    def __init__(self, known: Iterable[Reservation], seen: ObservedSlurm) -> None:
        self._seen = seen
        promised = [each for each in known if each.state in PROMISED]
        self._refused_stems = {stem_of(name) for name in seen.refused}
        self._promised = sorted(promised, key=lambda each: (each.period.start, each.created, each.id))
        #: The bookings on each node, who begins first before the others.
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
        #: What each running job has of a node, and the booking that it runs in.
        self._held: dict[str, list[tuple[OccupiedGpus, Reservation | None]]] = {}
        stems = {each.stem: each for each in promised}
        for job in seen.jobs:
            asked = (stems[stem] for stem in map(stem_of, job.reservations) if stem in stems)
            of = next((each for each in asked if each.license or not each.nodes.isdisjoint(job.nodes)), None)
            for held in occupied_by_jobs((job,), seen.nodes, seen.now):
                self._held.setdefault(held.node, []).append((held, of))

    def broken(self) -> dict[str, ViolationReason]:
        """Return why promises cannot be kept, by the id of the reservation."""
        found = {each.id: self._why(each) for each in self._promised}
        return {id: why for id, why in found.items() if why is not None}

    def elsewhere(
        self, reservation: Reservation, supply: Supply, booked: Iterable[OccupiedGpus], without: Collection[str]
    ) -> tuple[Place, ...] | None:
        """Return where else the same can be for the same period, None where nowhere.

        As many GPUs as now, since nobody is asked who would pay for more. Its share was granted when it was booked.

        Args:
            booked: what all others have booked. without: nodes where it cannot be.
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

    def _why(self, reservation: Reservation) -> ViolationReason | None:
        refused = self._refused(reservation)
        nodes, planned = self._maintained(reservation)
        if reservation.kind is Kind.MAINTENANCE or not all(_about_nodes(said) for _, said in refused):
            return ViolationReason({}, f"Slurm refuses it ({refused[0][1]})") if refused else None
        soon = reservation.period.start - self._seen.now <= SOON
        for place in reservation.places if soon else ():
            jobs = "" if reservation.license else self._short(reservation, place)
            if reason := self._out_of_order(place.node) or jobs:
                nodes.setdefault(place.node, reason)
        if reservation.license:
            if reason := self._too_few(reservation, soon=soon):
                return ViolationReason({}, reason)
            return ViolationReason(nodes, places=True) if nodes else None
        for part, _ in refused:
            for node in sorted(part.nodes):
                nodes.setdefault(node, f"Slurm does not reserve {node}")
        return ViolationReason(nodes, maintenance=planned) if nodes else None

    def _refused(self, reservation: Reservation) -> list[tuple[SlurmReservation, str]]:
        refused = self._seen.refused
        if reservation.stem not in self._refused_stems:
            return []
        return [(part, refused[part.name]) for part in reservation.slurm_reservations() if part.name in refused]

    def _maintained(self, reservation: Reservation) -> tuple[dict[str, str], Reservation | None]:
        """Return which of its nodes are maintained in its time, in words, and the calendar's maintenance if any."""
        there = [
            (node, it)
            for node in sorted(reservation.nodes)
            for period, it in self._windows.get(node, ())
            if period.overlaps(reservation.period)
        ]
        nodes = {node: f"{node} is in maintenance then" for node, _ in there}
        return nodes, next((it for _, it in there if it is not None), None)

    def _out_of_order(self, name: str) -> str:
        node = self._seen.nodes.get(name)
        if node is None:
            return f"{name} is not in Slurm any more"
        if not is_unavailable(node):
            return ""
        state = {node.state, *node.flags}
        if state & _DRAINED:
            return f"{name} is drained"
        return f"{name} does not answer" if state & _SILENT else f"{name} is down"

    def _short(self, reservation: Reservation, place: Place) -> str:
        """Return that jobs leave too little of a node for a booking and those that begin before it, "" otherwise."""
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
        """Return why too few GPUs of its type are left in all of its time, in words; "" where enough are."""
        type, at = reservation.need.type, self._at(reservation)
        gone: list[str] = []
        left = 0
        for node in self._seen.nodes.values():
            if not (count := node.gpus.get(type, 0)):
                continue
            windows = (period for period, _ in self._windows.get(node.name, ()))
            if soon and (reason := self._out_of_order(node.name)):
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
        """Return what jobs that are in no booking then may still have of a node when a reservation begins."""
        at = self._at(reservation)
        return [
            held
            for held, of in self._held.get(node, ())
            if held.period.end > at and not (of is not None and of.period.start <= at < of.period.end)
        ]


def problem(reservation: Reservation, why: ViolationReason, now: int, *, in_use: bool) -> str:
    """Return the sentence for the owner of what cannot be kept, and has no other place."""
    if why.maintenance is not None:
        # Its days are told from today, so it is written once.
        known = reservation.problem.startswith(messages.MAINTENANCE)
        return reservation.problem if known else messages.maintenance_problem(why.maintenance, reservation, now)
    begin = f"This booking cannot be kept as it is: {why.words}"
    if not why.nodes:
        return f"{begin}. It is tried again every half minute; ask an administrator."
    if in_use:
        return f"{begin}. It is not moved to other nodes, since jobs run in it."
    return f"{begin}, and no other {reservation.need.type} are free for all of its time. They are still looked for."


def moved(old: Reservation, new: Sequence[Place], why: ViolationReason, *, waited: bool) -> str:
    """Return why a reservation has other places, in the words of its reason."""
    after = frozenset(place.node for place in new)
    left, come = sorted(old.nodes - after), sorted(after - old.nodes)
    where = f"moved from {messages.listed(left)} to {messages.listed(come or sorted(after))}: {why.words}"
    # Slurm holds the jobs that wait for a reservation that is deleted, and it is made anew on the other nodes.
    return f"{where}. Stop and start again what waited for it" if waited else where


def _about_nodes(said: str) -> bool:
    return any(word in said.lower() for word in _ABOUT_NODES)
