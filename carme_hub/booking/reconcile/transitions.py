"""State transitions of reservations: they begin, are used or not, and end; each with its change of the ledger.

The reconciler calls it in each pass. A transition and its change of the ledger are one transaction. If somebody changes
the reservation at the same time, their change wins, and the next pass checks again. A transition that fails does not
prevent the others.

A booking is released as a no-show only if it was observed without a gap for the whole time: Slurm had it, squeue
answered, and no job ran in it or waited for it. While Slurm's state is unknown nothing is released; after that, or
after the booking was missing in Slurm or had a problem, the time starts again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from carme_hub.booking.context import ACTOR, BookingSettlement
from carme_hub.domain.calendar.reservations import PROMISED, Kind, Reservation, State
from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job, Phase, Snapshot
from carme_hub.domain.quotas.windows import overlap
from carme_hub.errors import StoreError
from carme_hub.store.ledger.writes import LedgerWrites
from carme_hub.store.reservations import ConcurrentChange, ReservationStore, ReservationWrites

from .outages import OutageCredit, Outages

#: Reason to cancel a booking whose start passes without an approval.
NOT_APPROVED = "not approved in time"
#: Reason to release the hold of a booking that was never active.
NOT_KEPT = "it could not be kept"
#: Seconds after which the hold of an active booking is lowered again: time that has passed is not needed any more.
LOWER_INTERVAL = 300.0
#: Seconds between two snapshots within which no job can start and be forgotten: less than Slurm's MinJobAge.
MAX_SNAPSHOT_GAP = 120.0


class SlotLedger(BookingSettlement, Protocol):
    """The ledger as the reconciler uses it, in the transaction of the state."""

    def credit_outage(self, writes: LedgerWrites, reservation: Reservation, credit: OutageCredit, now: float) -> None:
        """Do not charge the time of an outage."""
        ...

    def lower_hold(
        self, writes: LedgerWrites, reservation: Reservation, now: float, inside: Collection[str], unmanaged: int
    ) -> None:
        """Lower the hold to what is still needed besides these open sessions and the use of other jobs.

        Args:
            unmanaged: GPU-seconds of jobs in it that belong to no session, as far as they were seen.
        """
        ...


#: Change of the ledger for a transition, in its transaction.
LedgerUpdate = Callable[[SlotLedger, ReservationWrites], None]


class Transitions:
    """Changes the states of the reservations of one cluster.

    Args:
        ledger: None if there is no ledger. no_show: seconds, 0 = never.
    """

    def __init__(
        self,
        store: ReservationStore,
        cluster: str,
        *,
        ledger: SlotLedger | None,
        no_show: int,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._ledger = ledger
        self._no_show = no_show
        self._log = log
        #: Since when each has been in Slurm without a problem, without a gap in the observations.
        self._kept: dict[str, float] = {}
        #: When the hold of each was last lowered, and the open sessions in it then.
        self._lowered_at: dict[str, tuple[float, frozenset[str]]] = {}
        #: The GPU-seconds of jobs in each that belong to no session, by job and start, also of those that squeue does
        #: not show any more. A restart of the service loses them; then their use is held until the end, too.
        self._unmanaged: dict[str, dict[tuple[int, float], int]] = {}
        self._outages = Outages()
        #: GPUs of the jobs in each.
        self._in_use: dict[str, int] = {}
        self._asked = float("-inf")

    # -- what Slurm has -----------------------------------------------------------------------------------------------

    def slurm_unknown(self) -> None:
        """Note that Slurm's state is unknown now."""
        self._kept.clear()

    def kept(self, known: Collection[Reservation], kept: Collection[str], anew: Collection[str], now: float) -> None:
        """Note the ids of the reservations that Slurm has now. ``anew``: those that it did not have before."""
        self._kept = {id: now if id in anew else self._kept.get(id, now) for id in kept}
        if self._ledger is not None:
            self._outages.note(known, kept, anew, self._in_use, now)

    # -- transitions --------------------------------------------------------------------------------------------------

    def by_time(self, known: Iterable[Reservation], now: float) -> list[Reservation]:
        """Change states whose time has come; return all reservations as they are now."""
        found = []
        for each in known:
            self._credit_outage(each, now)
            found.append(self._by_time(each, now))
        return found

    def by_use(self, known: Sequence[Reservation], jobs: Snapshot, now: float) -> list[Reservation]:
        """Note the use by jobs, and release no-shows; return all reservations as they are now.

        A snapshot that was processed before is skipped.
        """
        if jobs.asked <= self._asked:
            return list(known)
        if jobs.asked - self._asked > MAX_SNAPSHOT_GAP:
            self._kept.clear()
        self._asked = jobs.asked
        named = jobs_by_reservation(jobs.jobs.values())
        promised = {each.id for each in known if each.state in PROMISED}
        self._lowered_at = {id: last for id, last in self._lowered_at.items() if id in promised}
        self._unmanaged = {id: used for id, used in self._unmanaged.items() if id in promised}
        self._in_use = {}
        return [self._by_use(each, jobs_inside(each, named), now) if each.id in promised else each for each in known]

    def _by_time(self, reservation: Reservation, now: float) -> Reservation:
        started = reservation.period.start <= now
        if reservation.state in PROMISED and reservation.period.end <= now:
            return self._ended(reservation, now)
        if reservation.state is State.CONFIRMED and started:
            return self._save(reservation, reservation.in_state(State.ACTIVE, now, actor=ACTOR))
        if reservation.state is State.PENDING and started:
            late = reservation.in_state(State.CANCELLED, now, actor=ACTOR, reason=NOT_APPROVED)
            return self._save(
                reservation, late, lambda ledger, writes: ledger.release_hold(writes.ledger, late, NOT_APPROVED, ACTOR)
            )
        return reservation

    def _by_use(self, reservation: Reservation, jobs: Sequence[Job], now: float) -> Reservation:
        if reservation.kind is not Kind.BOOKING:
            return reservation
        if self._is_no_show(reservation, jobs, now):
            reason = f"unused for {_length(self._no_show)}"
            return self._close(reservation, reservation.in_state(State.RELEASED, now, actor=ACTOR, reason=reason), now)
        if not reservation.used and any(_has_run(job) for job in jobs):
            reservation = self._save(reservation, reservation.replace(used=now, version=reservation.version + 1))
        if reservation.problem and reservation.id in self._kept:
            self._kept[reservation.id] = now  # the time of a no-show starts once the booking has no problem
        self._in_use[reservation.id] = sum(job.gpus.whole for job in jobs if job.phase in (Phase.ACTIVE, Phase.ENDING))
        unmanaged = self._unmanaged.setdefault(reservation.id, {})
        unmanaged |= {(job.id, job.start): _gpu_seconds(job, reservation, now) for job in jobs if _is_unmanaged(job)}
        self._lower_hold(reservation, _sessions(jobs), sum(unmanaged.values()), now)
        return reservation

    def _is_no_show(self, reservation: Reservation, jobs: Sequence[Job], now: float) -> bool:
        """Return whether no job came in the whole time, and nothing prevented one."""
        if not self._no_show or reservation.state is not State.ACTIVE or reservation.used or reservation.problem:
            return False
        since = self._kept.get(reservation.id)
        nobody = all(job.phase is Phase.TERMINAL and not _has_run(job) for job in jobs)
        return nobody and since is not None and now >= max(reservation.period.start, since) + self._no_show

    def _lower_hold(self, reservation: Reservation, inside: frozenset[str], unmanaged: int, now: float) -> None:
        """Lower the hold if the open sessions in it are not those of the last pass.

        After a restart of the service those are unknown, so the hold of every active booking is lowered.
        """
        active = reservation.state is State.ACTIVE
        at, before = self._lowered_at.get(reservation.id, (float("-inf"), frozenset[str]()))
        if inside == before and not (active and now - at >= LOWER_INTERVAL):
            return

        def lower_hold(ledger: SlotLedger, writes: ReservationWrites) -> None:
            there = writes.get(reservation.id)
            if there is None or there.version != reservation.version:
                raise ConcurrentChange("The reservation was changed meanwhile.")
            ledger.lower_hold(writes.ledger, reservation, now, inside, unmanaged)

        if self._written(reservation, None, lower_hold):
            self._lowered_at[reservation.id] = (now, inside)

    def _credit_outage(self, reservation: Reservation, now: float) -> None:
        """Write the outages of a booking from time to time, and before it ends."""
        final = reservation.state in (State.ENDED, State.CANCELLED, State.RELEASED)
        if self._ledger is None or reservation.kind is not Kind.BOOKING or not (final or reservation.state in PROMISED):
            return
        self._outages.expect(reservation, now)
        over = final or reservation.period.end <= now
        if over:
            self._outages.end(reservation, self._in_use.get(reservation.id, 0))
        credit = self._outages.due_credit(reservation.id, now, all=over)
        if credit:
            if not self._written(
                reservation, None, lambda ledger, writes: ledger.credit_outage(writes.ledger, reservation, credit, now)
            ):
                return
            self._outages.written(reservation.id, credit, now)
        if over:
            self._outages.forget(reservation.id)

    def _ended(self, old: Reservation, now: float) -> Reservation:
        new = old.in_state(State.ENDED, now, actor=ACTOR)
        if old.state is State.ACTIVE or old.used:
            return self._close(old, new, now)
        # The service did not run in all its time, so it is not known whether Slurm had it: only jobs are charged.
        return self._save(old, new, lambda ledger, writes: ledger.release_hold(writes.ledger, new, NOT_KEPT, ACTOR))

    def _close(self, old: Reservation, new: Reservation, now: float) -> Reservation:
        return self._save(old, new, lambda ledger, writes: ledger.settle(writes.ledger, new, now))

    def _save(self, old: Reservation, new: Reservation, update: LedgerUpdate | None = None) -> Reservation:
        return new if self._written(old, new, update) else old

    def _written(self, old: Reservation, new: Reservation | None, update: LedgerUpdate | None) -> bool:
        """Write a transition with its change of the ledger, None = only that; return whether it was written."""
        try:
            with self._store.transaction(self._cluster) as writes:
                if new is not None:
                    writes.save(new)
                if update is not None and self._ledger is not None and old.kind is Kind.BOOKING:
                    update(self._ledger, writes)
        except ConcurrentChange:
            return False  # another change was faster; the next pass sees its result
        except StoreError:
            raise
        except Exception:  # noqa: BLE001
            # Any error: the other reservations are due, too, and this one is tried again in the next pass.
            self._log.exception("Reservation %s of %s could not be updated", old.id, old.owner)
            return False
        return True


