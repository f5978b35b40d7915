"""Availability from one snapshot: what is free, when a request would start, and a smaller request that starts sooner.

The start form and companions show it. "starts now" is shown only if a node fits the request and no other job waits for
the same GPUs. An expected start is the moment by which running jobs must have freed enough by their time limits; with
jobs ahead it is only the earliest moment, and the sentence says so. If Slurm does not answer, the sentences name the
time of the last answer. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.resources import Gpus, Node

from .profile import Limit, Profile
from .session import Request

#: Reasons of waiting jobs that compete; held or dependent jobs are not ahead of anybody.
_IN_QUEUE = frozenset({"", "None", "Resources", "Priority"})


@dataclass(frozen=True, slots=True)
class TypeCount:
    """GPUs of one type: total, free now, and on nodes where nothing can start."""

    total: int = 0
    free: int = 0
    down: int = 0


@dataclass(frozen=True, slots=True)
class PartitionNodes:
    """The nodes of one partition, indexed once."""

    nodes: tuple[Node, ...]
    gpus: Mapping[str, TypeCount]
    cpus: TypeCount

    def largest(self, type: str, cpus: int, memory_mib: int) -> int:
        """Return the most GPUs of a type that one node can give now together with these CPUs and this memory."""
        return max((n.free_gpus(type) for n in self.nodes if n.fits(Gpus(), cpus, memory_mib)), default=0)

    def fits(self, request: Request) -> bool:
        """Return whether the request fits on one node now."""
        return any(n.fits(request.gpus, request.cpus, request.memory_mib) for n in self.nodes)

    def could_fit(self, request: Request) -> bool:
        """Return whether the request fits on one node that is empty."""
        gpus = request.gpus
        return any(
            n.cpus >= request.cpus
            and n.memory_mib >= request.memory_mib
            and (not gpus or n.gpus.get(gpus.type, 0) >= gpus.count)
            for n in self.nodes
        )


class Cluster:
    """A snapshot of nodes and jobs. All pages of that moment share it and its derived values.

    Args:
        seen: when the nodes were seen, UTC epoch seconds; 0 = never.
        silent_since: since when Slurm has not answered; 0 = it answers.
        queue: a request that does not fit now waits. A single machine without Slurm has no queue.
    """

    def __init__(
        self,
        nodes: Iterable[Node] = (),
        jobs: Iterable[Job] = (),
        *,
        seen: float = 0.0,
        silent_since: float = 0.0,
        queue: bool = True,
    ) -> None:
        self.nodes = tuple(nodes)
        self.jobs = tuple(jobs)
        self.seen = seen
        self.silent_since = silent_since
        self.queue = queue
        self._by_partition: dict[str, PartitionNodes] = {}
        self._ends: dict[str, Mapping[str, list[tuple[float, int]]]] = {}

    def only(self, node: str) -> Cluster:
        """Return the cluster reduced to one node, without the queue for others; "" = as it is."""
        if not node:
            return self
        jobs = [job for job in self.jobs if node in job.nodes]
        left = [each for each in self.nodes if each.name == node]
        return Cluster(left, jobs, seen=self.seen, silent_since=self.silent_since)

    def without(self, names: str) -> Cluster:
        """Return the cluster without these nodes, whose names are separated by commas; "" = as it is."""
        if not names:
            return self
        left = [node for node in self.nodes if node.name not in names.split(",")]
        return Cluster(left, self.jobs, seen=self.seen, silent_since=self.silent_since, queue=self.queue)

    @property
    def known(self) -> bool:
        """Whether Slurm has ever answered."""
        return bool(self.seen)

    def partition_nodes(self, partition: str) -> PartitionNodes:
        """Return the nodes of a partition (or of several, ``a,b``); "" = all nodes."""
        if partition not in self._by_partition:
            names = set(partition.split(","))
            nodes = [n for n in self.nodes if not partition or names & set(n.partitions)]
            self._by_partition[partition] = _index(nodes)
        return self._by_partition[partition]

    def waiting(self, request: Request) -> int:
        """Return how many jobs wait for the same GPU type in the same partition."""
        partitions = ("", *request.partition.split(","))
        return sum(
            count
            for (type, partition), count in self._queue_counts.items()
            if type == request.gpus.type and (not request.partition or partition in partitions)
        )

    def queued(self, type: str) -> int:
        """Return how many jobs wait for a GPU type, "" = for none, in any partition."""
        return sum(count for (each, _), count in self._queue_counts.items() if each == type)

    @cached_property
    def _queue_counts(self) -> Counter[tuple[str, str]]:
        """The number of waiting jobs by type and partition: a form needs it for each of its choices."""
        waiting = (job for job in self.jobs if job.phase is Phase.WAITING and job.reason in _IN_QUEUE)
        return Counter((job.gpus.type, job.partition) for job in waiting)

    @cached_property
    def booked(self) -> tuple[Job, ...]:
        """The jobs that request a reservation or run in one."""
        return tuple(job for job in self.jobs if job.reservation)

    def ends(self, type: str) -> Mapping[str, list[tuple[float, int]]]:
        """Return when running jobs end and how many GPUs of a type each frees, by node."""
        if type not in self._ends:
            found: dict[str, list[tuple[float, int]]] = {}
            for job in self._holding:
                if job.gpus.type == type and job.end and job.nodes:
                    for name in job.nodes:
                        found.setdefault(name, []).append((job.end, job.gpus.count // len(job.nodes)))
            self._ends[type] = found
        return self._ends[type]

    @cached_property
    def _holding(self) -> tuple[Job, ...]:
        return tuple(job for job in self.jobs if job.phase in (Phase.ACTIVE, Phase.ENDING))


def _index(nodes: list[Node]) -> PartitionNodes:
    gpus: dict[str, list[int]] = {}
    cpus = [0, 0, 0]
    for node in nodes:
        for type, count in node.gpus.items():
            row = gpus.setdefault(type, [0, 0, 0])
            row[0] += count
            row[1] += node.free_gpus(type)
            row[2] += 0 if node.usable else count
        cpus[0] += node.cpus
        cpus[1] += max(0, node.cpus - node.cpus_used) if node.usable else 0
        cpus[2] += 0 if node.usable else node.cpus
    return PartitionNodes(tuple(nodes), {t: TypeCount(*row) for t, row in gpus.items()}, TypeCount(*cpus))


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """When a request would start.

    Attributes:
        count: of the requested GPU type, or of CPUs without GPUs.
        fits: it fits on one node now. possible: it fits on one node at all.
        largest: the most GPUs of the type that would start now on one node.
        ahead: jobs that wait for the same. expected: UTC epoch seconds, 0 = unknown.
    """

    count: TypeCount
    fits: bool
    possible: bool
    largest: int
    ahead: int
    expected: float = 0.0

    @property
    def starts_now(self) -> bool:
        """Whether it fits and no job is ahead."""
        return self.fits and not self.ahead


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A smaller request that would start sooner: the user options to change, and a description."""

    options: Mapping[str, str | int] = field(default_factory=dict)
    what: str = ""


