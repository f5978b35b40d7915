"""Slurm keeps what was promised: each pass compares the calendar with Slurm's reservations and takes the steps between.

There is no list of things to do that could be lost or done twice: what is due is what differs. So it does not matter
whether a step was broken off, a reservation deleted by hand, the service killed between its database and scontrol, or
the controller down for an hour; the next pass that reaches Slurm puts it right. While Slurm does not answer nothing
is known, and nothing is changed there.

A pass first turns what time turns (``turning``), then asks Slurm: who is there and who is missing, then the steps, then
what cannot be kept (``mending``). At its end, who waits for GPUs gets what has become free.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from carme_hub.domain.jobs import Snapshot
from carme_hub.domain.reservations import PROMISED, Reservation
from carme_hub.domain.resources import Node
from carme_hub.domain.slurm_reservations import Create, SlurmReservation, Step, plan, stem_of
from carme_hub.errors import CarmeError, SlurmUnreachable
from carme_hub.store.reservations import ReservationStore
from carme_hub.store.threads import in_store_thread

from .broken import Seen
from .calendar import Supply
from .mending import Mending
from .turning import ACTOR, Till, Turning

__all__ = ["ACTOR", "Pass", "ReservationKeeper", "SlurmReservations", "Till"]

#: Seconds for which what is over is still looked for in Slurm, to delete it there.
REMEMBERED = 14 * 86_400


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
        there: all reservations of Slurm before the steps. turned: whose state, place or problem it has changed.
    """

    at: float
    steps: int = 0
    unreachable: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    there: tuple[SlurmReservation, ...] = ()
    turned: tuple[Reservation, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether Slurm had all that was promised, before anything was done."""
        return not self.unreachable and not self.steps


class ReservationKeeper:
    """Makes Slurm's reservations those of the calendar.

    Args:
        members: the users of a hub group now.
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
        ahead: float = 30 * 86_400,
        every: float = 30.0,
        money: Till | None = None,
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
        self._ahead = ahead
        self._every = every
        self._jobs = jobs
        self._nodes = nodes
        self._promote = promote
        self._on_turn = on_turn or _nobody_told
        self._log = log or logging.getLogger(__name__)
        self._turning = Turning(store, cluster, money=money, no_show=no_show, log=self._log)
        self._mending = Mending(store, cluster, supply=supply, lasting=every)
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: What the newest pass found, None before the first.
        self.last: Pass | None = None

    def start(self) -> None:
        """Begin; does nothing when it already has."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="carme-reservation-keeper")

    async def stop(self) -> None:
        """End the task and wait for it. Reservations are not touched."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def look_now(self) -> None:
        """Make the next pass at once: something was booked or taken back."""
        self._due.set()

    async def _run(self) -> None:
        while True:
            self._due.clear()
            try:
                await self.once()
            except CarmeError as error:
                self._log.warning("The calendar could not be compared with Slurm, it is tried again: %s", error)
            except Exception:  # noqa: BLE001
                # Whatever it was must not end the loop: what was promised is still owed.
                self._log.exception("Comparing the calendar with Slurm failed; it is tried again")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._due.wait()

    async def once(self) -> Pass:
        """Make one pass.

        Raises:
            StoreError: the calendar cannot be read or written now.
        """
        now = self._clock()
        known = await in_store_thread(self._known, now)
        turns = Turns(known)
        await self._turn(turns, lambda known: self._turning.by_time(known, now))
        try:
            self.last = await self._with_slurm(turns, now)
        except SlurmUnreachable as error:
            self._turning.lost()
            self.last = Pass(now, unreachable=str(error), turned=turns.turned)
        if self._promote is not None and any(each.waits for each in turns.known):
            await self._promote(now)
        return self.last

    async def _with_slurm(self, turns: Turns, now: float) -> Pass:
        """Do what needs to know Slurm; ``SlurmUnreachable`` where it is not known any more."""
        there = await self._slurm.show()
        jobs = self._jobs() if self._jobs is not None else None
        if jobs is not None:
            await self._turn(turns, lambda known: self._turning.by_use(known, jobs, now))
        elif self._jobs is not None:
            self._turning.lost()
        wanted, gone = self._wanted(turns.known, there, now)
        steps = plan(wanted, there, gone=gone, now=int(now))
        refused = {_name(step): words for step in steps if (words := await self._slurm.take(step))}
        known = self.last.refused if self.last is not None else {}
        for name, words in refused.items():
            if known.get(name) != words:
                self._log.warning("Slurm does not keep reservation %s, it is tried again: %s", name, words)
        self._turning.kept(*_kept(turns.known, wanted, steps, refused), now)
        nodes = self._nodes() if self._nodes is not None else None
        if nodes and jobs is not None:
            by_name = {node.name: node for node in nodes}
            seen = Seen(int(now), by_name, tuple(jobs.jobs.values()), there, refused)
            if await self._turn(turns, lambda known: self._mending.mend(known, seen, now)):
                self.look_now()  # Slurm is told of other places at once
        return Pass(now, len(steps), "", refused, there, turns.turned)

    async def _turn(self, turns: Turns, turn: Callable[[Sequence[Reservation]], list[Reservation]]) -> bool:
        """Have reservations turned, and tell of those that were; return whether there are any."""
        changed = turns.now(await in_store_thread(turn, turns.known))
        for each in changed:
            try:
                self._on_turn(each)
            except Exception:  # noqa: BLE001
                # It is written, and who could not be told must not keep Slurm from being told.
                self._log.exception("Nobody was told of what became of reservation %s", each.id)
        return bool(changed)

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
                wanted += each.in_slurm(self._members(each.group) if each.group else ())
        names, stems = {each.name for each in wanted}, {each.stem for each in known}
        # Also what was on more nodes before, and is on fewer now.
        gone = [each.name for each in there if each.ours and each.stem in stems and each.name not in names]
        return wanted, gone


class Turns:
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
) -> tuple[set[str], set[str]]:
    """Return the ids of the reservations that Slurm has whole by now, and those of them that it did not have before."""
    lacking = {stem_of(name) for name in refused}
    anew = {step.wanted.stem for step in steps if isinstance(step, Create)}
    stems = {each.stem for each in wanted} - lacking
    kept = {each.id: each.stem for each in known if each.stem in stems}
    return set(kept), {id for id, stem in kept.items() if stem in anew}


def _name(step: Step) -> str:
    return step.wanted.name if isinstance(step, Create) else step.name
