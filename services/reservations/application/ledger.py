"""Bookings and the ledger: what a booking may use is held when it is confirmed, and settled when it is over.

Where all booked time is charged, what its jobs have used is asked of Slurm's accounting, which knows it a while after
their end. So a booking that is over is settled by a pass of its own, again until it is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from carme_hub.accounting.context import LedgerContext
from carme_hub.accounting.slots import holds, settlement
from carme_hub.accounting.slots.holds import slot_of
from carme_hub.booking.reconcile.outages import OutageCredit
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import HOLDING, Reservation, State
from carme_hub.domain.calendar.slurm_reservations import stem_of
from carme_hub.domain.ledger.entries import SYSTEM_ACTOR
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.rules import Person
from carme_hub.store.ledger.writes import LedgerWrites
from carme_hub.store.reservations import ReservationReads, ReservationStore
from carme_hub.store.threads import in_store_thread

#: States after which nothing is held any more.
_OVER = frozenset({State.ENDED, State.RELEASED})


@dataclass(frozen=True, slots=True)
class ReservationLedger:
    """The money of bookings, for the desk and for the keeper.

    Attributes:
        booked: whether all booked time is charged, in place of what was used.
    """

    context: LedgerContext
    booked: bool = False

    def hold(self, writes: LedgerWrites, booking: Sequence[Reservation], person: Person, actor: str) -> str:
        """Hold what all times of a confirmed booking may use; return the sentence of a refusal, "" where it is held."""
        return holds.hold_all(self.context, writes, [slot_of(each) for each in booking], person, actor).message

    def change(self, writes: LedgerWrites, reservation: Reservation, person: Person, actor: str) -> str:
        """Hold for the booking as it is now, more or less than before; return the sentence of a refusal or "".

        One that is pending and holds nothing was never confirmed: it goes on so.
        """
        if reservation.state is State.PENDING and reservation.id not in holds.held_amounts(writes):
            return ""
        return holds.change(self.context, writes, slot_of(reservation), person, actor).message

    def release_hold(self, writes: LedgerWrites, reservation: Reservation, reason: str, actor: str) -> None:
        """Release all that is held for a booking that will not be."""
        holds.release_hold(self.context, writes, slot_of(reservation), reason, actor)

    def lower_hold(
        self, writes: LedgerWrites, reservation: Reservation, now: float, inside: Collection[str], unmanaged: int
    ) -> None:
        """Hold what is left of it beside what these open sessions in it hold, and other jobs in it have used."""
        holds.lower_hold(
            self.context, writes, slot_of(reservation), now, inside, booked=self.booked, unmanaged=unmanaged
        )

    def credit_outage(self, writes: LedgerWrites, reservation: Reservation, credit: OutageCredit, now: float) -> None:
        """Give back the price of time in which it was not to be had; where use is charged, none is due for it."""
        if self.booked:
            settlement.return_unusable(writes, slot_of(reservation), now, credit.more, credit.least)

    def settle(self, writes: LedgerWrites, reservation: Reservation, now: float) -> None:
        """Give back what a booking that is over still holds; what is to be charged of it is left for ``settle``."""
        if not self.booked:
            self._settle(writes, reservation, now, {})

    def price(self, reservation: Reservation) -> int:
        """Return the milli-GPU-seconds of the whole, at its price."""
        return holds.price_of(self.context, slot_of(reservation))

    # -- what is over -------------------------------------------------------------------------------------------------

    async def settle_due(
        self, store: ReservationStore, usage: Callable[[float], Awaitable[Sequence[Usage]]], now: float
    ) -> int:
        """Settle what still holds GPU time and is over; return how many that were.

        Args:
            usage: what held GPUs since a time, asked of Slurm's accounting only where there is something to charge.
        """
        due = await in_store_thread(self._due)
        over = [each for each in due if each.state in _OVER]
        known: Sequence[Usage] = ()
        if self.booked and over:
            known = await usage(min(each.period.start for each in over))
        return sum([await in_store_thread(self._written, store, each, now, known) for each in due])

    def _due(self) -> list[Reservation]:
        """Return the reservations that hold GPU time and should not any more."""
        with self.context.store.reading(self.context.cluster) as reads:
            calendar = ReservationReads(reads)
            found = [calendar.get(id) for id in holds.held_amounts(reads)]
        return [each for each in found if each is not None and each.state not in HOLDING]

    def _written(self, store: ReservationStore, one: Reservation, now: float, known: Sequence[Usage]) -> bool:
        with store.transaction(self.context.cluster) as writes:
            if one.state in _OVER:
                return self._settle(writes.ledger, one, now, _used(one, known))
            return holds.release_hold(self.context, writes.ledger, slot_of(one), "the booking is over", SYSTEM_ACTOR)

    def _settle(self, writes: LedgerWrites, one: Reservation, now: float, used: Mapping[str, int]) -> bool:
        slot, ended = slot_of(one), _ended(one)
        return settlement.settle_slot(self.context, writes, slot, now, ended=ended, booked=self.booked, used=used)


def _ended(one: Reservation) -> int:
    """Return when it was over."""
    return min(int(one.ended or one.period.end), one.period.end)


def _used(one: Reservation, known: Sequence[Usage]) -> Mapping[str, int]:
    """Return the GPU-seconds, by type, of the jobs in it, also on nodes on which it was before, until it was over.

    Slurm lets them run on after it was given back; then they are charged for their own time alone.
    """
    start, ended = one.period.start, _ended(one)
    if ended <= start:
        return {}
    names = {name for usage in known for name in usage.reservation.split(",") if stem_of(name) == one.stem}
    return settlement.used_inside(known, names, Period(start, ended))
