"""Which GPUs can be booked when, and what else could be: every booking has its place on nodes. Pure.

A booking is *seats*: each on one node, with a number of GPUs of one type, so that a session of that size fits; or whole
nodes. It is placed when it is made and keeps its place, since a job cannot move: a node's GPUs are free for a period
when they are so at each moment of it. Where Slurm cannot reserve single GPUs, a seat takes its whole node with all that
is on it (``by_node``), and as many seats as the node has room for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .periods import Period


@dataclass(frozen=True, slots=True)
class Spot:
    """The GPUs of one type on one node, and the CPUs that go with each of them.

    ``alone``: the node is booked whole, whoever books some of it.
    """

    node: str
    type: str
    count: int
    cpus: int = 1
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """GPUs of a node that somebody has for a period. ``count`` 0 is the whole node, with all types.

    ``booked``: by a booking of ours, which counts in the share of the cluster that may be booked.
    """

    period: Period
    node: str
    type: str = ""
    count: int = 0
    booked: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """What is to be booked.

    Attributes:
        type: GPU type. seats: how many; each is on one node.
        gpus: GPUs of one seat; 0 = a whole node that has this type, with nobody else on it.

    Raises:
        ValueError: it is nothing.
    """

    type: str
    gpus: int
    seats: int = 1

    def __post_init__(self) -> None:
        if not self.type or self.gpus < 0 or self.seats < 1:
            raise ValueError("a booking has a GPU type, no negative number of GPUs, and at least one seat")


@dataclass(frozen=True, slots=True)
class Place:
    """What a booking has on one node: ``count`` GPUs for ``seats`` seats, with so many CPUs.

    ``whole``: and nobody else is there.
    """

    node: str
    type: str
    count: int
    seats: int
    whole: bool = False
    cpus: int = 0

    def taken(self, period: Period) -> Taken:
        """Return what it takes from others."""
        return Taken(period, self.node, *(("", 0) if self.whole else (self.type, self.count)), booked=True)


class Capacity:
    """The GPUs of a cluster and who has them when.

    Args:
        spots: every node's GPUs, by type; nodes that nobody may book are left out.
        taken: bookings, maintenance, reservations by hand, nodes that are down; in any order, of any node.
        by_node: whether a seat takes its whole node.
        share: the part of each type's GPUs that may be booked at one moment, in percent.
    """

    def __init__(
        self, spots: Iterable[Spot], taken: Iterable[Taken], *, by_node: bool = False, share: int = 100
    ) -> None:
        self._spots: dict[str, dict[str, int]] = defaultdict(dict)
        self._nodes: dict[str, dict[str, int]] = defaultdict(dict)
        self._cpus: dict[tuple[str, str], int] = {}
        self._alone: set[str] = set()
        for spot in spots:
            if spot.count > 0:
                self._spots[spot.type][spot.node] = spot.count
                self._nodes[spot.node][spot.type] = spot.count
                self._cpus[spot.node, spot.type] = spot.cpus
                if by_node or spot.alone:
                    self._alone.add(spot.node)
        self._limit = {type: sum(nodes.values()) * share // 100 for type, nodes in self._spots.items()}
        self._on: dict[str, list[Taken]] = defaultdict(list)
        self._booked: dict[str, list[tuple[Period, int]]] = defaultdict(list)
        for each in taken:
            self._on[each.node].append(each)
            if each.booked:
                for type, count in self._gpus_of(each):
                    self._booked[type].append((each.period, count))

    def _gpus_of(self, taken: Taken) -> Iterable[tuple[str, int]]:
        """Return what it takes, by type: of a node that is taken whole, all."""
        return ((taken.type, taken.count),) if taken.count else self._nodes.get(taken.node, {}).items()

    @property
    def types(self) -> tuple[str, ...]:
        """Return the GPU types, by name."""
        return tuple(sorted(self._spots))

    def total(self, type: str) -> int:
        """Return how many GPUs of a type there are."""
        return sum(self._spots.get(type, {}).values())

    def room(self, type: str) -> int:
        """Return how many GPUs of a type the largest node has: no seat may have more."""
        return max(self._spots.get(type, {}).values(), default=0)

    def free_on(self, node: str, type: str, period: Period) -> int:
        """Return how many GPUs of a type a node has free at every moment of a period."""
        return self._left(node, type, self._spots.get(type, {}).get(node, 0), period)

    # -- places -----------------------------------------------------------------------------------------------------

    def place(self, need: Need, period: Period) -> tuple[Place, ...] | None:
        """Return where it can be for the whole period, by node; None where it cannot.

        The largest rooms are filled first, so that it is on few nodes, and the rest goes where it leaves least.
        """
        offers, wanted = sorted(self._offers(need, period)), need.seats
        found: list[Place] = []
        for number, (seats, _, node) in enumerate(offers):
            if -seats >= wanted:  # all of these have room for the rest
                rest = (offer for offer in offers[number:] if -offer[0] >= wanted)
                _, _, node = min(rest, key=lambda offer: (offer[2] in self._alone, *offer[1:]))
            mine = min(-seats, wanted)
            found.append(self._placed(need, node, mine))
            wanted -= mine
            if not wanted:
                break
        if wanted or not self._within_share(found, period):
            return None
        return tuple(sorted(found, key=lambda each: each.node))

    def fits(self, places: Iterable[Place], period: Period) -> bool:
        """Return whether these very places are free for the whole period."""
        there = [*places]
        return all(self._has(place, period) for place in there) and self._within_share(there, period)

    def _has(self, place: Place, period: Period) -> bool:
        count = self._spots.get(place.type, {}).get(place.node, 0)
        return 0 < place.count <= self._left(place.node, place.type, count, period, alone=place.whole)

    def _offers(self, need: Need, period: Period) -> Iterator[tuple[int, int, str]]:
        """Yield, for each node with room, for how many seats (negative), the GPUs free there, and its name."""
        for node, count in self._spots.get(need.type, {}).items():
            left = self._left(node, need.type, count, period, alone=not need.gpus)
            seats = left // need.gpus if need.gpus else int(left > 0)
            if seats > 0:
                yield -seats, left, node

    def _left(self, node: str, type: str, count: int, period: Period, *, alone: bool = False) -> int:
        """Return how many GPUs of a type a node has free at every moment. ``alone``: while nobody else is there."""
        there = [each for each in self._on.get(node, ()) if each.period.overlaps(period)]
        if not there:
            return count
        if alone or node in self._alone or any(not each.count for each in there):
            return 0
        return max(0, count - _peak([(each.period, each.count) for each in there if each.type == type], period))

    def _placed(self, need: Need, node: str, seats: int) -> Place:
        count, whole = self._spots[need.type][node], node in self._alone or not need.gpus
        mine = count if whole else seats * need.gpus
        return Place(node, need.type, mine, seats, whole, mine * self._cpus[node, need.type])

    def _within_share(self, places: Iterable[Place], period: Period) -> bool:
        more: dict[str, int] = defaultdict(int)
        for place in places:
            for type, count in self._gpus_of(place.taken(period)):
                more[type] += count
        return all(
            self._limit[type] >= self.total(type) or _peak(self._booked[type], period) + count <= self._limit[type]
            for type, count in more.items()
        )

    # -- over time --------------------------------------------------------------------------------------------------

    def band(self, type: str, period: Period) -> tuple[tuple[Period, int], ...]:
        """Return how many GPUs of a type are free: parts of the period, one after the other, each unlike the next."""
        starts, levels = self._levels(type, period)
        ends = [*starts[1:], period.end]
        return tuple((Period(start, end), level) for start, end, level in zip(starts, ends, levels, strict=True))

    def _levels(self, type: str, period: Period) -> tuple[list[int], list[int]]:
        """Return the moments at which the number of free GPUs changes, and the number from each of them on."""
        changes: dict[int, int] = defaultdict(int)
        for node, count in self._spots.get(type, {}).items():
            there = [each for each in self._on.get(node, ()) if each.period.overlaps(period)]
            before = count
            edges = {max(period.start, each.period.start) for each in there} | {each.period.end for each in there}
            for at in sorted(edge for edge in edges if edge < period.end):
                left = self._left(node, type, count, Period(at, at + 1))
                changes[at] += left - before
                before = left
        level = self.total(type) + changes.pop(period.start, 0)
        starts, levels = [period.start], [level]
        for at in sorted(changes):
            if changes[at]:
                level += changes[at]
                starts.append(at)
                levels.append(level)
        return starts, levels

    # -- what else --------------------------------------------------------------------------------------------------

    def other_times(self, need: Need, period: Period, within: Period, most: int = 3) -> tuple[Period, ...]:
        """Return the nearest times at which it could be, of the same length, the nearest first.

        They do not overlap each other. A time begins where the wanted one does, where something ends, or so that it
        ends where something begins: in between there is nothing new.
        """
        length = period.length
        if within.length < length:
            return ()
        edges = {period.start, within.start, within.end - length}
        for node in self._spots.get(need.type, {}):
            for each in self._on.get(node, ()):
                edges |= {each.period.end, each.period.start - length}
        starts, levels = self._levels(need.type, within)
        least = need.gpus * need.seats or need.seats
        found: list[Period] = []
        for start in sorted(edges, key=lambda at: (abs(at - period.start), at)):
            other = period.at(start)
            if not (within.start <= start and other.end <= within.end) or any(other.overlaps(each) for each in found):
                continue
            first, last = bisect_right(starts, start) - 1, bisect_right(starts, other.end - 1)
            # The sum over all nodes costs nothing to look at, and is too small at most times that cannot be.
            if min(levels[first:last]) >= least and self.place(need, other) is not None:
                found.append(other)
                if len(found) == most:
                    break
        return tuple(found)

    def fewer_seats(self, need: Need, period: Period) -> Need | None:
        """Return the same with as many seats as there is room for then, None where there is none."""
        low, high = 0, min(need.seats, sum(-seats for seats, _, _ in self._offers(need, period)))
        while low < high:
            middle = (low + high + 1) // 2
            if self.place(replace(need, seats=middle), period) is not None:
                low = middle
            else:
                high = middle - 1
        return replace(need, seats=low) if low else None

    def other_types(self, need: Need, period: Period) -> tuple[Need, ...]:
        """Return the same of other types that have room then, by name."""
        others = (replace(need, type=type) for type in self.types if type != need.type)
        return tuple(other for other in others if self.place(other, period) is not None)


def _peak(taken: list[tuple[Period, int]], period: Period) -> int:
    """Return the most GPUs that are taken at one moment of a period."""
    there = [(each, count) for each, count in taken if each.overlaps(period)]
    if len(there) <= 1:
        return there[0][1] if there else 0
    # At one moment an end comes before a start: what only touches is not there at once.
    edges = sorted([(each.start, count) for each, count in there] + [(each.end, -count) for each, count in there])
    level = most = 0
    for _, change in edges:
        level += change
        most = max(most, level)
    return most