def estimate_start(cluster: Cluster, request: Request, now: float) -> StartEstimate:
    """Return when this request would start, as far as one snapshot can tell."""
    partition_nodes = cluster.partition_nodes(request.partition)
    gpus = request.gpus
    fits = partition_nodes.fits(request)
    return StartEstimate(
        count=partition_nodes.gpus.get(gpus.type, TypeCount()) if gpus else partition_nodes.cpus,
        fits=fits,
        possible=fits or partition_nodes.could_fit(request),
        largest=partition_nodes.largest(gpus.type, request.cpus, request.memory_mib) if gpus else 0,
        ahead=cluster.waiting(request),
        expected=now if fits else _expected_start(cluster, partition_nodes, request, now),
    )


def _expected_start(cluster: Cluster, partition_nodes: PartitionNodes, request: Request, now: float) -> float:
    """Return when one node will have enough free GPUs, 0 if unknown."""
    gpus = request.gpus
    if not gpus:
        return 0.0
    ends = cluster.ends(gpus.type)
    best = 0.0
    for node in partition_nodes.nodes:
        if not node.usable or node.gpus.get(gpus.type, 0) < gpus.count:
            continue
        free = node.free_gpus(gpus.type)
        for end, count in sorted((max(end, now), count) for end, count in ends.get(node.name, ())):
            free += count
            if free >= gpus.count:
                best = min(best or end, end)
                break
    return best


def sentence(
    cluster: Cluster,
    request: Request,
    seen: StartEstimate,
    clock: Callable[[float], str],
    *,
    virtual: bool = False,
) -> str:
    """Return the estimate as one sentence.

    Args:
        clock: formats UTC epoch seconds for people.
        virtual: the GPUs are virtual GPUs of the sandbox, and are labelled as such.
    """
    gpus = request.gpus
    what = f"virtual {gpus.type}" if gpus and virtual else gpus.type or "CPUs"
    if not cluster.known:
        return f"How many {what} are free is not known right now"
    count = seen.count
    if cluster.silent_since:
        return f"{count.free} of {count.total} {what} were free at {clock(cluster.seen)}"
    start = f"{count.free} of {count.total} {what} free"
    if not seen.fits and not cluster.queue:
        return f"{start}; {_without_queue(request, seen, what, clock)}"
    if not seen.possible:
        where = " of this partition" if request.partition else ""
        most = max((n.gpus.get(gpus.type, 0) for n in cluster.partition_nodes(request.partition).nodes), default=0)
        if gpus and most < gpus.count:
            return f"{start}; no node{where} has {gpus.count} of them, the most is {most}"
        return f"{start}; no node{where} is large enough for {_size(request)}"
    if seen.starts_now:
        return f"{start}; starts now"
    if seen.fits:
        return f"{start}; {_jobs(seen.ahead)} in line for {what}, so it may wait a little"
    if gpus and count.free >= gpus.count > seen.largest:
        enough = cluster.partition_nodes(request.partition).largest(gpus.type, 1, 1)
        if enough >= gpus.count:
            start += f", but without {_size(request)} beside them"
        else:
            start += f", at most {enough} on one node"
    elif not count.free and count.down:
        start += f", {count.down} on nodes that are down"
    line = f"; {_jobs(seen.ahead)} ahead of you" if seen.ahead else ""
    if seen.expected:
        return f"{start}{line}; expected start {'not before ' if seen.ahead else ''}{clock(seen.expected)}"
    return f"{start}{line}; it will wait in the queue"


