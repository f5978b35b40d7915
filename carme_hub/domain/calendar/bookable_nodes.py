"""Derive what can be booked from Slurm's nodes, its jobs, and the reservations that are not ours. Pure.

Slurm lets shard jobs run on reserved GPUs (seen on 24.11: a job with ``--gres=shard:1`` ran on one), but no job runs on
a node that is reserved as a whole. So a node with shards is booked as a whole, unless the site declares that it keeps
shard jobs off reserved GPUs. The reservations service and the calendar's reconciler call this module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.resources import SHARD, Node
from carme_hub.domain.cluster.tres import ANY_TYPE

from .capacity import GpuInventory, OccupiedGpus
from .periods import Period
from .slurm_reservations import SlurmReservation

#: States and flags of a node that is unavailable without a known end.
_OUT = frozenset({"down", "error", "fail", "failing", "drain", "drained", "draining", "not_responding", "no_respond"})
#: The GPU type of a job without GPUs, which conflicts only with a booking of the whole node.
_NO_GPU = "no gpu"
#: Seconds for which a job without a time limit is assumed to run.
_WITHOUT_END = 10 * 366 * 86_400
_QUARTER = 900


def inventory_of(nodes: Iterable[Node], *, shards_kept_off: bool = False) -> tuple[GpuInventory, ...]:
    """Return the GPUs of nodes; a node's CPUs are divided evenly among all its GPUs, rounded down.

    Args:
        shards_kept_off: whether the site prevents shard jobs on reserved GPUs.
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
    """Return whether a node is down or drained. Reserved and maintenance states have an end and do not count."""
    return node.state in _OUT or bool(node.flags & _OUT)


def occupied_by_others(
    nodes: Iterable[Node],
    reservations: Iterable[SlurmReservation],
    *,
    ours: Collection[str],
    now: int,
    back_in: int,
) -> tuple[OccupiedGpus, ...]:
    """Return the GPUs that cannot be booked because of outages or other reservations.

    Args:
        reservations: all of Slurm's. ours: names of those that are bookings, which are counted elsewhere.
        back_in: seconds after which an unavailable node is assumed to be back, rounded up to a quarter of an hour,
            so that an offered time stays valid for a while.
    """
    known, back = {node.name: node for node in nodes}, -(-(now + back_in) // _QUARTER) * _QUARTER
    found = [OccupiedGpus(Period(now, back), node.name) for node in known.values() if is_unavailable(node)]
    for each in reservations:
        if each.name not in ours:
            found += occupied_by(each, known)
    return tuple(found)


def occupied_by(reservation: SlurmReservation, nodes: Mapping[str, Node]) -> Iterator[OccupiedGpus]:
    """Yield what a manual reservation occupies on each node; all GPUs if it does not say how many."""
    there = [nodes[name] for name in sorted(reservation.nodes) if name in nodes]
    if reservation.gpus:
        for node in there:
            for type, count in sorted(reservation.gpus.items()):
                if mine := min(count, node.gpus.get(type, 0)):
                    yield OccupiedGpus(reservation.period, node.name, type, mine)
    elif reservation.maintenance or reservation.cpus >= sum(node.cpus for node in there):
        yield from (OccupiedGpus(reservation.period, node.name) for node in there)


def occupied_by_jobs(jobs: Iterable[Job], nodes: Mapping[str, Node], now: int) -> tuple[OccupiedGpus, ...]:
    """Return what running jobs occupy on each node until their time limits.

    A job on several nodes counts with the same number of GPUs on each, rounded up; a shard counts as its fraction of a
    GPU. Untyped GPUs count on nodes that have one type only.
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
