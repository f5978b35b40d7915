"""Rebooking: reservations that cannot be kept get other places, or a problem of which their owner is notified.

The reconciler calls it in each pass. A violation, and its end, count once they have lasted from one pass to the next,
because nodes flap. Places are found and reserved in one transaction, so that nobody else books them in between. A
reservation that has begun is moved only while no job runs in it. Nodes that failed for a reservation are not tried
again for an hour, so that it does not move back and forth.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from carme_hub.booking.calendar import Supply
from carme_hub.booking.context import ACTOR
from carme_hub.domain.calendar.capacity import Place
from carme_hub.domain.calendar.reservations import PROMISED, Reservation
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.store.reservations import ConcurrentChange, ReservationReads, ReservationStore

from .transitions import jobs_by_reservation, jobs_inside
from .violations import ObservedSlurm, Violation, ViolationCheck, moved, problem

#: Seconds before a node on which a reservation could not be kept is tried again for it.
RETRY_AFTER = 3600.0


class Rebooking:
    """Rebooks the reservations of one cluster.

    Args:
        supply: the GPUs that can be booked; None = search no other places.
        min_duration: seconds for which a violation must last before it counts.
    """

    def __init__(
        self, store: ReservationStore, cluster: str, *, supply: Callable[[], Supply] | None, min_duration: float
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._supply = supply
        self._min_duration = min_duration
        #: Start of each violation by reservation and node ("" = on any node), and since when those with a problem
        #: have none.
        self._broken_since: dict[tuple[str, str], float] = {}
        self._kept_since: dict[str, float] = {}
        self._tried: dict[tuple[str, str], float] = {}

    def rebook(self, known: Sequence[Reservation], seen: ObservedSlurm, now: float) -> list[Reservation]:
        """Check all reservations; return them as they are now."""
        check = ViolationCheck(known, seen)
        broken = check.broken()
        self._note(known, broken, now)
        named = jobs_by_reservation(seen.jobs)
        found = []
        for each in known:
            violation = broken.get(each.id)
            if violation is not None and self._has_lasted(each, violation, now):
                inside = [job.phase for job in jobs_inside(each, named)]
                found.append(self._rebooked(each, violation, check, inside, now))
            elif violation is None and now - self._kept_since.get(each.id, now) >= self._min_duration:
                found.append(self._written(each, each.replace(problem=""), now))
            else:
                found.append(each)
        return found

    def _note(self, known: Sequence[Reservation], broken: Mapping[str, Violation], now: float) -> None:
        reasons = [(id, node) for id, violation in broken.items() for node in (violation.nodes or ("",))]
        self._broken_since = {reason: self._broken_since.get(reason, now) for reason in reasons}
        well = (each.id for each in known if each.problem and each.state in PROMISED and each.id not in broken)
        self._kept_since = {id: self._kept_since.get(id, now) for id in well}
        self._tried = {key: at for key, at in self._tried.items() if now - at < RETRY_AFTER}

    def _has_lasted(self, reservation: Reservation, violation: Violation, now: float) -> bool:
        return any(
            now - self._broken_since[reservation.id, node] >= self._min_duration for node in violation.nodes or ("",)
        )

    def _rebooked(
        self,
        reservation: Reservation,
        violation: Violation,
        check: ViolationCheck,
        inside: Collection[Phase],
        now: float,
    ) -> Reservation:
        self._tried |= {(reservation.id, node): now for node in violation.nodes}
        in_use = not violation.places and not {Phase.ACTIVE, Phase.ENDING, Phase.UNKNOWN}.isdisjoint(inside)

        def places(reads: ReservationReads) -> tuple[Place, ...] | None:
            if in_use or not violation.nodes or self._supply is None:
                return None
            without = {node for id, node in self._tried if id == reservation.id}
            booked = reads.occupied(reservation.period, {reservation.id})
            return check.elsewhere(reservation, self._supply(), booked, without)

        with self._store.reading(self._cluster) as reads:
            there = places(reads) is not None
        if not there and violation.places:
            return self._written(reservation, reservation.replace(problem=""), now)
        if not there:
            return self._written(reservation, _with_problem(reservation, violation, now, in_use=in_use), now)
        try:
            with self._store.transaction(self._cluster) as writes:
                if (new := places(writes)) is None:
                    return reservation  # another change was faster; the next pass checks again
                reason = moved(reservation, new, violation, waited=Phase.WAITING in inside and not violation.places)
                changed = reservation.replace(places=new, problem="", reason=reason, actor=ACTOR)
                changed = changed.replace(changed=now, version=reservation.version + 1)
                writes.save(changed)
        except ConcurrentChange:
            return reservation
        return changed

    def _written(self, old: Reservation, new: Reservation, now: float) -> Reservation:
        if new.problem == old.problem:
            return old
        new = new.replace(changed=now, version=old.version + 1)
        try:
            with self._store.transaction(self._cluster) as writes:
                writes.save(new)
        except ConcurrentChange:
            return old
        return new


def _with_problem(reservation: Reservation, violation: Violation, now: float, *, in_use: bool) -> Reservation:
    return reservation.replace(problem=problem(reservation, violation, int(now), in_use=in_use))
