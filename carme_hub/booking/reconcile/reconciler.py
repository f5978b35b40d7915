"""Slurm keeps what was promised: each pass compares the calendar with Slurm's reservations and takes the steps between.

There is no list of things to do that could be lost or done twice: what is due is what differs. So it does not matter
whether a step was broken off, a reservation deleted by hand, the service killed between its database and scontrol, or
the controller down for an hour; the next pass that reaches Slurm puts it right. While Slurm does not answer nothing
is known, and nothing is changed there.

A pass first turns what time turns (``turning``), then asks Slurm: who is there and who is missing, then the steps, then
what cannot be kept (``mending``). At its end, who waits for GPUs gets what has become free. The next one comes when the
next reservation begins or ends, when somebody asks for it, or after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from carme_hub.booking.calendar import Supply
from carme_hub.booking.context import ACTOR
from carme_hub.domain.calendar.reservations import PROMISED, Reservation, State
from carme_hub.domain.calendar.slurm_reservations import Create, SlurmReservation, Step, deletions_for_retry, plan, stem_of
from carme_hub.domain.cluster.jobs import Snapshot
from carme_hub.domain.cluster.resources import Node
from carme_hub.errors import CarmeError, SlurmUnreachable
from carme_hub.slurm.cooperative import all_steps
from carme_hub.store.reservations import ReservationStore
from carme_hub.store.threads import in_store_thread

from .rebooking import IN_VAIN, Rebooking
from .transitions import SlotLedger, Transitions
from .violations import ObservedSlurm

__all__ = ["ACTOR", "Pass", "ReservationReconciler", "SlotLedger", "SlurmReservations"]

#: Seconds for which what is over is still looked for in Slurm, to delete it there.
REMEMBERED = 14 * 86_400
#: Seconds after which a pass that could not be made is tried again: twice as long after each, up to ``every``.
SOON = 2.0
#: Seconds between two passes at least, and from a start or an end to the pass that is made for it.
LEAST, AFTER = 1.0, 0.1


class SlurmReservations(Protocol):
    """What the keeper asks of Slurm; ``carme_hub.slurm.reservations`` has it."""

    async def show(self) -> tuple[SlurmReservation, ...]:
        """Return all reservations; ``SlurmUnreachable`` where that is not known."""
        ...

    async def take(self, step: Step) -> str:
        """Take a step; return the words of a refusal, "" otherwise."""
        ...


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass found.

    Attributes:
        at: epoch seconds. steps: how many were taken. unreachable: why Slurm is not known, "" where it is.
        refused: Slurm's words by the name of the reservation that it does not keep.
        turned: whose state, place or problem it has changed.
    """

    at: float
    steps: int = 0
    unreachable: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    turned: tuple[Reservation, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether Slurm had all that was promised, before anything was done."""
        return not self.unreachable and not self.steps


class ReservationReconciler:
    """Makes Slurm's reservations those of the calendar.

    Args:
        members: the users of a hub group now.
        charging: the users of a Slurm account now, () where that is not known. Slurm refuses a whole reservation for
            one user who is not in its account, and whose jobs could not be in it anyway.
        ahead: seconds before its start from which a reservation is in Slurm. every: seconds between two passes.
        money: what is held for a booking, written in the transaction of its state; None = nothing is.
        jobs: the newest answer of squeue, nodes: of scontrol, None where it is not known now. Without them nobody is
            found to be missing, and no promise broken.
        supply: what can be booked, for places elsewhere; without it none are sought.
        no_show: seconds after which an unused booking is given back, 0 = never.
        promote: books who waits on the waitlist, as far as there is room now.
        on_turn: told of each reservation whose state, place or problem a pass has changed, on the loop, once written.
    """

    def __init__(
        self,
        store: ReservationStore,
        slurm: SlurmReservations,
        cluster: str,
        *,
        clock: Callable[[], float],
        members: Callable[[str], Collection[str]],
        charging: Callable[[str], Collection[str]] = lambda _: (),
        ahead: float = 30 * 86_400,
        every: float = 30.0,
        ledger: SlotLedger | None = None,
        jobs: Callable[[], Snapshot | None] | None = None,
        nodes: Callable[[], Sequence[Node] | None] | None = None,
        supply: Callable[[], Supply] | None = None,
        no_show: int = 0,
        promote: Callable[[float], Awaitable[object]] | None = None,
        on_turn: Callable[[Reservation], None] | None = None,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger] | None = None,
    ) -> None:
        self._store = store
        self._slurm = slurm
        self._cluster = cluster
        self._clock = clock
        self._members = members
        self._charging = charging
        self._ahead = ahead
        self._every = every
        self._jobs = jobs
        self._nodes = nodes
        self._promote = promote
        self._on_turn = on_turn or _nobody_told
        self._log = log or logging.getLogger(__name__)
        self._turning = Transitions(store, cluster, ledger=ledger, no_show=no_show, log=self._log)
        self._mending = Rebooking(store, cluster, supply=supply, lasting=every)
        self._due = asyncio.Event()
        #: Done at the end of the pass that begins next.
        self._coming: asyncio.Future[None] | None = None
        #: When the next reservation begins or ends.
        self._edge = float("inf")
        #: Who gets into each by what Slurm had when it last answered, by id; nobody named = all of the account.
        self._open_to: Mapping[str, frozenset[str]] = {}
        #: When others last made way for what was refused, by its name.
        self._way_made: Mapping[str, float] = {}
        #: Slurm's words by the name of what it refused when it last answered.
        self._refused: Mapping[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        #: What the newest pass found, None before the first.
        self.last: Pass | None = None
        #: All reservations as Slurm last told them, None while it never has: one by hand is not gone for its silence.
        self.seen: tuple[SlurmReservation, ...] | None = None

    def start(self) -> None:
        """Begin; does nothing when it already has."""
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._coming = loop.create_future()
            self._task = loop.create_task(self._run(self._coming), name="carme-reservation-keeper")

    async def stop(self) -> None:
        """End the task and wait for it. Reservations are not touched."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._coming is not None and not self._coming.done():
            self._coming.set_result(None)  # nobody waits for a pass that never comes

    def look_now(self) -> None:
        """Make the next pass at once: something was booked or taken back."""
        self._due.set()

    async def look(self) -> None:
        """Make a pass that begins after this moment, and wait for its end, whatever comes of it; many share one."""
        if self._coming is not None and self._task is not None and not self._task.done():
            self.look_now()
            await asyncio.shield(self._coming)

    def lets_in(self, id: str, user: str) -> bool:
        """Return whether a user's jobs get into a reservation, by what Slurm had when it last answered."""
        users = self._open_to.get(id)
        return users is not None and (not users or user in users)

    async def _run(self, coming: asyncio.Future[None]) -> None:
        loop, failures, said = asyncio.get_running_loop(), 0, ""
        while True:
            self._due.clear()
            this, coming = coming, loop.create_future()
            self._coming = coming
            try:
                await self.once()
            except CarmeError as error:
                failures += 1
                if str(error) != said:
                    self._log.warning("The calendar could not be compared with Slurm, it is tried again: %s", error)
                said = str(error)
            except Exception:  # noqa: BLE001
                # Whatever it was must not end the loop: what was promised is still owed.
                failures += 1
                self._log.exception("Comparing the calendar with Slurm failed; it is tried again")
            else:
                if failures:
                    self._log.info("The calendar can be compared with Slurm again")
                failures, said = 0, ""
            finally:
                this.set_result(None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause(failures)):
                    await self._due.wait()

    def _pause(self, failures: int) -> float:
        if failures:
            return min(self._every, SOON * 2.0 ** min(failures - 1, 16))
        return min(self._every, max(LEAST, self._edge + AFTER - self._clock()))

    async def once(self) -> Pass:
        """Make one pass.

        Raises:
            StoreError: the calendar cannot be read or written now.
        """
        now = self._clock()
        known = await in_store_thread(self._known, now)
        turns = ReservationChanges(known)
        await self._turn(turns, lambda known: self._turning.by_time(known, now))
        try:
            self.last = await self._with_slurm(turns, now)
        except SlurmUnreachable as error:
            self._turning.lost()
            self.last = Pass(now, unreachable=str(error), turned=turns.turned)
        self._edge = _next_edge(turns.known, now)
        if self._promote is not None and any(each.waits for each in turns.known):
            await self._promote(now)
        return self.last

    async def _with_slurm(self, turns: ReservationChanges, now: float) -> Pass:
        """Do what needs to know Slurm; ``SlurmUnreachable`` where it is not known any more."""
        there = self.seen = await self._slurm.show()
        jobs = self._jobs() if self._jobs is not None else None
        if jobs is not None:
            await all_steps(jobs.reading())
            await self._turn(turns, lambda known: self._turning.by_use(known, jobs, now))
        elif self._jobs is not None:
            self._turning.lost()
        wanted, gone = self._wanted(turns.known, there, now)
        steps = plan(wanted, there, obsolete=gone, now=int(now))
        refused = {_name(step): words for step in steps if (words := await self._slurm.take(step))}
        for name, words in refused.items():
            if self._refused.get(name) != words:
                self._log.warning("Slurm does not keep reservation %s, it is tried again: %s", name, words)
        self._refused = refused
        if refused and jobs is not None:
            await self._make_way([step for step in steps if _name(step) in refused], there, jobs, now)
        kept, anew = _kept(turns.known, wanted, steps, refused)
        self._open_to = kept
        self._turning.kept(turns.known, kept, anew, now)
        nodes = self._nodes() if self._nodes is not None else None
        if nodes and jobs is not None:
            by_name = {node.name: node for node in nodes}
            seen = ObservedSlurm(int(now), by_name, tuple(jobs.jobs.values()), there, refused)
            before = turns.known
            await self._turn(turns, lambda known: self._mending.mend(known, seen, now))
            if any(old.places != new.places for old, new in zip(before, turns.known, strict=True)):
                self.look_now()  # Slurm is told of other places at once
        return Pass(now, len(steps), "", refused, turns.turned)

    async def _make_way(
        self, refused: Sequence[Step], there: Sequence[SlurmReservation], jobs: Snapshot, now: float
    ) -> None:
        """Delete what may be in the way of what was refused, to make it again after that; not twice in an hour."""
        self._way_made = {name: at for name, at in self._way_made.items() if now - at < IN_VAIN}
        new = [step for step in refused if _name(step) not in self._way_made]
        named = {name for job in jobs.jobs.values() for name in job.reservations}
        if deletions := deletions_for_retry(new, there, named=named, now=int(now)):
            for step in deletions:
                await self._slurm.take(step)
            self._way_made |= {_name(step): now for step in new}
            self.look_now()

    async def _turn(
        self, turns: ReservationChanges, turn: Callable[[Sequence[Reservation]], list[Reservation]]
    ) -> None:
        """Have reservations turned, and tell of those that were."""
        for each in turns.now(await in_store_thread(turn, turns.known)):
            try:
                self._on_turn(each)
            except Exception:  # noqa: BLE001
                # It is written, and who could not be told must not keep Slurm from being told.
                self._log.exception("Nobody was told of what became of reservation %s", each.id)

    def _known(self, now: float) -> list[Reservation]:
        with self._store.reading(self._cluster) as reads:
            return reads.changed_since(now - REMEMBERED)

    def _wanted(
        self, known: Sequence[Reservation], there: Sequence[SlurmReservation], now: float
    ) -> tuple[list[SlurmReservation], list[str]]:
        """Return what Slurm is to have now, and the names of what it has of ours and is not to have any more."""
        wanted: list[SlurmReservation] = []
        for each in known:
            if each.state in PROMISED and each.period.start - now <= self._ahead:
                parts = each.slurm_reservations(self._members(each.group) if each.group else ())
                wanted += [self._for_who_can_pay(part, each.account) for part in parts]
        names, stems = {each.name for each in wanted}, {each.stem for each in known}
        # Also what was on more nodes before, and is on fewer now.
        gone = [each.name for each in there if each.ours and each.stem in stems and each.name not in names]
        return wanted, gone

    def _for_who_can_pay(self, part: SlurmReservation, account: str) -> SlurmReservation:
        # For nobody at all it would be for the whole account.
        users = part.users & frozenset(self._charging(account)) if account else part.users
        return replace(part, users=users) if users else part


class ReservationChanges:
    """The reservations as they are now, and which of them a pass has changed."""

    def __init__(self, known: Sequence[Reservation]) -> None:
        self.known = known
        self._turned: dict[str, Reservation] = {}

    def now(self, known: Sequence[Reservation]) -> list[Reservation]:
        """Take them as they are now; return those of which there is something to tell."""
        changed = [
            new for old, new in zip(self.known, known, strict=True) if old is not new and _told_of(old) != _told_of(new)
        ]
        self.known = known
        self._turned |= {each.id: each for each in changed}
        return changed

    @property
    def turned(self) -> tuple[Reservation, ...]:
        """Return those that were changed, as they are now."""
        return tuple(self._turned.values())


def _nobody_told(reservation: Reservation) -> None:
    """Tell nobody what became of a reservation."""


def _told_of(reservation: Reservation) -> tuple[object, ...]:
    return reservation.state, reservation.places, reservation.problem


def _kept(
    known: Sequence[Reservation],
    wanted: Sequence[SlurmReservation],
    steps: Sequence[Step],
    refused: Mapping[str, str],
) -> tuple[dict[str, frozenset[str]], set[str]]:
    """Return who gets into each reservation that Slurm has whole by now, by id, and which it did not have before."""
    lacking = {stem_of(name) for name in refused}
    anew = {step.wanted.stem for step in steps if isinstance(step, Create)}
    users = {each.stem: each.users for each in wanted if each.stem not in lacking}
    kept = {each.id: users[each.stem] for each in known if each.stem in users}
    return kept, {each.id for each in known if each.id in kept and each.stem in anew}


def _next_edge(known: Iterable[Reservation], now: float) -> float:
    """Return when the next of them begins or ends; endless where none does."""
    starts = (each.period.start for each in known if each.state in (State.PENDING, State.CONFIRMED))
    ends = (each.period.end for each in known if each.state in PROMISED)
    return min((at for at in (*starts, *ends) if at > now), default=float("inf"))


def _name(step: Step) -> str:
    return step.wanted.name if isinstance(step, Create) else step.name
