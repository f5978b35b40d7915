"""Find bookings and maintenance that keep a session from starting now. Pure.

Slurm starts no job on GPUs that a reservation takes before the job's time limit: the job waits until after the
reservation, although the GPUs are free now. Running jobs keep their GPUs until their time limits; jobs inside a booking
use GPUs that the booking occupies already. The start form and companions call ``ReservationTimetable.conflict``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.session import Request

from .bookable_nodes import occupied_by
from .capacity import Capacity, GpuInventory, Need, OccupiedGpus, Place
from .license_availability import LicenseCount
from .periods import Period
from .reservations import PROMISED, Kind, Reservation, State
from .slots import GRACE_SECONDS, runs_inside
from .slurm_reservations import SlurmReservation

#: Seconds that a job without a known end is assumed to run.
_UNLIMITED = 365 * 86_400


@dataclass(frozen=True, slots=True)
class ReservationConflict:
    """What conflicts with a session.

    Attributes:
        longest: the longest time limit in minutes with which it could start now; 0 = none.
        at: when the GPUs that are free now are taken. all_booked: all GPUs of the type are booked then.
        causes: the reservations that begin then, or have begun, the largest first.
        expected: when the session could start in full, by what is known now; 0 = unknown.
    """

    longest: int
    at: float
    all_booked: bool
    causes: tuple[Reservation, ...]
    expected: float


class ReservationTimetable:
    """Running jobs and reservations at one moment, indexed once: all pages of that moment share it.

    Args:
        known: reservations; only those in ``PROMISED`` states count. now: UTC epoch seconds.
        by_hand: Slurm's reservations that are not ours.
    """

    def __init__(
        self,
        cluster: Cluster,
        known: Iterable[Reservation],
        now: float,
        by_hand: Iterable[SlurmReservation] = (),
    ) -> None:
        self._cluster = cluster
        self._now = int(now)
        others = [*by_hand]
        there = (*known, *as_reservations(others, cluster.nodes))
        promised = [each for each in there if each.state in PROMISED and each.period.end > self._now]
        self._on_nodes = [each for each in promised if not each.license]
        #: Bookings by licences are on no nodes, and their jobs count only on the nodes they run on.
        self._by_license = [each for each in promised if each.license]
        self._names = {name for each in self._on_nodes for name in each.names()} | {each.name for each in others}
        self._answers: dict[tuple[object, ...], ReservationConflict | None] = {}

    def conflict(self, request: Request) -> ReservationConflict | None:
        """Return the conflict of a session that would start now, None if there is none."""
        asked = (request.partition, request.gpus, request.cpus, request.memory_mib, request.time_limit)
        if asked not in self._answers:
            by_nodes = self._node_conflict(request) if self._on_nodes else None
            self._answers[asked] = self._license_conflict(request) or by_nodes
        return self._answers[asked]

    def extension_conflict(self, job: Job, end: float) -> Reservation | None:
        """Return the reservation that conflicts with a later end of a job outside of all bookings, None without one."""
        after = int(job.start + 60 * job.time_limit)
        if not job.gpus or end <= after:
            return None
        type, period = job.gpus.type, Period(after, int(end))
        count = self._license_count(type)
        for each in sorted(self._by_license, key=lambda each: each.period.start):
            begin = max(each.period.start, after)
            if each.need.type == type and each.period.overlaps(period) and count.left_at(begin) < job.gpus.count:
                return each
        there = [each for each in self._on_nodes if each.period.overlaps(period)]
        others = self._jobs(other for other in self._cluster.jobs if other.id != job.id)
        capacity = Capacity(self._inventory(), (*others, *self._booked))
        for node in job.nodes:
            mine = [each for each in there if any(place.node == node for place in each.places)]
            if mine and capacity.free_on(node, type, period) < job.gpus.count // len(job.nodes):
                return min(mine, key=lambda each: each.period.start)
        return None

    def _node_conflict(self, request: Request) -> ReservationConflict | None:
        nodes, now = self._cluster.partition_nodes(request.partition).nodes, self._now
        type, count, length = request.gpus.type, request.gpus.count or 1, 60 * request.time_limit
        free = [node.name for node in nodes if node.fits(request.gpus, request.cpus, request.memory_mib)]
        if any(self._can_stay(name, type, count, now + length) for name in free):
            return None
        possible = [node.name for node in nodes if _could_fit(node, request)]
        expected = self._first_start(self._with_all, possible, type, count, length)
        if not free and expected == self._first_start(self._without_bookings, possible, type, count, length):
            return None  # running jobs block the session, and no booking makes it wait longer
        at = max((self._free_until(name, type, count, now + length) for name in free), default=now)
        names = {node.name for node in nodes}
        there = [each for each in self._on_nodes if any(place.node in names for place in each.places)]
        usable = [node.name for node in nodes if node.usable]
        return ReservationConflict(
            longest=max(0, (at - now - GRACE_SECONDS) // 60),
            at=at,
            all_booked=bool(type)
            and not any(self._bookings_only.free_on(name, type, Period(at, at + 1)) for name in usable),
            causes=_causes(there, type, at),
            expected=expected,
        )

    def _license_conflict(self, request: Request) -> ReservationConflict | None:
        """Return the conflict by the count of licences, None if there is none."""
        type, wanted, now, length = request.gpus.type, request.gpus.count, self._now, 60 * request.time_limit
        mine = [each for each in self._by_license if each.need.type == type]
        count = self._license_count(type)
        if not wanted or not mine or (at := count.first_shortage(wanted, now, length)) is None:
            return None
        expected = count.first_start(wanted, now, length)
        if at == now and expected == count.without_bookings().first_start(wanted, now, length):
            return None  # running jobs block the session, and no booking makes it wait longer
        return ReservationConflict(
            longest=max(0, (at - now - GRACE_SECONDS) // 60),
            at=at,
            all_booked=count.booked_at(at) >= count.total,
            causes=_causes(mine, type, at),
            expected=float(expected or 0),
        )

    def _license_count(self, type: str) -> LicenseCount:
        """Return the licences of a type: one for each GPU; jobs outside of bookings hold their own."""
        inside = {name for each in self._by_license for name in each.names()}
        jobs = (
            job for job in self._cluster.jobs if job.gpus.type == type and job.phase in (Phase.ACTIVE, Phase.ENDING)
        )
        return LicenseCount(
            sum(node.gpus.get(type, 0) for node in self._cluster.nodes),
            [
                (max(int(job.end) or self._now + _UNLIMITED, self._now + 1), job.gpus.count)
                for job in jobs
                if not runs_inside(job, inside)
            ],
            [(each.period, each.own_type_gpus) for each in self._by_license if each.need.type == type],
        )

    def _can_stay(self, node: str, type: str, count: int, end: int) -> bool:
        """Return whether a job that fits on a node now can stay there until an end."""
        return node not in self._booking_edges or self._with_all.free_on(node, type, Period(self._now, end)) >= count

    def _free_until(self, node: str, type: str, count: int, end: int) -> int:
        """Return the latest start of a booking before ``end`` until which a job that starts now can stay."""
        starts = sorted((start for start, _ in self._booking_edges[node] if self._now < start < end), reverse=True)
        return next((at for at in starts if self._can_stay(node, type, count, at)), self._now)

    def _first_start(self, capacity: Capacity, nodes: Iterable[str], type: str, count: int, length: int) -> float:
        """Return the first start, now or at an end, from which one node has room for ``length``; 0 = unknown."""
        now, never = self._now, self._now + _UNLIMITED // 2
        best = never
        for node in nodes:
            ends = sorted({now, *self._job_ends.get(node, ()), *(end for _, end in self._booking_edges.get(node, ()))})
            soon = (at for at in ends if at < best)
            best = next((at for at in soon if capacity.free_on(node, type, Period(at, at + length)) >= count), best)
            if best == now:
                break
        return float(best) if best < never else 0.0

    # -- the index ----------------------------------------------------------------------------------------------------

    def _inventory(self) -> Iterator[GpuInventory]:
        """Yield the GPUs of all nodes, and one GPU of type "" per node, which a booking of the whole node occupies."""
        for node in self._cluster.nodes:
            yield GpuInventory(node.name, "", 1)
            yield from (GpuInventory(node.name, type, count) for type, count in node.gpus.items())

    def _jobs(self, jobs: Iterable[Job]) -> list[OccupiedGpus]:
        """Return what jobs outside of all bookings occupy until their time limits."""
        now, names = self._now, self._names
        return [
            OccupiedGpus(Period(now, max(int(job.end) or now + _UNLIMITED, now + 1)), node, job.gpus.type, count)
            for job in jobs
            if job.nodes and (count := job.gpus.count // len(job.nodes))
            if job.phase in (Phase.ACTIVE, Phase.ENDING) and not runs_inside(job, names)
            for node in job.nodes
        ]

    @cached_property
    def _running(self) -> list[OccupiedGpus]:
        return self._jobs(self._cluster.jobs)

    @cached_property
    def _booked(self) -> list[OccupiedGpus]:
        return [occupied for each in self._on_nodes for occupied in each.occupied()]

    @cached_property
    def _with_all(self) -> Capacity:
        return Capacity(self._inventory(), (*self._running, *self._booked))

    @cached_property
    def _without_bookings(self) -> Capacity:
        return Capacity(self._inventory(), self._running)

    @cached_property
    def _bookings_only(self) -> Capacity:
        return Capacity(self._inventory(), self._booked)

    @cached_property
    def _booking_edges(self) -> dict[str, list[tuple[int, int]]]:
        """Start and end of each booking, by node."""
        found: dict[str, list[tuple[int, int]]] = {}
        for each in self._booked:
            found.setdefault(each.node, []).append((each.period.start, each.period.end))
        return found

    @cached_property
    def _job_ends(self) -> dict[str, list[int]]:
        """The ends of running jobs, by node."""
        found: dict[str, list[int]] = {}
        for each in self._running:
            found.setdefault(each.node, []).append(each.period.end)
        return found


def as_reservations(by_hand: Iterable[SlurmReservation], nodes: Iterable[Node]) -> tuple[Reservation, ...]:
    """Return manual reservations of Slurm as reservations without an owner, with what each occupies on its nodes.

    Reservations without GPUs are left out. The title of a maintenance window is its name in Slurm; others have none.
    """
    there = {node.name: node for node in nodes}
    found = []
    for each in by_hand:
        places = tuple(
            _place(occupied, there[occupied.node]) for occupied in occupied_by(each, there) if there[occupied.node].gpus
        )
        if places:
            kind = Kind.MAINTENANCE if each.maintenance else Kind.BOOKING
            title = each.name if each.maintenance else ""
            whose = (each.name, "", "", "", title, Need(places[0].type, 0, len(places)), each.period, places)
            found.append(Reservation(*whose, state=State.CONFIRMED, created=0.0, kind=kind))
    return tuple(found)


def _place(occupied: OccupiedGpus, node: Node) -> Place:
    if occupied.count:
        return Place(occupied.node, occupied.type, occupied.count, 1)
    return Place(occupied.node, next(iter(node.gpus)), sum(node.gpus.values()), 1, whole=True)


def _could_fit(node: Node, request: Request) -> bool:
    """Return whether a usable node could take the request while it is empty."""
    gpus = request.gpus
    enough = node.cpus >= request.cpus and node.memory_mib >= request.memory_mib
    return node.usable and enough and (not gpus or node.gpus.get(gpus.type, 0) >= gpus.count)


def _causes(known: Iterable[Reservation], type: str, at: int) -> tuple[Reservation, ...]:
    """Return the reservations that take these GPUs at a moment: those that begin then, else those that have begun."""
    there = [each for each in known if each.period.start <= at < each.period.end and _takes(each, type)]
    beginning = [each for each in there if each.period.start == at]
    return tuple(sorted(beginning or there, key=lambda each: (each.kind is Kind.BOOKING, -each.gpus, each.id)))


def _takes(reservation: Reservation, type: str) -> bool:
    return any(place.whole or place.type == type for place in reservation.places)
