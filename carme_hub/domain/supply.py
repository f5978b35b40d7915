"""What of a cluster can be booked, by what Slurm says of its nodes and of reservations that are not ours. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from .capacity import Spot, Taken
from .periods import Period
from .resources import Node
from .slurm_reservations import SlurmReservation

#: States and flags of a node that nobody can say when it will be back.
_OUT = frozenset({"down", "error", "fail", "failing", "drain", "drained", "draining", "not_responding", "no_respond"})


def spots_of(nodes: Iterable[Node]) -> tuple[Spot, ...]:
    """Return the GPUs of nodes; a node's CPUs are shared out to all its GPUs alike, rounded down."""
    return tuple(
        Spot(node.name, type, count, max(1, node.cpus // sum(node.gpus.values())))
        for node in nodes
        for type, count in sorted(node.gpus.items())
        if count
    )


def is_out(node: Node) -> bool:
    """Return whether a node is down or drained. That it is reserved or in maintenance has an end, and is no outage."""
    return node.state in _OUT or bool(node.flags & _OUT)


def taken_by_others(
    nodes: Iterable[Node],
    reservations: Iterable[SlurmReservation],
    *,
    ours: Collection[str],
    now: int,
    back_in: int,
) -> tuple[Taken, ...]:
    """Return what cannot be booked though there are GPUs.

    Args:
        reservations: all of Slurm's. ours: the names of those that are bookings, and are counted as such.
        back_in: seconds after which a node that is out now is taken to be back.
    """
    known = {node.name: node for node in nodes}
    found = [Taken(Period(now, now + back_in), node.name) for node in known.values() if is_out(node)]
    for each in reservations:
        if each.name not in ours:
            found += _taken(each, known)
    return tuple(found)


def _taken(reservation: SlurmReservation, nodes: Mapping[str, Node]) -> Iterator[Taken]:
    """Yield what a reservation by hand has of each node: where it does not say how many GPUs, as many as it may."""
    there = [nodes[name] for name in sorted(reservation.nodes) if name in nodes]
    if reservation.gpus:
        for node in there:
            for type, count in sorted(reservation.gpus.items()):
                if mine := min(count, node.gpus.get(type, 0)):
                    yield Taken(reservation.period, node.name, type, mine)
    elif reservation.maintenance or reservation.cpus >= sum(node.cpus for node in there):
        yield from (Taken(reservation.period, node.name) for node in there)
