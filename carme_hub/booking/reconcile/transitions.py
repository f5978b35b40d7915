"""What time and people do to reservations: they begin, are used or are not, and are over; each turn with its money.

A turn and what it does to the money are one transaction. Somebody who changes the same reservation meanwhile is faster,
and the next pass looks again. One turn that fails does not keep the others from theirs.

That a booking is unused is only said of one that was watched, without a gap, for as long as that takes: Slurm had it,
squeue was seen, and nobody's job ran in it or waited for it. While Slurm is not known nothing is released, and after it
was not known, or the booking was not in Slurm or had a problem, the time counts anew.
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

#: Why what nobody has approved is cancelled when its time comes.
NOT_APPROVED = "not approved in time"
#: Why what was never active in its time is not charged.
NOT_KEPT = "it could not be kept"
#: Seconds after which the money of what is active is made level again: time that has passed is not needed any more.
LOWER_INTERVAL = 300.0
#: Seconds between two looks at the queue in which no job can come and be forgotten: less than Slurm's MinJobAge.
MAX_SNAPSHOT_GAP = 120.0


class SlotLedger(BookingSettlement, Protocol):
    """What the keeper asks of the money of reservations, in the transaction of their state."""

    def credit_outage(self, writes: LedgerWrites, reservation: Reservation, owed: OutageCredit, now: float) -> None:
        """Do not charge the time in which it was not to be had."""
        ...

    def lower_hold(
        self, writes: LedgerWrites, reservation: Reservation, now: float, inside: Collection[str], unmanaged: int
    ) -> None:
        """Hold what is left of it beside what these open sessions in it hold, and other jobs in it have used.

        Args:
            by_hand: GPU-seconds of jobs in it that are of no session, as far as they were seen.
        """
        ...


#: What is done to the money of a turn, in its transaction.
LedgerUpdate = Callable[[SlotLedger, ReservationWrites], None]


class Transitions:
    """Turns the reservations of one cluster.

    Args:
        money: None where nothing is held. no_show: seconds, 0 = never.
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
        #: Since when each was in Slurm and had no problem, without a gap in what is known.
        self._kept: dict[str, float] = {}
        #: When the money of each was last made level, and the open sessions in it then.
        self._lowered_at: dict[str, tuple[float, frozenset[str]]] = {}
        #: The GPU-seconds of jobs in each that are of no session, by job and start; also of what squeue has forgotten.
        #: A start of the service forgets it, and what they used is held until the end as well.
        self._unmanaged: dict[str, dict[tuple[int, float], int]] = {}
        self._lapses = Outages()
        #: How many GPUs the jobs in each have.
        self._in_use: dict[str, int] = {}
        self._asked = float("-inf")

    # -- what Slurm is known to have ----------------------------------------------------------------------------------

    def lost(self) -> None:
        """Note that Slurm is not known now."""
        self._kept.clear()

    def kept(self, known: Collection[Reservation], kept: Collection[str], anew: Collection[str], now: float) -> None:
        """Note the ids of the reservations that Slurm has now. ``anew``: of which it did not have before."""
        self._kept = {id: now if id in anew else self._kept.get(id, now) for id in kept}
        if self._ledger is not None:
            self._lapses.note(known, kept, anew, self._in_use, now)

    # -- turns --------------------------------------------------------------------------------------------------------

    def by_time(self, known: Iterable[Reservation], now: float) -> list[Reservation]:
        """Give each the state that its time has brought; return all as they are now."""
        found = []
        for each in known:
            self._note_lapse(each, now)
            found.append(self._timed(each, now))
        return found

    def by_use(self, known: Sequence[Reservation], jobs: Snapshot, now: float) -> list[Reservation]:
        """Note who is there, and give back what nobody uses; return all as they are now.

        An answer of squeue that was looked at before says nothing new.
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
        return [self._used(each, jobs_inside(each, named), now) if each.id in promised else each for each in known]

    def _timed(self, reservation: Reservation, now: float) -> Reservation:
        started = reservation.period.start <= now
        if reservation.state in PROMISED and reservation.period.end <= now:
            return self._ended(reservation, now)
        if reservation.state is State.CONFIRMED and started:
            return self._turned(reservation, reservation.in_state(State.ACTIVE, now, actor=ACTOR))
        if reservation.state is State.PENDING and started:
            late = reservation.in_state(State.CANCELLED, now, actor=ACTOR, reason=NOT_APPROVED)
            return self._turned(
                reservation, late, lambda ledger, writes: ledger.release_hold(writes.ledger, late, NOT_APPROVED, ACTOR)
            )
        return reservation

    def _used(self, reservation: Reservation, jobs: Sequence[Job], now: float) -> Reservation:
        if reservation.kind is not Kind.BOOKING:
            return reservation
        if self._is_missed(reservation, jobs, now):
            reason = f"unused for {_length(self._no_show)}"
            return self._close(reservation, reservation.in_state(State.RELEASED, now, actor=ACTOR, reason=reason), now)
        if not reservation.used and any(_has_run(job) for job in jobs):
            reservation = self._turned(reservation, reservation.replace(used=now, version=reservation.version + 1))
        if reservation.problem and reservation.id in self._kept:
            self._kept[reservation.id] = now  # who could not come is missed only once they can
        self._in_use[reservation.id] = sum(job.gpus.whole for job in jobs if job.phase in (Phase.ACTIVE, Phase.ENDING))
        unmanaged = self._unmanaged.setdefault(reservation.id, {})
        unmanaged |= {(job.id, job.start): _gpu_seconds(job, reservation, now) for job in jobs if _is_unmanaged(job)}
        self._lower_hold(reservation, _sessions(jobs), sum(unmanaged.values()), now)
        return reservation

    def _is_missed(self, reservation: Reservation, jobs: Sequence[Job], now: float) -> bool:
        """Return whether nobody came: not in all that time, and nothing kept them from it."""
        if not self._no_show or reservation.state is not State.ACTIVE or reservation.used or reservation.problem:
            return False
        since = self._kept.get(reservation.id)
        nobody = all(job.phase is Phase.TERMINAL and not _has_run(job) for job in jobs)
        return nobody and since is not None and now >= max(reservation.period.start, since) + self._no_show

    def _lower_hold(self, reservation: Reservation, inside: frozenset[str], unmanaged: int, now: float) -> None:
        """Make the hold level with the open sessions inside, where those are not the ones of the last look.

        After a start of the service nobody knows which those were, so what is active is made level then.
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

    def _note_lapse(self, reservation: Reservation, now: float) -> None:
        """Write now and then, and before it is over, for how long one was not to be had."""
        final = reservation.state in (State.ENDED, State.CANCELLED, State.RELEASED)
        if self._ledger is None or reservation.kind is not Kind.BOOKING or not (final or reservation.state in PROMISED):
            return
        self._lapses.expect(reservation, now)
        over = final or reservation.period.end <= now
        if over:
            self._lapses.end(reservation, self._in_use.get(reservation.id, 0))
        owed = self._lapses.owed(reservation.id, now, all=over)
        if owed:
            if not self._written(
                reservation, None, lambda ledger, writes: ledger.credit_outage(writes.ledger, reservation, owed, now)
            ):
                return
            self._lapses.written(reservation.id, owed, now)
        if over:
            self._lapses.forget(reservation.id)

    def _ended(self, old: Reservation, now: float) -> Reservation:
        new = old.in_state(State.ENDED, now, actor=ACTOR)
        if old.state is State.ACTIVE or old.used:
            return self._close(old, new, now)
        # Nobody was here in all its time, so it is not known whether Slurm had it: only what ran is charged.
        return self._turned(old, new, lambda ledger, writes: ledger.release_hold(writes.ledger, new, NOT_KEPT, ACTOR))

    def _close(self, old: Reservation, new: Reservation, now: float) -> Reservation:
        return self._turned(old, new, lambda ledger, writes: ledger.settle(writes.ledger, new, now))

    def _turned(self, old: Reservation, new: Reservation, update: LedgerUpdate | None = None) -> Reservation:
        return new if self._written(old, new, update) else old

    def _written(self, old: Reservation, new: Reservation | None, update: LedgerUpdate | None) -> bool:
        """Write a turn with its money, None = only that; return whether it was written."""
        try:
            with self._store.transaction(self._cluster) as writes:
                if new is not None:
                    writes.save(new)
                if update is not None and self._ledger is not None and old.kind is Kind.BOOKING:
                    update(self._ledger, writes)
        except ConcurrentChange:
            return False  # somebody was faster; the next pass sees what came of it
        except StoreError:
            raise
        except Exception:  # noqa: BLE001
            # Whatever it was, the other reservations are due as well, and this one is tried again.
            self._log.exception("Reservation %s of %s could not be brought up to date", old.id, old.owner)
            return False
        return True


