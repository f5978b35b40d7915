"""Nobody books what somebody else has: what is free is looked at and taken in one write transaction.

A booking is all of its times or none. Where one of them is taken, the answer names it and what could be had instead.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

from carme_hub.domain.calendar.capacity import Capacity, GpuInventory, Need, OccupiedGpus, Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.profile_placement import mismatch, places_for
from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.domain.sessions.profile import Profile
from carme_hub.errors import ProfileNotAllowed, Refused
from carme_hub.store.reservations import ReservationReads, ReservationStore, by_license
from carme_hub.store.threads import in_store_thread

#: Seconds before and after the wanted time in which another one is looked for.
SEARCH_WINDOW = 7 * 86_400
#: Conflicts of one booking that are told with what could be had instead; the others are told alone.
MAX_EXPLAINED = 5


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

    inventory: Sequence[GpuInventory]
    taken: Sequence[OccupiedGpus] = ()
    by_node: bool = False
    share: int = 100
    by_license: bool = False
    profiles: Mapping[str, Profile] | None = None
    partitions: Mapping[str, Collection[str]] = field(default_factory=dict)

    @cached_property
    def empty(self) -> Capacity:
        """All of it, while nobody has anything."""
        return Capacity(self.inventory, (), by_node=self.by_node, share=self.share)

    def places_for_profile(self, profile: str, need: Need) -> frozenset[tuple[str, str]] | None:
        """Return the nodes on which sessions of a profile can have such seats, and of which types; None = all."""
        known = self.profiles.get(profile) if profile and self.profiles is not None else None
        if known is None:
            return None
        if (key := (profile, need.gpus)) not in self._profile_places:
            inventory = (replace(item, exclusive=item.exclusive or self.by_node) for item in self.inventory)
            self._profile_places[key] = places_for(known, need, inventory, self.partitions)
        return self._profile_places[key]

    @cached_property
    def _profile_places(self) -> dict[tuple[str, int], frozenset[tuple[str, str]]]:
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
class PlacementRequest:
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
class Placement:
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

    async def book(self, request: BookingRequest, *, state: State = State.CONFIRMED) -> tuple[Reservation, ...]:
        """Book all times of a wish, by no rule and for no money: ``Bookings`` is the door for people.

        Raises:
            SlotTaken: one of them is not free; nothing is booked.
            NoSuchGpus: they never are.
        """
        return await in_store_thread(self._book, request, state)

    async def conflicts(self, request: BookingRequest) -> tuple[Conflict, ...]:
        """Return the times that could not be had now; nothing is written."""
        return await in_store_thread(self._conflicts, request)

    def _book(self, request: BookingRequest, state: State) -> tuple[Reservation, ...]:
        supply = self.supply_for(request.need, profile=request.profile, account=request.account)
        with self.store.transaction(self.cluster) as writes:
            find_places = self.find_places(writes, supply, asked(request))
            if find_places.conflicts:
                raise slot_taken(find_places.conflicts)
            found = self.new_reservations(request, find_places, state)
            writes.add(found)
        return found

    def _conflicts(self, request: BookingRequest) -> tuple[Conflict, ...]:
        supply = self.supply_for(request.need, profile=request.profile, account=request.account)
        with self.store.reading(self.cluster) as reads:
            return self.find_places(reads, supply, asked(request)).conflicts

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
            _check_profile(supply, need, profile, account)
        return supply

    def capacity(
        self, reads: ReservationReads, supply: Supply, within: Period, without: Collection[str] = ()
    ) -> Capacity:
        """Return what is free within a period. ``without``: ids of what is about to be somewhere else."""
        return _capacity(supply, within, reads.occupied(within, without))

    def find_places(
        self,
        reads: ReservationReads,
        supply: Supply,
        wanted: Sequence[PlacementRequest],
        without: Collection[str] = (),
        *,
        allowed: Callable[[Period], bool] = anytime,
    ) -> Placement:
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
        known = dict(zip(periods, reads.occupied_in(periods, without), strict=True))
        for at in order:
            one = wanted[at]
            places = one.places if one.sure else _place(supply, known[one.time.period], more, one)
            if places is None:
                missed.append(at)
            else:
                found[at] = places
                more += [place.occupied(one.time.period) for place in places]
        conflicts = [
            self._conflict(reads, supply, more, wanted[at], without, allowed)
            if number < MAX_EXPLAINED
            else Conflict(wanted[at].time)
            for number, at in enumerate(sorted(missed, key=lambda at: wanted[at].time.period))
        ]
        return Placement(found, tuple(conflicts))

    def new_reservations(
        self, request: BookingRequest, find_places: Placement, state: State, *, actor: str = ""
    ) -> tuple[Reservation, ...]:
        """Return the reservations of a wish all of whose times have places."""
        series = self.new_id() if len(request.times) > 1 else ""
        times = sorted(enumerate(request.times), key=lambda each: each[1].period)
        return tuple(
            self.new_reservation(request, time, find_places.places[at], state, series, actor) for at, time in times
        )

    def new_reservation(
        self,
        request: BookingRequest,
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
            owner=request.owner,
            account=request.account,
            title=request.title,
            need=request.need,
            period=time.period,
            places=places,
            state=state,
            created=now,
            users=request.users,
            group=request.group,
            everybody=request.everybody,
            profile=request.profile,
            zone=request.zone,
            series=series,
            occurrence=time.occurrence,
            changed=now,
            actor=actor or request.owner,
        )
        return by_license(made, self.store.licenses)

    def _conflict(
        self,
        reads: ReservationReads,
        supply: Supply,
        more: Sequence[OccupiedGpus],
        one: PlacementRequest,
        without: Collection[str],
        allowed: Callable[[Period], bool],
    ) -> Conflict:
        """``more``: what other times of the same booking take, which may overlap each other."""
        time, need = one.time, one.need
        start, end = time.period.start - SEARCH_WINDOW, time.period.end + SEARCH_WINDOW
        within = Period(max(start, min(int(self.clock()), time.period.start)), end)
        capacity = _capacity(supply, within, reads.occupied(within, without), more)
        if one.fixed:
            return Conflict(time, _shortened(capacity, one, within, allowed))
        capacity = capacity.restricted_to(supply.places_for_profile(one.profile, need))
        times = capacity.other_times(need, time.period, within, allowed=allowed)
        if not allowed(time.period):
            return Conflict(time, times)
        fewer = capacity.fewer_seats(need, time.period)
        types = tuple(other.type for other in capacity.other_types(need, time.period))
        return Conflict(time, times, fewer.seats if fewer else 0, types)


def asked(request: BookingRequest) -> tuple[PlacementRequest, ...]:
    """Return a wish as its times."""
    return tuple(PlacementRequest(time, request.need, profile=request.profile) for time in request.times)


def slot_taken(conflicts: Sequence[Conflict], done: str = "booked") -> SlotTaken:
    """Return the refusal of what is not free; ``done``: what was not done with it."""
    when = "that time" if len(conflicts) == 1 else f"{len(conflicts)} of the times"
    return SlotTaken(f"These GPUs are not free at {when}. Nothing was {done}.", conflicts)


def _check_profile(supply: Supply, need: Need, slug: str, account: str) -> None:
    """Refuse what sessions of a profile can never start with."""
    known = supply.profiles or {}
    if slug not in known:
        raise ProfileNotAllowed(f"There is no profile {slug}. Profiles are: {', '.join(sorted(known)) or 'none'}.")
    if sentence := mismatch(known[slug], need, account):
        raise ProfileNotAllowed(sentence)
    where = supply.places_for_profile(slug, need)
    if supply.empty.restricted_to(where).place(need, Period(0, 1)) is None:
        what = f"{need.seats} × {need.gpus or 'a whole node of'} {need.type}"
        there = {item.node for item in supply.inventory if item.type == need.type}
        some = len(there & {node for node, type in where or () if type == need.type})
        on = f"{some} of the {len(there)} nodes with {need.type} only" if some else f"no node with {need.type}"
        name = known[slug].display_name
        raise NoSuchGpus(f"{what} can never be booked here for “{name}”, whose sessions start on {on}.")


def _capacity(
    supply: Supply, within: Period, taken: Sequence[OccupiedGpus], more: Sequence[OccupiedGpus] = ()
) -> Capacity:
    """Return what is free within a period, of which ``taken`` is all that is booked then."""
    others = (each for each in (*supply.taken, *more) if each.period.overlaps(within))
    return supply.empty.with_occupied((*taken, *others))


def _place(
    supply: Supply, taken: Sequence[OccupiedGpus], more: Sequence[OccupiedGpus], one: PlacementRequest
) -> tuple[Place, ...] | None:
    period = one.time.period
    capacity = _capacity(supply, period, taken, more)
    where = supply.places_for_profile(one.profile, one.need)
    stays = one.fixed or where is None or all((place.node, place.type) in where for place in one.places)
    if one.places and stays and capacity.fits(one.places, period):
        return one.places
    return None if one.fixed else capacity.restricted_to(where).place(one.need, period)


def _shortened(
    capacity: Capacity, one: PlacementRequest, within: Period, allowed: Callable[[Period], bool]
) -> tuple[Period, ...]:
    """Return until when it can keep its places, as the period from its start; () where not at all."""
    start = one.time.period.start
    ends = (part.start for part, _ in reversed(capacity.free_over_time(one.need.type, within)))
    shorter = (Period(start, end) for end in ends if start < end < one.time.period.end)
    return tuple(islice((each for each in shorter if capacity.fits(one.places, each) and allowed(each)), 1))
