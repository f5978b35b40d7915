"""Nobody books what somebody else has: what is free is looked at and taken in one write transaction.

A booking is all of its times or none. Where one of them is taken, the answer names it and what could be had instead.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from carme_hub.domain.capacity import Capacity, Need, Place, Spot, Taken
from carme_hub.domain.periods import Period
from carme_hub.domain.reservations import Reservation, State
from carme_hub.errors import Refused
from carme_hub.store.reservations import ReservationReads, ReservationStore
from carme_hub.store.threads import in_store_thread

#: Seconds before and after the wanted time in which another one is looked for.
AROUND = 7 * 86_400
#: Conflicts of one booking that are told with what could be had instead; the others are told alone.
EXPLAINED = 5


@dataclass(frozen=True, slots=True)
class Supply:
    """What can be booked at all.

    Attributes:
        spots: the GPUs of all nodes that may be booked. taken: what others than bookings have of them: maintenance,
            reservations by hand, nodes that are down.
        by_node: whether Slurm keeps whole nodes only. share: the percent of each type that may be booked at one moment.
    """

    spots: Sequence[Spot]
    taken: Sequence[Taken] = ()
    by_node: bool = False
    share: int = 100


@dataclass(frozen=True, slots=True)
class Time:
    """One time that is wanted. ``occurrence``: which of a booking that comes again, "" for what comes once."""

    period: Period
    occurrence: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """A booking as it is asked for; see ``Reservation``."""

    owner: str
    account: str
    title: str
    need: Need
    times: Sequence[Time]
    users: frozenset[str] = frozenset()
    group: str = ""
    everybody: bool = False
    profile: str = ""
    zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A time that cannot be had, and what could be: other times, fewer seats then (0 = none), other types then."""

    time: Time
    times: tuple[Period, ...] = ()
    seats: int = 0
    types: tuple[str, ...] = ()


class SlotTaken(Refused):
    """Not everything that was asked for is free.

    Attributes:
        conflicts: every time that is not free; the first few with what could be had instead.
    """

    reason = "slot-taken"

    def __init__(self, message: str, conflicts: Sequence[Conflict]) -> None:
        super().__init__(message)
        self.conflicts = tuple(conflicts)


class NoSuchGpus(Refused):
    """The cluster does not have what is asked for, at any time."""

    reason = "no-such-gpus"


@dataclass
class Calendar:
    """The calendar of one cluster. Every method may raise ``StoreError``; then nothing was written.

    Attributes:
        supply: what can be booked, by what is known of Slurm now.
        clock: epoch seconds.
    """

    store: ReservationStore
    cluster: str
    supply: Callable[[], Supply]
    clock: Callable[[], float]
    new_id: Callable[[], str] = field(default=lambda: str(uuid.uuid4()))

    async def book(self, wish: Wish, *, state: State = State.CONFIRMED) -> tuple[Reservation, ...]:
        """Book all times of a wish.

        Raises:
            SlotTaken: one of them is not free; nothing is booked.
            NoSuchGpus: they never are.
        """
        return await in_store_thread(self._book, wish, state)

    async def conflicts(self, wish: Wish) -> tuple[Conflict, ...]:
        """Return the times that could not be had now; nothing is written."""
        return await in_store_thread(self._conflicts, wish)

    def _book(self, wish: Wish, state: State) -> tuple[Reservation, ...]:
        supply = self._supply(wish)
        with self.store.transaction(self.cluster) as writes:
            found, conflicts = self._placed(wish, state, writes, supply)
            if conflicts:
                raise SlotTaken(_words(conflicts), conflicts)
            writes.add(found)
        return tuple(found)

    def _conflicts(self, wish: Wish) -> tuple[Conflict, ...]:
        supply = self._supply(wish)
        with self.store.reading(self.cluster) as reads:
            return tuple(self._placed(wish, State.DRAFT, reads, supply)[1])

    def _supply(self, wish: Wish) -> Supply:
        """Return what there is; refuse what no time would make possible."""
        supply = self.supply()
        empty = Capacity(supply.spots, (), by_node=supply.by_node, share=supply.share)
        need = wish.need
        if empty.place(need, Period(0, 1)) is None:
            what = f"{need.seats} × {need.gpus or 'a whole node of'} {need.type}"
            known = ", ".join(f"{empty.total(type)} {type}" for type in empty.types) or "none"
            raise NoSuchGpus(f"{what} can never be booked here. GPUs that may be: {known}.")
        return supply

    def _placed(
        self, wish: Wish, state: State, reads: ReservationReads, supply: Supply
    ) -> tuple[list[Reservation], list[Conflict]]:
        """Return the reservations with their places, and the times for which there is none."""
        now, series = self.clock(), self.new_id() if len(wish.times) > 1 else ""
        found: list[Reservation] = []
        taken_away: list[Time] = []
        for time in sorted(wish.times, key=lambda each: each.period):
            capacity = self._capacity(supply, reads, found, time.period)
            places = capacity.place(wish.need, time.period)
            if places is None:
                taken_away.append(time)
                continue
            found.append(self._reservation(wish, time, places, state, now, series))
        conflicts = [
            self._explained(wish, time, supply, reads, found) if number < EXPLAINED else Conflict(time)
            for number, time in enumerate(taken_away)
        ]
        return found, conflicts

    def _capacity(
        self, supply: Supply, reads: ReservationReads, more: Iterable[Reservation], within: Period
    ) -> Capacity:
        """Return what is free within a period. ``more``: times of the same booking, which may overlap each other."""
        known = [*supply.taken, *reads.taken(within)]
        known += [place.taken(each.period) for each in more for place in each.places]
        there = (each for each in known if each.period.overlaps(within))
        return Capacity(supply.spots, there, by_node=supply.by_node, share=supply.share)

    def _explained(
        self, wish: Wish, time: Time, supply: Supply, reads: ReservationReads, more: Iterable[Reservation]
    ) -> Conflict:
        start, end = time.period.start - AROUND, time.period.end + AROUND
        within = Period(max(start, min(int(self.clock()), time.period.start)), end)
        capacity = self._capacity(supply, reads, more, within)
        fewer = capacity.fewer_seats(wish.need, time.period)
        return Conflict(
            time,
            capacity.other_times(wish.need, time.period, within),
            fewer.seats if fewer else 0,
            tuple(other.type for other in capacity.other_types(wish.need, time.period)),
        )

    def _reservation(
        self, wish: Wish, time: Time, places: tuple[Place, ...], state: State, now: float, series: str
    ) -> Reservation:
        return Reservation(
            id=self.new_id(),
            cluster=self.cluster,
            owner=wish.owner,
            account=wish.account,
            title=wish.title,
            need=wish.need,
            period=time.period,
            places=places,
            state=state,
            created=now,
            users=wish.users,
            group=wish.group,
            everybody=wish.everybody,
            profile=wish.profile,
            zone=wish.zone,
            series=series,
            occurrence=time.occurrence,
            changed=now,
            actor=wish.owner,
        )


def _words(conflicts: Sequence[Conflict]) -> str:
    if len(conflicts) == 1:
        return "These GPUs are not free at that time. Nothing was booked."
    return f"These GPUs are not free at {len(conflicts)} of the times. Nothing was booked."
