"""Slurm keeps what was promised: each pass compares the calendar with Slurm's reservations and takes the steps between.

There is no list of things to do that could be lost or done twice: what is due is what differs. So it does not matter
whether a step was broken off, a reservation deleted by hand, the service killed between its database and scontrol, or
the controller down for an hour; the next pass that reaches Slurm puts it right. While Slurm does not answer nothing
is known, and nothing is changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from carme_hub.domain.reservations import PROMISED, Reservation, State
from carme_hub.domain.slurm_reservations import Create, SlurmReservation, Step, plan
from carme_hub.errors import CarmeError, SlurmUnreachable
from carme_hub.store.reservations import Changed, ReservationStore
from carme_hub.store.threads import in_store_thread

#: Who changes a reservation's state when its time comes.
ACTOR = "carme-hub"
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
        there: all reservations of Slurm before the steps.
    """

    at: float
    steps: int = 0
    unreachable: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    there: tuple[SlurmReservation, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether Slurm had all that was promised, before anything was done."""
        return not self.unreachable and not self.steps


class ReservationKeeper:
    """Makes Slurm's reservations those of the calendar.

    Args:
        members: the users of a hub group now.
        ahead: seconds before its start from which a reservation is in Slurm. every: seconds between two passes.
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
        log: logging.Logger | logging.LoggerAdapter[logging.Logger] | None = None,
    ) -> None:
        self._store = store
        self._slurm = slurm
        self._cluster = cluster
        self._clock = clock
        self._members = members
        self._ahead = ahead
        self._every = every
        self._log = log or logging.getLogger(__name__)
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
        known = await in_store_thread(self._turned, now)
        wanted, gone = self._wanted(known, now)
        try:
            there = await self._slurm.show()
            steps = plan(wanted, there, gone=gone, now=int(now))
            refused = {_name(step): words for step in steps if (words := await self._slurm.take(step))}
        except SlurmUnreachable as error:
            self.last = Pass(now, unreachable=str(error))
            return self.last
        for name, words in refused.items():
            self._log.warning("Slurm does not keep reservation %s: %s", name, words)
        self.last = Pass(now, len(steps), "", refused, there)
        return self.last

    def _turned(self, now: float) -> list[Reservation]:
        """Give each reservation the state that its time has brought, and return those that matter to Slurm."""
        with self._store.reading(self._cluster) as reads:
            known = reads.changed_since(now - REMEMBERED)
        return [self._turn(each, now) for each in known]

    def _turn(self, reservation: Reservation, now: float) -> Reservation:
        state = _due_state(reservation, now)
        if state is None:
            return reservation
        turned = reservation.to(state, now, actor=ACTOR)
        try:
            with self._store.transaction(self._cluster) as writes:
                writes.save(turned)
        except Changed:
            return reservation  # its owner was faster; the next pass sees what came of it
        return turned

    def _wanted(self, known: Sequence[Reservation], now: float) -> tuple[list[SlurmReservation], list[str]]:
        """Return what Slurm is to have now, and the names of what it is not to have any more."""
        wanted: list[SlurmReservation] = []
        gone: list[str] = []
        for each in known:
            if each.state not in PROMISED:
                gone += each.names()
            elif each.period.start - now <= self._ahead:
                wanted += each.in_slurm(self._members(each.group) if each.group else ())
        return wanted, gone


def _due_state(reservation: Reservation, now: float) -> State | None:
    if reservation.state not in PROMISED:
        return None
    if reservation.period.end <= now:
        return State.ENDED
    started = reservation.period.start <= now
    return State.ACTIVE if started and reservation.state is State.CONFIRMED else None


def _name(step: Step) -> str:
    return step.wanted.name if isinstance(step, Create) else step.name