def jobs_by_reservation(jobs: Iterable[Job]) -> Mapping[str, Sequence[Job]]:
    """Return jobs by the names of the reservations that they may run in."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        for name in job.reservations:
            found.setdefault(name, []).append(job)
    return found


def jobs_inside(reservation: Reservation, named: Mapping[str, Sequence[Job]]) -> tuple[Job, ...]:
    """Return the jobs that run in a reservation, wait for it or were in it.

    One that named several and has started is in that on whose nodes it is: Slurm goes on showing all of them. What is
    kept by licences has no nodes.
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
    """Return whether it has been on nodes; a job that was cancelled while it waited has not."""
    if job.phase is Phase.TERMINAL:
        return bool(job.nodes) and job.end > job.start > 0
    return job.phase in (Phase.ACTIVE, Phase.ENDING)


def _is_unmanaged(job: Job) -> bool:
    return _has_run(job) and not job.name.startswith(JOB_NAME_PREFIX)


def _gpu_seconds(job: Job, reservation: Reservation, now: float) -> int:
    """Return the GPU-seconds that a job has had in a reservation's time up to now."""
    period = reservation.period
    return job.gpus.whole * int(overlap(job.start, min(job.end or now, now), (period.start, period.end)))


def _sessions(jobs: Iterable[Job]) -> frozenset[str]:
    """Return the ids of the sessions among jobs that have not ended."""
    names = (job.name for job in jobs if job.phase is not Phase.TERMINAL)
    return frozenset(name.removeprefix(JOB_NAME_PREFIX) for name in names if name.startswith(JOB_NAME_PREFIX))


def _length(seconds: int) -> str:
    return f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"
