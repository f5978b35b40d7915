"""Nobody books what somebody else has: what is free is looked at and taken in one write transaction.

A booking is all of its times or none. Where one of them is taken, the answer names it and what could be had instead.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

from carme_hub.domain.calendar.capacity import Capacity, Need, OccupiedGpus, Place, Spot
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.profile_placement import misfit, places_for
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.sessions.profile import Profile
from carme_hub.errors import ProfileNotAllowed, Refused
from carme_hub.store.reservations import ReservationReads, ReservationStore, by_license
from carme_hub.store.threads import in_store_thread

#: Seconds before and after the wanted time in which another one is looked for.
AROUND = 7 * 86_400
#: Conflicts of one booking that are told with what could be had instead; the others are told alone.
EXPLAINED = 5


@dataclass(frozen=True)
class Supply:
    """What can be booked at all.

    Attributes:
        spots: the GPUs of all nodes that may be booked. taken: what others than bookings have of them: maintenance,
            reservations by hand, nodes that are down.
        by_node: whether Slurm keeps whole nodes only. share: the percent of each type that may be booked at one moment.
        by_license: whether Slurm keeps as many GPUs as are booked, wherever they are, by counting licences.
        profiles: those of the site, by slug, None where they are not known.
        partitions: of each node, with "" where jobs start that name none.
    """

    spots: Sequence[Spot]
    taken: Sequence[OccupiedGpus] = ()
    by_node: bool = False
    share: int = 100
    by_license: bool = False
    profiles: Mapping[str, Profile] | None = None
    partitions: Mapping[str, Collection[str]] = field(default_factory=dict)

    @cached_property
    def empty(self) -> Capacity:
        """All of it, while nobody has anything."""
        return Capacity(self.spots, (), by_node=self.by_node, share=self.share)

    def open_to(self, profile: str, need: Need) -> frozenset[tuple[str, str]] | None:
        """Return the nodes on which sessions of a profile can have such seats, and of which types; None = all."""
        known = self.profiles.get(profile) if profile and self.profiles is not None else None
        if known is None:
            return None
        if (key := (profile, need.gpus)) not in self._open_to:
            spots = (replace(spot, alone=spot.alone or self.by_node) for spot in self.spots)
            self._open_to[key] = places_for(known, need, spots, self.partitions)
        return self._open_to[key]

    @cached_property
    def _open_to(self) -> dict[tuple[str, int], frozenset[tuple[str, str]]]:
        return {}


@dataclass(frozen=True, slots=True)
class Time:
    """One time that is wanted. ``occurrence``: which of a booking that comes again, "" for what comes once."""

    period: Period
    occurrence: str = ""


@dataclass(frozen=True, slots=True)
class BookingRequest:
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


@dataclass(frozen=True, slots=True)
class Asked:
    """One time and what is needed then.

    Attributes:
        places: that are kept where they are free. fixed: and no others will do, since jobs run there.
        sure: they are its own for all of that time. profile: whose sessions are to start there, "" = any.
    """

    time: Time
    need: Need
    places: tuple[Place, ...] = ()
    fixed: bool = False
    sure: bool = False
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Fit:
    """Where what was asked for can be, each time by its number, and what cannot be had."""

    places: Mapping[int, tuple[Place, ...]]
    conflicts: tuple[Conflict, ...]


def anytime(_period: Period) -> bool:
    """Allow any period."""
    return True


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

    async def book(self, wish: BookingRequest, *, state: State = State.CONFIRMED) -> tuple[Reservation, ...]:
        """Book all times of a wish, by no rule and for no money: ``Bookings`` is the door for people.

        Raises:
            SlotTaken: one of them is not free; nothing is booked.
            NoSuchGpus: they never are.
        """
        return await in_store_thread(self._book, wish, state)

    async def conflicts(self, wish: BookingRequest) -> tuple[Conflict, ...]:
        """Return the times that could not be had now; nothing is written."""
        return await in_store_thread(self._conflicts, wish)

    def _book(self, wish: BookingRequest, state: State) -> tuple[Reservation, ...]:
        supply = self.supply_for(wish.need, profile=wish.profile, account=wish.account)
        with self.store.transaction(self.cluster) as writes:
            fit = self.fit(writes, supply, asked(wish))
            if fit.conflicts:
                raise taken(fit.conflicts)
            found = self.made(wish, fit, state)
            writes.add(found)
        return found

    def _conflicts(self, wish: BookingRequest) -> tuple[Conflict, ...]:
        supply = self.supply_for(wish.need, profile=wish.profile, account=wish.account)
        with self.store.reading(self.cluster) as reads:
            return self.fit(reads, supply, asked(wish)).conflicts

    # -- parts of a use case, within its transaction ------------------------------------------------------------------

    def supply_for(self, need: Need, share: int = 100, *, profile: str = "", account: str = "") -> Supply:
        """Return what there is; refuse what no time would make possible.

        Args:
            share: the percent of each type that who asks lets be booked at one moment; the site's may be less.
            profile: whose sessions are to start there, "" = any. account: that they are charged to.
        """
        supply = self.supply()
        supply = replace(supply, share=min(share, supply.share))
        empty = supply.empty
        if empty.place(need, Period(0, 1)) is None:
            what = f"{need.seats} × {need.gpus or 'a whole node of'} {need.type}"
            known = ", ".join(f"{empty.total(type)} {type}" for type in empty.types) or "none"
            raise NoSuchGpus(f"{what} can never be booked here. GPUs that may be: {known}.")
        if profile and supply.profiles is not None:
            _need_start(supply, need, profile, account)
        return supply

    def capacity(
        self, reads: ReservationReads, supply: Supply, within: Period, without: Collection[str] = ()
    ) -> Capacity:
        """Return what is free within a period. ``without``: ids of what is about to be somewhere else."""
        return _capacity(supply, within, reads.taken(within, without))

    def fit(
        self,
        reads: ReservationReads,
        supply: Supply,
        wanted: Sequence[Asked],
        without: Collection[str] = (),
        *,
        allowed: Callable[[Period], bool] = anytime,
    ) -> Fit:
        """Return where all that is asked for can be at once, and what cannot be had.

        Args:
            allowed: whether who asks may book a period, so that nothing is offered that would be refused.
        """
        found: dict[int, tuple[Place, ...]] = {}
        missed: list[int] = []
        more: list[OccupiedGpus] = []
        # What cannot be anywhere else comes first: others must not take its places.
        order = sorted(
            range(len(wanted)), key=lambda at: (not wanted[at].sure, not wanted[at].fixed, wanted[at].time.period)
        )
        periods = sorted({one.time.period for one in wanted if not one.sure})
        known = dict(zip(periods, reads.taken_in(periods, without), strict=True))
        for at in order:
            one = wanted[at]
            places = one.places if one.sure else _place(supply, known[one.time.period], more, one)
            if places is None:
                missed.append(at)
            else:
                found[at] = places
                more += [place.taken(one.time.period) for place in places]
        conflicts = [
            self._explained(reads, supply, more, wanted[at], without, allowed)
            if number < EXPLAINED
            else Conflict(wanted[at].time)
            for number, at in enumerate(sorted(missed, key=lambda at: wanted[at].time.period))
        ]
        return Fit(found, tuple(conflicts))

    def made(self, wish: BookingRequest, fit: Fit, state: State, *, actor: str = "") -> tuple[Reservation, ...]:
        """Return the reservations of a wish all of whose times have places."""
        series = self.new_id() if len(wish.times) > 1 else ""
        times = sorted(enumerate(wish.times), key=lambda each: each[1].period)
        return tuple(self.reservation(wish, time, fit.places[at], state, series, actor) for at, time in times)

    def reservation(
        self,
        wish: BookingRequest,
        time: Time,
        places: tuple[Place, ...],
        state: State,
        series: str = "",
        actor: str = "",
    ) -> Reservation:
        """Return a new reservation, which nobody has written yet."""
        now = self.clock()
        made = Reservation(
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
            actor=actor or wish.owner,
        )
        return by_license(made, self.store.licenses)

    def _explained(
        self,
        reads: ReservationReads,
        supply: Supply,
        more: Sequence[OccupiedGpus],
        one: Asked,
        without: Collection[str],
        allowed: Callable[[Period], bool],
    ) -> Conflict:
        """``more``: what other times of the same booking take, which may overlap each other."""
        time, need = one.time, one.need
        start, end = time.period.start - AROUND, time.period.end + AROUND
        within = Period(max(start, min(int(self.clock()), time.period.start)), end)
        capacity = _capacity(supply, within, reads.taken(within, without), more)
        if one.fixed:
            return Conflict(time, _longest(capacity, one, within, allowed))
        capacity = capacity.only(supply.open_to(one.profile, need))
        times = capacity.other_times(need, time.period, within, allowed=allowed)
        if not allowed(time.period):
            return Conflict(time, times)
        fewer = capacity.fewer_seats(need, time.period)
        types = tuple(other.type for other in capacity.other_types(need, time.period))
        return Conflict(time, times, fewer.seats if fewer else 0, types)


def asked(wish: BookingRequest) -> tuple[Asked, ...]:
    """Return a wish as its times."""
    return tuple(Asked(time, wish.need, profile=wish.profile) for time in wish.times)


def taken(conflicts: Sequence[Conflict], done: str = "booked") -> SlotTaken:
    """Return the refusal of what is not free; ``done``: what was not done with it."""
    when = "that time" if len(conflicts) == 1 else f"{len(conflicts)} of the times"
    return SlotTaken(f"These GPUs are not free at {when}. Nothing was {done}.", conflicts)


def _need_start(supply: Supply, need: Need, slug: str, account: str) -> None:
    """Refuse what sessions of a profile can never start with."""
    known = supply.profiles or {}
    if slug not in known:
        raise ProfileNotAllowed(f"There is no profile {slug}. Profiles are: {', '.join(sorted(known)) or 'none'}.")
    if sentence := misfit(known[slug], need, account):
        raise ProfileNotAllowed(sentence)
    where = supply.open_to(slug, need)
    if supply.empty.only(where).place(need, Period(0, 1)) is None:
        what = f"{need.seats} × {need.gpus or 'a whole node of'} {need.type}"
        there = {spot.node for spot in supply.spots if spot.type == need.type}
        some = len(there & {node for node, type in where or () if type == need.type})
        on = f"{some} of the {len(there)} nodes with {need.type} only" if some else f"no node with {need.type}"
        name = known[slug].display_name
        raise NoSuchGpus(f"{what} can never be booked here for “{name}”, whose sessions start on {on}.")


def _capacity(
    supply: Supply, within: Period, taken: Sequence[OccupiedGpus], more: Sequence[OccupiedGpus] = ()
) -> Capacity:
    """Return what is free within a period, of which ``taken`` is all that is booked then."""
    others = (each for each in (*supply.taken, *more) if each.period.overlaps(within))
    return supply.empty.but((*taken, *others))


def _place(
    supply: Supply, taken: Sequence[OccupiedGpus], more: Sequence[OccupiedGpus], one: Asked
) -> tuple[Place, ...] | None:
    period = one.time.period
    capacity = _capacity(supply, period, taken, more)
    where = supply.open_to(one.profile, one.need)
    stays = one.fixed or where is None or all((place.node, place.type) in where for place in one.places)
    if one.places and stays and capacity.fits(one.places, period):
        return one.places
    return None if one.fixed else capacity.only(where).place(one.need, period)


def _longest(capacity: Capacity, one: Asked, within: Period, allowed: Callable[[Period], bool]) -> tuple[Period, ...]:
    """Return until when it can keep its places, as the period from its start; () where not at all."""
    start = one.time.period.start
    ends = (part.start for part, _ in reversed(capacity.band(one.need.type, within)))
    shorter = (Period(start, end) for end in ends if start < end < one.time.period.end)
    return tuple(islice((each for each in shorter if capacity.fits(one.places, each) and allowed(each)), 1))
