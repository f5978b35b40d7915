"""In which part of their time bookings were not to be had: Slurm did not have them, or something else was in the way.

Where all booked time is charged, that part is not. It is counted from one look at Slurm to the next, and written to the
ledger while the booking runs, so that a start of the service forgets a few minutes of it at most. Of what it has not
seen itself, a process that finds a booking begun and broken goes by when its problem was written.

Between two looks a booking was there if it is at the second and was not made anew for that. What was never seen in
Slurm was never there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from carme_hub.domain.calendar.reservations import PROMISED, Kind, Reservation, State

#: Seconds after which what was counted is written.
WRITE = 300.0
#: Seconds after its start up to which a change of a booking is taken to be its start.
AT_START = 60


@dataclass(frozen=True, slots=True)
class OutageCredit:
    """What is to be written of one booking: GPU-seconds more than before, and how many were to be by then at least."""

    more: int = 0
    least: int = 0

    def __bool__(self) -> bool:
        return bool(self.more or self.least)


class Outages:
    """Counts for the bookings of one cluster."""

    def __init__(self) -> None:
        #: When each was last looked at, and whether it was there then.
        self._seen: dict[str, tuple[float, bool]] = {}
        self._more: dict[str, float] = {}
        self._least: dict[str, float] = {}
        self._written: dict[str, float] = {}

    def expect(self, reservation: Reservation, now: float) -> None:
        """Note one that is to be there from its start on; until it is seen it is not."""
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
        """Note what Slurm has now.

        Args:
            kept: ids of what it has. anew: of which it did not have before. in_use: GPUs of the jobs in each, which are
                charged themselves.
        """
        bookings = [each for each in known if each.state in PROMISED and each.kind is Kind.BOOKING]
        for each in bookings:
            there = each.id in kept and not each.problem
            if not there or each.id in anew:
                self._lapsed(each, now, in_use.get(each.id, 0))
            self._seen[each.id] = (now, there)
        ids = {each.id for each in bookings}
        self._seen = {id: seen for id, seen in self._seen.items() if id in ids or id in self._more}

    def end(self, reservation: Reservation, in_use: int) -> None:
        """Note that its time is over: what it was when last seen it was to its end."""
        seen = self._seen.get(reservation.id)
        unseen = seen is None and bool(reservation.problem) and reservation.state in PROMISED
        if unseen or (seen is not None and not seen[1]):
            end = min(reservation.ended or reservation.period.end, reservation.period.end)
            self._lapsed(reservation, end, in_use)
            self._seen[reservation.id] = (end, False)

    def owed(self, id: str, now: float, *, all: bool) -> OutageCredit:
        """Return what is to be written of a booking now. ``all``: however little, since its time is over."""
        if not all and now - self._written.setdefault(id, now) < WRITE:
            return OutageCredit()
        return OutageCredit(int(self._more.get(id, 0)), int(self._least.get(id, 0)))

    def written(self, id: str, owed: OutageCredit, now: float) -> None:
        """Note that it was written."""
        self._written[id] = now
        self._more[id] = self._more.get(id, 0.0) - owed.more
        self._least.pop(id, None)

    def forget(self, id: str) -> None:
        """Forget one that is over."""
        for each in (self._seen, self._more, self._least, self._written):
            each.pop(id, None)

    def _lapsed(self, reservation: Reservation, until: float, in_use: int) -> None:
        id, period = reservation.id, reservation.period
        until, seen = min(until, period.end), self._seen.get(id)
        if seen is not None:
            seconds = max(0.0, until - max(seen[0], period.start))
            self._more[id] = self._more.get(id, 0.0) + seconds * max(0, reservation.gpus - in_use)
        elif reservation.state is not State.CONFIRMED:
            late = reservation.changed - period.start > AT_START
            since = reservation.changed if late else period.start
            self._least[id] = reservation.gpus * max(0.0, until - since)
