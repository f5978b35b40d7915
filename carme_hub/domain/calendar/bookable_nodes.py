"""What of a cluster can be booked, by what Slurm says of its nodes and of reservations that are not ours. Pure.

Slurm does not keep shards off GPUs that are reserved (seen on 24.11: a job with ``--gres=shard:1`` ran on one). It does
keep everybody off a node that is reserved whole. So a node with shards is booked whole, unless its site says that it
keeps them off by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.resources import SHARD, Node
from carme_hub.domain.cluster.tres import ANY_TYPE

from .capacity import GpuInventory, OccupiedGpus
from .periods import Period
from .slurm_reservations import SlurmReservation

#: States and flags of a node that nobody can say when it will be back.
_OUT = frozenset({"down", "error", "fail", "failing", "drain", "drained", "draining", "not_responding", "no_respond"})
#: The type under which a job without GPUs is in the way of who wants the whole node.
_NO_GPU = "no gpu"
#: Seconds for which a job without a time limit is taken to run on.
_WITHOUT_END = 10 * 366 * 86_400
_QUARTER = 900


def inventory_of(nodes: Iterable[Node], *, shards_kept_off: bool = False) -> tuple[GpuInventory, ...]:
    """Return the GPUs of nodes; a node's CPUs are shared out to all its GPUs alike, rounded down.

    Args:
        shards_kept_off: whether the site sees to it that no shard job runs on GPUs that are reserved.
    """
    return tuple(
        GpuInventory(
            node.name,
            type,
            count,
            max(1, node.cpus // sum(node.gpus.values())),
            exclusive=bool(node.shards) and not shards_kept_off,
        )
        for node in nodes
        for type, count in sorted(node.gpus.items())
        if count
    )


def is_unavailable(node: Node) -> bool:
    """Return whether a node is down or drained. That it is reserved or in maintenance has an end, and is no outage."""
    return node.state in _OUT or bool(node.flags & _OUT)


def occupied_by_others(
    nodes: Iterable[Node],
    reservations: Iterable[SlurmReservation],
    *,
    ours: Collection[str],
    now: int,
    back_in: int,
) -> tuple[OccupiedGpus, ...]:
    """Return what cannot be booked though there are GPUs.

    Args:
        reservations: all of Slurm's. ours: the names of those that are bookings, and are counted as such.
        back_in: seconds after which a node that is out now is taken to be back, at the next quarter of an hour:
            what is offered from then on can still be taken a moment later.
    """
    known, back = {node.name: node for node in nodes}, -(-(now + back_in) // _QUARTER) * _QUARTER
    found = [OccupiedGpus(Period(now, back), node.name) for node in known.values() if is_unavailable(node)]
    for each in reservations:
        if each.name not in ours:
            found += occupied_by(each, known)
    return tuple(found)


def occupied_by(reservation: SlurmReservation, nodes: Mapping[str, Node]) -> Iterator[OccupiedGpus]:
    """Yield what a reservation by hand has of each node: where it does not say how many GPUs, as many as it may."""
    there = [nodes[name] for name in sorted(reservation.nodes) if name in nodes]
    if reservation.gpus:
        for node in there:
            for type, count in sorted(reservation.gpus.items()):
                if mine := min(count, node.gpus.get(type, 0)):
                    yield OccupiedGpus(reservation.period, node.name, type, mine)
    elif reservation.maintenance or reservation.cpus >= sum(node.cpus for node in there):
        yield from (OccupiedGpus(reservation.period, node.name) for node in there)


def occupied_by_jobs(jobs: Iterable[Job], nodes: Mapping[str, Node], now: int) -> tuple[OccupiedGpus, ...]:
    """Return what running jobs have of each node until their time limits end them.

    A job of several nodes is taken to have as many GPUs on each, rounded up, and a shard to have its part of one. GPUs
    of a type that nobody has said count where the node has one type only.
    """
    return tuple(
        OccupiedGpus(Period(now, _end(job, now)), node.name, *_held(job, node))
        for job in jobs
        if job.phase is Phase.ACTIVE
        for node in (nodes[name] for name in job.nodes if name in nodes)
    )


def _end(job: Job, now: int) -> int:
    return max(now + 1, int(job.end)) if job.end else now + _WITHOUT_END


def _held(job: Job, node: Node) -> tuple[str, int]:
    count = -(-job.gpus.count // len(job.nodes))
    if count and job.gpus.type in node.gpus:
        return job.gpus.type, count
    if count and job.gpus.type in (ANY_TYPE, SHARD) and len(node.gpus) == 1:
        (type,) = node.gpus
        shards = sum(node.shards.values())
        if job.gpus.type == ANY_TYPE:
            return type, count
        return type, -(-count * node.gpus[type] // shards) if shards else count
    return _NO_GPU, 1