def jobs_by_reservation(jobs: Iterable[Job]) -> Mapping[str, Sequence[Job]]:
    """Return jobs by the names of the reservations in which they may run."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        for name in job.reservations:
            found.setdefault(name, []).append(job)
    return found


def jobs_inside(reservation: Reservation, named: Mapping[str, Sequence[Job]]) -> tuple[Job, ...]:
    """Return the jobs that run in a reservation, wait for it or were in it.

    A started job that names several is in the one with its nodes: Slurm still shows all names. A reservation that is
    kept by licenses has no nodes.
    """
    there = {job.id: job for name in reservation.names() for job in named.get(name, ())}
    ours = set(reservation.names())
    anywhere = bool(reservation.license)
    return tuple(
        job
        for job in there.values()
        if anywhere or not job.nodes or ours.issuperset(job.reservations) or not reservation.nodes.isdisjoint(job.nodes)
    )


def _has_run(job: Job) -> bool:
    """Return whether a job has had nodes; one that was cancelled while pending has not."""
    if job.phase is Phase.TERMINAL:
        return bool(job.nodes) and job.end > job.start > 0
    return job.phase in (Phase.ACTIVE, Phase.ENDING)


def _is_unmanaged(job: Job) -> bool:
    return _has_run(job) and not job.name.startswith(JOB_NAME_PREFIX)


def _gpu_seconds(job: Job, reservation: Reservation, now: float) -> int:
    """Return the GPU-seconds of a job in a reservation's time up to now."""
    period = reservation.period
    return job.gpus.whole * int(overlap(job.start, min(job.end or now, now), (period.start, period.end)))


def _sessions(jobs: Iterable[Job]) -> frozenset[str]:
    """Return the ids of the sessions among jobs that have not ended."""
    names = (job.name for job in jobs if job.phase is not Phase.TERMINAL)
    return frozenset(name.removeprefix(JOB_NAME_PREFIX) for name in names if name.startswith(JOB_NAME_PREFIX))


def _length(seconds: int) -> str:
    return f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"
