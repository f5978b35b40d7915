"""Outages of bookings: the time in which Slurm did not have a booking, or the booking had a problem.

If all booked time is charged, outages are not. They are counted from one snapshot of Slurm to the next, and written to
the ledger while the booking is active, so that a restart of the service loses a few minutes at most. For the time
before its own start, a process uses the time at which the booking's problem was written.

Between two snapshots a booking was in Slurm if the second has it and it was not created in between. A booking that was
never seen in Slurm was never there. ``transitions`` calls this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from carme_hub.domain.calendar.reservations import PROMISED, Kind, Reservation, State

#: Seconds between two writes of counted outages.
WRITE_INTERVAL = 300.0
#: Seconds after its start in which a change of a booking counts as its start.
START_TOLERANCE = 60


@dataclass(frozen=True, slots=True)
class OutageCredit:
    """GPU-seconds to write for one booking: ``more`` than before, and ``least`` that must have been written before."""

    more: int = 0
    least: int = 0

    def __bool__(self) -> bool:
        return bool(self.more or self.least)


class Outages:
    """Counts the outages of the bookings of one cluster."""

    def __init__(self) -> None:
        #: When each booking was last checked, and whether Slurm had it then.
        self._seen: dict[str, tuple[float, bool]] = {}
        self._more: dict[str, float] = {}
        self._least: dict[str, float] = {}
        self._written: dict[str, float] = {}

    def expect(self, reservation: Reservation, now: float) -> None:
        """Note a booking that Slurm must have from its start on; until it is seen, it is missing."""
        if reservation.state is State.CONFIRMED and now < reservation.period.end:
            self._seen.setdefault(reservation.id, (min(now, reservation.period.start), False))

    def note(
        self,
        known: Collection[Reservation],
        kept: Collection[str],
        anew: Collection[str],
        in_use: Mapping[str, int],
        now: float,
    ) -> None:
        """Note the bookings that Slurm has now.

        Args:
            kept: ids of those that it has. anew: ids of those that it did not have before. in_use: GPUs of the jobs in
                each booking; these are charged themselves.
        """
        bookings = [each for each in known if each.state in PROMISED and each.kind is Kind.BOOKING]
        for each in bookings:
            there = each.id in kept and not each.problem
            if not there or each.id in anew:
                self._count_outage(each, now, in_use.get(each.id, 0))
            self._seen[each.id] = (now, there)
        ids = {each.id for each in bookings}
        self._seen = {id: seen for id, seen in self._seen.items() if id in ids or id in self._more}

    def end(self, reservation: Reservation, in_use: int) -> None:
        """Note that a booking is over; its last known state lasted until its end."""
        seen = self._seen.get(reservation.id)
        unseen = seen is None and bool(reservation.problem) and reservation.state in PROMISED
        if unseen or (seen is not None and not seen[1]):
            end = min(reservation.ended or reservation.period.end, reservation.period.end)
            self._count_outage(reservation, end, in_use)
            self._seen[reservation.id] = (end, False)

    def due_credit(self, id: str, now: float, *, all: bool) -> OutageCredit:
        """Return what to write for a booking now. ``all``: any amount, since its time is over."""
        if not all and now - self._written.setdefault(id, now) < WRITE_INTERVAL:
            return OutageCredit()
        return OutageCredit(int(self._more.get(id, 0)), int(self._least.get(id, 0)))

    def written(self, id: str, credit: OutageCredit, now: float) -> None:
        """Note that a credit was written."""
        self._written[id] = now
        self._more[id] = self._more.get(id, 0.0) - credit.more
        self._least.pop(id, None)

    def forget(self, id: str) -> None:
        """Forget a booking that is over."""
        for each in (self._seen, self._more, self._least, self._written):
            each.pop(id, None)

    def _count_outage(self, reservation: Reservation, until: float, in_use: int) -> None:
        id, period = reservation.id, reservation.period
        until, seen = min(until, period.end), self._seen.get(id)
        if seen is not None:
            seconds = max(0.0, until - max(seen[0], period.start))
            self._more[id] = self._more.get(id, 0.0) + seconds * max(0, reservation.gpus - in_use)
        elif reservation.state is not State.CONFIRMED:
            late = reservation.changed - period.start > START_TOLERANCE
            since = reservation.changed if late else period.start
            self._least[id] = reservation.gpus * max(0.0, until - since)
