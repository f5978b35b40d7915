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

from carme_hub.booking.context import ACTOR, SlotClosing
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
LEVEL = 300.0
#: Seconds between two looks at the queue in which no job can come and be forgotten: less than Slurm's MinJobAge.
BLIND = 120.0


class SlotLedger(SlotClosing, Protocol):
    """What the keeper asks of the money of reservations, in the transaction of their state."""

    def lapse(self, writes: LedgerWrites, reservation: Reservation, owed: OutageCredit, now: float) -> None:
        """Do not charge the time in which it was not to be had."""
        ...

    def level(
        self, writes: LedgerWrites, reservation: Reservation, now: float, inside: Collection[str], by_hand: int
    ) -> None:
        """Hold what is left of it beside what these open sessions in it hold, and other jobs in it have used.

        Args:
            by_hand: GPU-seconds of jobs in it that are of no session, as far as they were seen.
        """
        ...


#: What is done to the money of a turn, in its transaction.
Paying = Callable[[SlotLedger, ReservationWrites], None]


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
        money: SlotLedger | None,
        no_show: int,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._money = money
        self._no_show = no_show
        self._log = log
        #: Since when each was in Slurm and had no problem, without a gap in what is known.
        self._kept: dict[str, float] = {}
        #: When the money of each was last made level, and the open sessions in it then.
        self._level_at: dict[str, tuple[float, frozenset[str]]] = {}
        #: The GPU-seconds of jobs in each that are of no session, by job and start; also of what squeue has forgotten.
        #: A start of the service forgets it, and what they used is held until the end as well.
        self._by_hand: dict[str, dict[tuple[int, float], int]] = {}
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
        if self._money is not None:
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
        if jobs.asked - self._asked > BLIND:
            self._kept.clear()
        self._asked = jobs.asked
        named = jobs_by_reservation(jobs.jobs.values())
        promised = {each.id for each in known if each.state in PROMISED}
        self._level_at = {id: last for id, last in self._level_at.items() if id in promised}
        self._by_hand = {id: used for id, used in self._by_hand.items() if id in promised}
        self._in_use = {}
        return [self._used(each, jobs_inside(each, named), now) if each.id in promised else each for each in known]

    def _timed(self, reservation: Reservation, now: float) -> Reservation:
        started = reservation.period.start <= now
        if reservation.state in PROMISED and reservation.period.end <= now:
            return self._ended(reservation, now)
        if reservation.state is State.CONFIRMED and started:
            return self._turned(reservation, reservation.to(State.ACTIVE, now, actor=ACTOR))
        if reservation.state is State.PENDING and started:
            late = reservation.to(State.CANCELLED, now, actor=ACTOR, reason=NOT_APPROVED)
            return self._turned(
                reservation, late, lambda till, writes: till.give_back(writes.ledger, late, NOT_APPROVED, ACTOR)
            )
        return reservation

    def _used(self, reservation: Reservation, jobs: Sequence[Job], now: float) -> Reservation:
        if reservation.kind is not Kind.BOOKING:
            return reservation
        if self._is_missed(reservation, jobs, now):
            reason = f"unused for {_length(self._no_show)}"
            return self._over(reservation, reservation.to(State.RELEASED, now, actor=ACTOR, reason=reason), now)
        if not reservation.used and any(_has_run(job) for job in jobs):
            reservation = self._turned(reservation, reservation.but(used=now, version=reservation.version + 1))
        if reservation.problem and reservation.id in self._kept:
            self._kept[reservation.id] = now  # who could not come is missed only once they can
        self._in_use[reservation.id] = sum(job.gpus.whole for job in jobs if job.phase in (Phase.ACTIVE, Phase.ENDING))
        by_hand = self._by_hand.setdefault(reservation.id, {})
        by_hand |= {(job.id, job.start): _gpu_seconds(job, reservation, now) for job in jobs if _is_by_hand(job)}
        self._level(reservation, _sessions(jobs), sum(by_hand.values()), now)
        return reservation

    def _is_missed(self, reservation: Reservation, jobs: Sequence[Job], now: float) -> bool:
        """Return whether nobody came: not in all that time, and nothing kept them from it."""
        if not self._no_show or reservation.state is not State.ACTIVE or reservation.used or reservation.problem:
            return False
        since = self._kept.get(reservation.id)
        nobody = all(job.phase is Phase.TERMINAL and not _has_run(job) for job in jobs)
        return nobody and since is not None and now >= max(reservation.period.start, since) + self._no_show

    def _level(self, reservation: Reservation, inside: frozenset[str], by_hand: int, now: float) -> None:
        """Make the hold level with the open sessions inside, where those are not the ones of the last look.

        After a start of the service nobody knows which those were, so what is active is made level then.
        """
        active = reservation.state is State.ACTIVE
        at, before = self._level_at.get(reservation.id, (float("-inf"), frozenset[str]()))
        if inside == before and not (active and now - at >= LEVEL):
            return

        def level(till: SlotLedger, writes: ReservationWrites) -> None:
            there = writes.get(reservation.id)
            if there is None or there.version != reservation.version:
                raise ConcurrentChange("The reservation was changed meanwhile.")
            till.level(writes.ledger, reservation, now, inside, by_hand)

        if self._written(reservation, None, level):
            self._level_at[reservation.id] = (now, inside)

    def _note_lapse(self, reservation: Reservation, now: float) -> None:
        """Write now and then, and before it is over, for how long one was not to be had."""
        final = reservation.state in (State.ENDED, State.CANCELLED, State.RELEASED)
        if self._money is None or reservation.kind is not Kind.BOOKING or not (final or reservation.state in PROMISED):
            return
        self._lapses.expect(reservation, now)
        over = final or reservation.period.end <= now
        if over:
            self._lapses.end(reservation, self._in_use.get(reservation.id, 0))
        owed = self._lapses.owed(reservation.id, now, all=over)
        if owed:
            if not self._written(
                reservation, None, lambda till, writes: till.lapse(writes.ledger, reservation, owed, now)
            ):
                return
            self._lapses.written(reservation.id, owed, now)
        if over:
            self._lapses.forget(reservation.id)

    def _ended(self, old: Reservation, now: float) -> Reservation:
        new = old.to(State.ENDED, now, actor=ACTOR)
        if old.state is State.ACTIVE or old.used:
            return self._over(old, new, now)
        # Nobody was here in all its time, so it is not known whether Slurm had it: only what ran is charged.
        return self._turned(old, new, lambda till, writes: till.give_back(writes.ledger, new, NOT_KEPT, ACTOR))

    def _over(self, old: Reservation, new: Reservation, now: float) -> Reservation:
        return self._turned(old, new, lambda till, writes: till.over(writes.ledger, new, now))

    def _turned(self, old: Reservation, new: Reservation, money: Paying | None = None) -> Reservation:
        return new if self._written(old, new, money) else old

    def _written(self, old: Reservation, new: Reservation | None, money: Paying | None) -> bool:
        """Write a turn with its money, None = only that; return whether it was written."""
        try:
            with self._store.transaction(self._cluster) as writes:
                if new is not None:
                    writes.save(new)
                if money is not None and self._money is not None and old.kind is Kind.BOOKING:
                    money(self._money, writes)
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


def _is_by_hand(job: Job) -> bool:
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
