"""The ledger of bookings: GPU time is held when a booking is confirmed, and settled when it is over.

If all booked time is charged, the use of its jobs is read from Slurm's accounting, which has it some time after their
end. So a booking that is over is settled after a pass, repeatedly until it is done.
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
    """The ledger for ``Bookings`` (``BookingLedger``) and for the reconciler (``SlotLedger``).

    Attributes:
        booked: whether all booked time is charged, in place of what was used.
    """

    context: LedgerContext
    booked: bool = False

    def hold(self, writes: LedgerWrites, booking: Sequence[Reservation], person: Person, actor: str) -> str:
        """Hold what all times of a confirmed booking may use; return the sentence of a refusal, "" if it is held."""
        return holds.hold_all(self.context, writes, [slot_of(each) for each in booking], person, actor).message

    def change(self, writes: LedgerWrites, reservation: Reservation, person: Person, actor: str) -> str:
        """Change the hold to the booking's new time and size; return the sentence of a refusal or "".

        A pending booking without a hold was never confirmed: it stays without one.
        """
        if reservation.state is State.PENDING and reservation.id not in holds.held_amounts(writes):
            return ""
        return holds.change(self.context, writes, slot_of(reservation), person, actor).message

    def release_hold(self, writes: LedgerWrites, reservation: Reservation, reason: str, actor: str) -> None:
        """Release the hold of a booking that will not take place."""
        holds.release_hold(self.context, writes, slot_of(reservation), reason, actor)

    def lower_hold(
        self, writes: LedgerWrites, reservation: Reservation, now: float, inside: Collection[str], unmanaged: int
    ) -> None:
        """Lower the hold to what is still needed besides these open sessions and the use of other jobs."""
        holds.lower_hold(
            self.context, writes, slot_of(reservation), now, inside, booked=self.booked, unmanaged=unmanaged
        )

    def credit_outage(self, writes: LedgerWrites, reservation: Reservation, credit: OutageCredit, now: float) -> None:
        """Release the price of an outage; if use is charged, nothing is due for it."""
        if self.booked:
            settlement.return_unusable(writes, slot_of(reservation), now, credit.more, credit.least)

    def settle(self, writes: LedgerWrites, reservation: Reservation, now: float) -> None:
        """Release the hold of a booking that is over; if booked time is charged, ``settle_due`` does it."""
        if not self.booked:
            self._settle(writes, reservation, now, {})

    def price(self, reservation: Reservation) -> int:
        """Return the price of the whole in milli-GPU-seconds."""
        return holds.price_of(self.context, slot_of(reservation))

    # -- settlement ---------------------------------------------------------------------------------------------------

    async def settle_due(
        self, store: ReservationStore, usage: Callable[[float], Awaitable[Sequence[Usage]]], now: float
    ) -> int:
        """Settle bookings that are over and still have a hold; return their number.

        Args:
            usage: returns the jobs with GPUs since a time; it is called only if there is something to charge.
        """
        due = await in_store_thread(self._due)
        over = [each for each in due if each.state in _OVER]
        known: Sequence[Usage] = ()
        if self.booked and over:
            known = await usage(min(each.period.start for each in over))
        return sum([await in_store_thread(self._written, store, each, now, known) for each in due])

    def _due(self) -> list[Reservation]:
        """Return the reservations whose hold is due for settlement."""
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
    """Return the GPU-seconds by type of the jobs in a booking until its end, also on nodes that it had before.

    Slurm lets jobs continue after a release; their later time is charged to themselves.
    """
    start, ended = one.period.start, _ended(one)
    if ended <= start:
        return {}
    names = {name for usage in known for name in usage.reservation.split(",") if stem_of(name) == one.stem}
    return settlement.used_inside(known, names, Period(start, ended))
