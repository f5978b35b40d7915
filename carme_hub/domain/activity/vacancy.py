"""When a smaller job could have started, and nobody would have waited longer: by the jobs of that day. Pure.

The other jobs are left where and when they were. The smaller job fits at a moment if one node of the partition had room
for it from then on, for as long as the job really ran, and up to its time limit as far as that is known by now. So
the answer never takes a place that somebody had, and a scheduler that knew no more than Slurm does may have found it
later: it is said as what there was room for, and left out where something about it is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """GPUs of one type, CPUs and MiB of memory: those of a node, or those that a job needs on one."""

    gpus: int = 0
    cpus: int = 0
    memory_mib: int = 0

    def holds(self, other: Room) -> bool:
        """Return whether there is enough of each."""
        return self.gpus >= other.gpus and self.cpus >= other.cpus and self.memory_mib >= other.memory_mib


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken on one node from a moment until another, UTC epoch seconds; ``room`` None = the whole node."""

    node: str
    start: float
    end: float
    room: Room | None


def first_start(
    wanted: Room, nodes: dict[str, Room], taken: Iterable[Taken], since: float, until: float, lasts: float
) -> float | None:
    """Return the first moment at which a job of this size could have started; None if there was none.

    Args:
        nodes: what each node of the partition has. taken: by all other jobs, and by nodes that were out of service.
        since: when it could have started at the earliest. until: a moment from which on it does not matter.
        lasts: seconds for which the room must be free.
    """
    by_node: dict[str, list[Taken]] = {name: [] for name in nodes}
    for each in taken:
        if each.node in by_node and each.end > since and each.start < until + lasts:
            by_node[each.node].append(each)
    found = [_first_on(wanted, room, by_node[name], since, until, lasts) for name, room in nodes.items()]
    return min((each for each in found if each is not None), default=None)


def _first_on(
    wanted: Room, room: Room, taken: Sequence[Taken], since: float, until: float, lasts: float
) -> float | None:
    """Return the first moment on one node: room becomes free only when something ends."""
    if not room.holds(wanted):
        return None
    for start in sorted({since, *(each.end for each in taken if since < each.end < until)}):
        end = start + lasts
        met = [each for each in taken if each.start < end and each.end > start]
        # What is taken grows only when something starts.
        moments = {start, *(each.start for each in met if each.start > start)}
        if all(_left(room, [each for each in met if each.start <= at < each.end]).holds(wanted) for at in moments):
            return start
    return None


def _left(room: Room, taken: Sequence[Taken]) -> Room:
    """Return what is left of a node's room; nothing where all of it is taken."""
    gpus, cpus, memory = room.gpus, room.cpus, room.memory_mib
    for each in taken:
        if each.room is None:
            return Room(-1, -1, -1)
        gpus, cpus, memory = gpus - each.room.gpus, cpus - each.room.cpus, memory - each.room.memory_mib
    return Room(gpus, cpus, memory)
