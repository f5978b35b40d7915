"""Which GPUs can be booked when, and the alternatives to a booking that does not fit. Pure.

A booking consists of *seats*: each seat is on one node and has a number of GPUs of one type, so that one session fits
in it; or a seat is a whole node. A booking is placed on nodes when it is made and keeps its places, since a job cannot
move. GPUs are free for a period if they are free at every moment of it. If Slurm cannot reserve single GPUs
(``by_node``), a booking takes whole nodes, each with as many seats as fit on it. ``carme_hub.booking`` calls this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

from .periods import Period
from .step_function import StepFunction


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """The GPUs of one type on one node, and the CPUs that go with each of them.

    ``exclusive``: any booking on the node takes the whole node.
    """

    node: str
    type: str
    count: int
    cpus: int = 1
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class OccupiedGpus:
    """GPUs of a node that are occupied for a period. ``count`` 0 is the whole node, with all types.

    ``booked``: by a booking of ours, which counts towards the share of the cluster that may be booked.
    """

    period: Period
    node: str
    type: str = ""
    count: int = 0
    booked: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """What a booking needs.

    Attributes:
        type: GPU type. seats: how many; each is on one node.
        gpus: GPUs of one seat; 0 = a whole node that has this type, exclusively.

    Raises:
        ValueError: a value is out of range.
    """

    type: str
    gpus: int
    seats: int = 1

    def __post_init__(self) -> None:
        if not self.type or self.gpus < 0 or self.seats < 1:
            raise ValueError("a booking has a GPU type, no negative number of GPUs, and at least one seat")


@dataclass(frozen=True, slots=True)
class Place:
    """What a booking has on one node: ``count`` GPUs for ``seats`` seats, and their CPUs.

    ``whole``: the booking has the node exclusively. ``also``: the number of GPUs of other types that go with it.
    """

    node: str
    type: str
    count: int
    seats: int
    whole: bool = False
    cpus: int = 0
    also: tuple[tuple[str, int], ...] = ()

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of all types."""
        return self.count + sum(count for _, count in self.also)

    def occupied(self, period: Period) -> OccupiedGpus:
        """Return what the place occupies during a period."""
        if self.whole:
            return OccupiedGpus(period, self.node, "", 0, True)
        return OccupiedGpus(period, self.node, self.type, self.count, True)