def _without_queue(request: Request, seen: StartEstimate, what: str, clock: Callable[[float], str]) -> str:
    gpus = request.gpus
    if not seen.possible:
        return f"this machine is too small for {f'{gpus.count} × {what} with ' if gpus else ''}{_size(request)}"
    if gpus and seen.count.free >= gpus.count:
        return f"but not {_size(request)} beside them now"
    if seen.expected:
        return f"enough by {clock(seen.expected)} at the latest, by the time limits of others"
    return f"not enough for {_size(request)} now"


def _jobs(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"


def _size(request: Request) -> str:
    cpus = "1 CPU" if request.cpus == 1 else f"{request.cpus} CPUs"
    return f"{cpus} and {request.memory_mib // 1024} GiB"


def suggest_smaller(
    cluster: Cluster, profile: Profile, request: Request, *, virtual: bool = False
) -> Suggestion | None:
    """Return a smaller request from the same profile that fits on one node now, or None.

    The order: the same GPUs with fewer CPUs and less memory, fewer GPUs of the same type, another type.
    """
    if not cluster.known or cluster.silent_since:
        return None
    partition_nodes = cluster.partition_nodes(request.partition)
    if partition_nodes.fits(request):
        return None
    settled = set(profile.override).union(*(c.override for o in profile.options for c in o.choices))
    sizes = _sizes(profile, request, settled)
    types: list[str] = [request.gpus.type]
    if profile.gpus and request.gpus and "gpu_type" not in settled:
        types += [t for t in profile.gpus.types if t != request.gpus.type]
    for type in types:
        found = [(cpus, memory, partition_nodes.largest(type, cpus, memory) if type else 0) for cpus, memory in sizes]
        for count in _counts(profile, request, type, "gpus" in settled):
            for cpus, memory, largest in found:
                fits = (
                    largest >= count
                    if type
                    else partition_nodes.fits(Request(profile.slug, "", cpus=cpus, memory_mib=memory))
                )
                if fits:
                    return _suggestion(request, Gpus(type if count else "", count), cpus, memory, virtual)
    return None


def _sizes(profile: Profile, request: Request, settled: set[str]) -> list[tuple[int, int]]:
    """Return (CPUs, MiB) from the request down to the minimum, without duplicates."""
    asked = (request.cpus, request.memory_mib)
    cpus = asked[0] if "cpus" in settled else min(asked[0], profile.cpus.default)
    memory = asked[1] if "memory_gib" in settled else min(asked[1], 1024 * profile.memory_gib.default)
    least_cpus = asked[0] if "cpus" in settled else profile.cpus.min
    least_memory = asked[1] if "memory_gib" in settled else 1024 * profile.memory_gib.min
    return list(dict.fromkeys([asked, (cpus, memory), (least_cpus, least_memory)]))


def _counts(profile: Profile, request: Request, type: str, settled: bool) -> list[int]:
    if not type or profile.gpus is None:
        return [0]
    limit: Limit = profile.gpus.count
    most = min(request.gpus.count, profile.gpus.most(type))
    if settled:
        return [request.gpus.count] if most == request.gpus.count else []
    return [n for n in range(most, 0, -1) if limit.allows(n)]


def _suggestion(request: Request, gpus: Gpus, cpus: int, memory_mib: int, virtual: bool) -> Suggestion:
    options: dict[str, str | int] = {}
    if gpus.type != request.gpus.type:
        options["gpu_type"] = gpus.type
    if gpus.count != request.gpus.count:
        options["gpus"] = gpus.count
    words = [f"{gpus.count} × {'virtual ' if virtual else ''}{gpus.type}"] if gpus else []
    if cpus != request.cpus:
        options["cpus"] = cpus
        words.append("1 CPU" if cpus == 1 else f"{cpus} CPUs")
    if memory_mib != request.memory_mib:
        options["memory_gib"] = memory_mib // 1024
        words.append(f"{memory_mib // 1024} GiB of memory")
    return Suggestion(options, ", ".join(words))
