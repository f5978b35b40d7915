"""What cannot be kept is moved to where it can be; where that is nowhere its owner is told, until it can be kept again.

A reason counts once it has lasted from one pass to the next: nodes flap. So does that there is none any more. A place
is looked for and taken in one transaction, so that nobody else books it meanwhile. What has begun is moved only while
no job runs in it. What was tried in vain is not tried again for an hour, so that nothing goes to and fro.
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
from .violations import ObservedSlurm, ViolationCheck, ViolationReason, moved, problem

#: Seconds for which nodes on which a reservation could not be kept are not tried again for it.
IN_VAIN = 3600.0


class Rebooking:
    """Mends the promises of one cluster.

    Args:
        supply: None where no places elsewhere are sought. lasting: seconds from which a reason counts.
    """

    def __init__(
        self, store: ReservationStore, cluster: str, *, supply: Callable[[], Supply] | None, lasting: float
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._supply = supply
        self._lasting = lasting
        #: Since when each is broken, by node ("" = wherever it is), and since when those with a problem are not.
        self._broken: dict[tuple[str, str], float] = {}
        self._well: dict[str, float] = {}
        self._in_vain: dict[tuple[str, str], float] = {}

    def mend(self, known: Sequence[Reservation], seen: ObservedSlurm, now: float) -> list[Reservation]:
        """Look at all promises; return all reservations as they are now."""
        promises = ViolationCheck(known, seen)
        broken = promises.broken()
        self._note(known, broken, now)
        named = jobs_by_reservation(seen.jobs)
        found = []
        for each in known:
            why = broken.get(each.id)
            if why is not None and self._lasts(each, why, now):
                inside = [job.phase for job in jobs_inside(each, named)]
                found.append(self._mended(each, why, promises, inside, now))
            elif why is None and now - self._well.get(each.id, now) >= self._lasting:
                found.append(self._written(each, each.replace(problem=""), now))
            else:
                found.append(each)
        return found

    def _note(self, known: Sequence[Reservation], broken: Mapping[str, ViolationReason], now: float) -> None:
        reasons = [(id, node) for id, why in broken.items() for node in (why.nodes or ("",))]
        self._broken = {reason: self._broken.get(reason, now) for reason in reasons}
        well = (each.id for each in known if each.problem and each.state in PROMISED and each.id not in broken)
        self._well = {id: self._well.get(id, now) for id in well}
        self._in_vain = {key: at for key, at in self._in_vain.items() if now - at < IN_VAIN}

    def _lasts(self, reservation: Reservation, why: ViolationReason, now: float) -> bool:
        return any(now - self._broken[reservation.id, node] >= self._lasting for node in why.nodes or ("",))

    def _mended(
        self,
        reservation: Reservation,
        why: ViolationReason,
        promises: ViolationCheck,
        inside: Collection[Phase],
        now: float,
    ) -> Reservation:
        self._in_vain |= {(reservation.id, node): now for node in why.nodes}
        in_use = not why.places and not {Phase.ACTIVE, Phase.ENDING, Phase.UNKNOWN}.isdisjoint(inside)

        def places(reads: ReservationReads) -> tuple[Place, ...] | None:
            if in_use or not why.nodes or self._supply is None:
                return None
            without = {node for id, node in self._in_vain if id == reservation.id}
            booked = reads.occupied(reservation.period, {reservation.id})
            return promises.elsewhere(reservation, self._supply(), booked, without)

        with self._store.reading(self._cluster) as reads:
            there = places(reads) is not None
        if not there and why.places:
            return self._written(reservation, reservation.replace(problem=""), now)
        if not there:
            return self._written(reservation, _with_problem(reservation, why, now, in_use=in_use), now)
        try:
            with self._store.transaction(self._cluster) as writes:
                if (new := places(writes)) is None:
                    return reservation  # somebody was faster; the next pass looks again
                reason = moved(reservation, new, why, waited=Phase.WAITING in inside and not why.places)
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


def _with_problem(reservation: Reservation, why: ViolationReason, now: float, *, in_use: bool) -> Reservation:
    return reservation.replace(problem=problem(reservation, why, int(now), in_use=in_use))