class Capacity:
    """The GPUs of a cluster, and when they are occupied.

    Args:
        inventory: every node's GPUs, by type; without nodes that nobody may book.
        occupied: bookings, maintenance, manual reservations, nodes that are down; in any order, of any node.
        by_node: whether a seat takes its whole node.
        share: the percentage of each type's GPUs that may be booked at one moment.
    """

    def __init__(
        self,
        inventory: Iterable[GpuInventory],
        occupied: Iterable[OccupiedGpus],
        *,
        by_node: bool = False,
        share: int = 100,
    ) -> None:
        self._by_type: dict[str, dict[str, int]] = defaultdict(dict)
        self._by_node: dict[str, dict[str, int]] = defaultdict(dict)
        self._cpus: dict[tuple[str, str], int] = {}
        self._exclusive: set[str] = set()
        for item in inventory:
            if item.count > 0:
                self._by_type[item.type][item.node] = item.count
                self._by_node[item.node][item.type] = item.count
                self._cpus[item.node, item.type] = item.cpus
                if by_node or item.exclusive:
                    self._exclusive.add(item.node)
        total = {type: sum(nodes.values()) for type, nodes in self._by_type.items()}
        #: How many GPUs of a type may be booked at one moment, for types that have such a limit.
        self._limit = {type: limit for type, all in total.items() if (limit := all * share // 100) < all}
        #: Free GPUs of each node while nothing is occupied.
        self._unoccupied: dict[str, dict[str, tuple[int, StepFunction | None]]] = {}
        #: The nodes and types on which new places are allowed; None = all.
        self._allowed: Collection[tuple[str, str]] | None = None
        self._set_occupied(occupied)

    def _set_occupied(self, occupied: Iterable[OccupiedGpus]) -> None:
        self._occupied = [*occupied]
        self._occupied_on: dict[str, list[OccupiedGpus]] = defaultdict(list)
        for each in self._occupied:
            self._occupied_on[each.node].append(each)
        # Derived values are cached: one conflict needs several of them, for many times.
        self._free_cache: dict[tuple[str, bool], dict[str, tuple[int, StepFunction | None]]] = {}
        self._share_left: dict[str, StepFunction] = {}

    def with_occupied(self, occupied: Iterable[OccupiedGpus]) -> Capacity:
        """Return the same GPUs with other occupied ones."""
        other = copy(self)
        other._set_occupied(occupied)
        return other

    def restricted_to(self, allowed: Collection[tuple[str, str]] | None) -> Capacity:
        """Return the same capacity with new places allowed only on these nodes and types; None = all.

        The share still counts all nodes, and ``fits`` checks places on any node.
        """
        if allowed is None:
            return self
        other = copy(self)
        other._allowed = allowed
        return other

    @property
    def types(self) -> tuple[str, ...]:
        """Return the GPU types, by name."""
        return tuple(sorted(self._by_type))

    def total(self, type: str) -> int:
        """Return the number of GPUs of a type."""
        return sum(self._by_type.get(type, {}).values())

    def largest_node(self, type: str) -> int:
        """Return the number of GPUs of a type on the largest node, which is the limit for one seat."""
        return max(self._by_type.get(type, {}).values(), default=0)

    def free_on(self, node: str, type: str, period: Period, *, exclusive: bool = False) -> int:
        """Return the GPUs of a type that a node has free at every moment. ``exclusive``: while all of it is free."""
        count, free = self._free_by_node(type, exclusive=exclusive).get(node, (0, None))
        return count if free is None else free.least(period.start, period.end)

    # -- places -----------------------------------------------------------------------------------------------------

    def place(self, need: Need, period: Period) -> tuple[Place, ...] | None:
        """Return places for the whole period, sorted by node; None if there are none.

        Nodes with the most free seats come first, so that few nodes are used; the rest goes to the node with the least
        left over.
        """
        if need.gpus > self.largest_node(need.type):
            return None
        return self._place(need, period, self._offers(need, period))

    def _place(self, need: Need, period: Period, offers: Sequence[tuple[int, int, str]]) -> tuple[Place, ...] | None:
        wanted = need.seats
        if sum(-seats for seats, _, _ in offers) < wanted:
            return None
        found: list[Place] = []
        for number, (seats, _, node) in enumerate(offers):
            if -seats >= wanted:  # each of these nodes can take the rest
                rest = (offer for offer in offers[number:] if -offer[0] >= wanted)
                _, _, node = min(rest, key=lambda offer: (offer[2] in self._exclusive, *offer[1:]))
            mine = min(-seats, wanted)
            found.append(self._place_on(need, node, mine))
            wanted -= mine
            if not wanted:
                break
        return tuple(sorted(found, key=_node)) if self._within_share(found, period) else None

    def fits(self, places: Iterable[Place], period: Period) -> bool:
        """Return whether exactly these places are free for the whole period."""
        there = [*places]
        return all(self._is_free(place, period) for place in there) and self._within_share(there, period)

    def _is_free(self, place: Place, period: Period) -> bool:
        return 0 < place.count <= self.free_on(place.node, place.type, period, exclusive=place.whole)

    def _offers(self, need: Need, period: Period) -> list[tuple[int, int, str]]:
        """Return (negative number of free seats, free GPUs, name) of each node with a free seat, sorted."""
        found, start, end = [], period.start, period.end
        for node, count, free in self._candidates(need):
            left = count if free is None else free.least(start, end)
            if seats := _seats(need, left):
                found.append((-seats, left, node))
        return sorted(found)

    def _max_seats(self, need: Need) -> int:
        """Return how many seats fit while nothing is occupied."""
        allowed, there = self._allowed, self._by_type.get(need.type, {}).items()
        return sum(_seats(need, count) for node, count in there if allowed is None or (node, need.type) in allowed)

    def _candidates(self, need: Need) -> Iterator[tuple[str, int, StepFunction | None]]:
        """Yield name, GPUs and free GPUs over time of the nodes on which the need may be placed."""
        allowed = self._allowed
        for node, (count, free) in self._free_by_node(need.type, exclusive=not need.gpus).items():
            if allowed is None or (node, need.type) in allowed:
                yield node, count, free

    def _free_by_node(self, type: str, *, exclusive: bool = False) -> dict[str, tuple[int, StepFunction | None]]:
        """Return each node's number of GPUs of a type, and how many are free over time (None = always all)."""
        if (type, exclusive) not in self._free_cache:
            if type not in self._unoccupied:
                self._unoccupied[type] = {node: (count, None) for node, count in self._by_type.get(type, {}).items()}
            line = self._unoccupied[type].copy()
            for node in self._occupied_on:
                if node in line:
                    line[node] = (line[node][0], self._free(node, type, line[node][0], exclusive))
            self._free_cache[type, exclusive] = line
        return self._free_cache[type, exclusive]

    def _free(self, node: str, type: str, count: int, exclusive: bool) -> StepFunction | None:
        exclusive, changes = exclusive or node in self._exclusive, dict[int, int]()
        for each in self._occupied_on[node]:
            if exclusive or not each.count:
                mine = count
            elif each.type == type:
                mine = each.count
            else:
                continue
            start, end = each.period.start, each.period.end
            changes[start] = changes.get(start, 0) - mine
            changes[end] = changes.get(end, 0) + mine
        if not changes:
            return None
        steps = StepFunction.of(count, changes)
        return StepFunction(steps.edges, [max(0, level) for level in steps.levels])

    def _place_on(self, need: Need, node: str, seats: int) -> Place:
        count, whole = self._by_type[need.type][node], node in self._exclusive or not need.gpus
        mine = count if whole else seats * need.gpus
        also = tuple(sorted(other for other in self._by_node[node].items() if other[0] != need.type)) if whole else ()
        return Place(node, need.type, mine, seats, whole, mine * self._cpus[node, need.type], also)

    # -- the share that may be booked ---------------------------------------------------------------------------------

    def _within_share(self, places: Iterable[Place], period: Period) -> bool:
        if not self._limit:
            return True
        more: dict[str, int] = defaultdict(int)
        for place in places:
            for type, count in self._gpus_of(place.occupied(period)):
                more[type] += count
        return all(count <= self._left_of_share(type, period) for type, count in more.items() if type in self._limit)

    def _left_of_share(self, type: str, period: Period) -> int:
        """Return how many more GPUs of a type with a limit may be booked at every moment of a period."""
        if type not in self._share_left:
            changes: dict[int, int] = defaultdict(int)
            for each in self._occupied:
                for of, count in self._gpus_of(each) if each.booked else ():
                    if of == type:
                        changes[each.period.start] -= count
                        changes[each.period.end] += count
            self._share_left[type] = StepFunction.of(self._limit[type], changes)
        return self._share_left[type].least(period.start, period.end)

    def _gpus_of(self, occupied: OccupiedGpus) -> Collection[tuple[str, int]]:
        """Return the number of occupied GPUs by type; all of the node if it is occupied as a whole."""
        return ((occupied.type, occupied.count),) if occupied.count else self._by_node.get(occupied.node, {}).items()

    # -- over time --------------------------------------------------------------------------------------------------

    def free_over_time(self, type: str, period: Period) -> tuple[tuple[Period, int], ...]:
        """Return how many GPUs of a type are free: consecutive parts of the period with different numbers."""
        changes: dict[int, int] = defaultdict(int)
        for _, free in self._free_by_node(type).values():
            if free is not None:
                for at, before, after in zip(free.edges, free.levels, free.levels[1:], strict=False):
                    changes[at] += after - before
        return StepFunction.of(self.total(type), changes).parts(period)

    def _seats_from(self, need: Need, length: int, within: Period) -> StepFunction:
        """Return how many seats fit for a length of time, by their start."""
        first, last = within.start, within.end - length
        total, changes = 0, dict[int, int]()
        for _, count, free in self._candidates(need):
            if free is None:
                total += _seats(need, count)
                continue
            before = _seats(need, free.least(first, first + length))
            total += before
            # The number grows where an occupied period ends, and shrinks where the time would run into the next one.
            for at in sorted({*free.edges, *(edge - length + 1 for edge in free.edges)}):
                if first < at <= last:
                    seats = _seats(need, free.least(at, at + length))
                    if seats != before:
                        changes[at] = changes.get(at, 0) + seats - before
                        before = seats
        return StepFunction.of(total, changes)

    # -- alternatives -----------------------------------------------------------------------------------------------

    def other_times(
        self,
        need: Need,
        period: Period,
        within: Period,
        most: int = 3,
        *,
        allowed: Callable[[Period], bool] | None = None,
    ) -> tuple[Period, ...]:
        """Return the nearest times of the same length at which the need fits, the nearest first.

        They do not overlap each other. Candidates begin at the wanted start, where an occupied period ends, or end
        where one begins: nothing changes in between.

        Args:
            allowed: whether a time may be booked at all.
        """
        length = period.length
        if within.length < length or self._max_seats(need) < need.seats:
            return ()
        edges = {period.start, within.start, within.end - length}
        for node in self._by_type.get(need.type, {}):
            for each in self._occupied_on.get(node, ()):
                edges |= {each.period.end, each.period.start - length}
        room, last = self._seats_from(need, length, within), within.end - length
        possible = [at for at in edges if within.start <= at <= last and room.at(at) >= need.seats]
        found: list[Period] = []
        for start in sorted(possible, key=lambda at: (abs(at - period.start), at)):
            other = period.at(start)
            if any(other.overlaps(each) for each in found) or (allowed is not None and not allowed(other)):
                continue
            if self._may_be_booked(need, other):
                found.append(other)
                if len(found) == most:
                    break
        return tuple(found)

    def _may_be_booked(self, need: Need, period: Period) -> bool:
        """Return whether the bookable share allows the need in a period in which it fits."""
        if not self._limit:
            return True
        least = need.gpus * need.seats or need.seats
        few = need.type in self._limit and self._left_of_share(need.type, period) < least
        return not few and self.place(need, period) is not None

    def fewer_seats(self, need: Need, period: Period) -> Need | None:
        """Return the need with as many seats as fit in the period, None if none fits."""
        offers = self._offers(need, period)
        low, high = 0, min(need.seats, sum(-seats for seats, _, _ in offers))
        while low < high:
            middle = (low + high + 1) // 2 if self._limit else high
            if self._place(replace(need, seats=middle), period, offers) is not None:
                low = middle
            else:
                high = middle - 1
        return replace(need, seats=low) if low else None

    def other_types(self, need: Need, period: Period) -> tuple[Need, ...]:
        """Return the need with each other type that fits in the period, by name."""
        others = (replace(need, type=type) for type in self.types if type != need.type)
        return tuple(other for other in others if self.place(other, period) is not None)


def _seats(need: Need, free: int) -> int:
    """Return how many seats fit on a node with a number of free GPUs."""
    return free // need.gpus if need.gpus else int(free > 0)


def _node(place: Place) -> str:
    return place.node
