"""Places for bookings: free GPUs are found and reserved in one write transaction, so nothing is booked twice.

A booking gets all of its times or none. If one of them is taken, the refusal names it with alternatives. The use cases
of ``carme_hub.booking`` call it; it checks no rules of the policy.
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

#: Seconds before and after the requested time in which alternatives are searched.
SEARCH_WINDOW = 7 * 86_400
#: Conflicts of one booking that are returned with alternatives; the others have none.
MAX_EXPLAINED = 5


@dataclass(frozen=True)
class Supply:
    """The GPUs that can be booked.

    Attributes:
        inventory: the GPUs of all nodes that may be booked. taken: GPUs that something other than bookings has:
            maintenance, reservations made in Slurm, nodes that are down.
        by_node: whether Slurm reserves whole nodes only. share: percent of each type that may be booked at one time.
        by_license: whether Slurm reserves a number of GPUs by counting licenses, on any nodes.
        profiles: the site's profiles by slug, None if they are not known.
        partitions: partitions of each node, with "" if jobs without a partition start there.
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
        """The capacity without any reservation."""
        return Capacity(self.inventory, (), by_node=self.by_node, share=self.share)

    def places_for_profile(self, profile: str, need: Need) -> frozenset[tuple[str, str]] | None:
        """Return the (node, type) pairs on which sessions of a profile can have these seats; None = all."""
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
class RequestedTime:
    """One requested time. ``occurrence``: its id in a recurring booking, "" for a single one."""

    period: Period
    occurrence: str = ""


@dataclass(frozen=True, slots=True)
class BookingRequest:
    """A requested booking; see ``Reservation`` for the fields."""

    owner: str
    account: str
    title: str
    need: Need
    times: Sequence[RequestedTime]
    users: frozenset[str] = frozenset()
    group: str = ""
    everybody: bool = False
    profile: str = ""
    zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A time that is not free, with alternatives: other times, fewer seats then (0 = none), other types then."""

    time: RequestedTime
    times: tuple[Period, ...] = ()
    seats: int = 0
    types: tuple[str, ...] = ()


class SlotTaken(Refused):
    """Some requested time is not free.

    Attributes:
        conflicts: every time that is not free; the first few with alternatives.
    """

    reason = "slot-taken"

    def __init__(self, message: str, conflicts: Sequence[Conflict]) -> None:
        super().__init__(message)
        self.conflicts = tuple(conflicts)


class NoSuchGpus(Refused):
    """The cluster never has the requested GPUs."""

    reason = "no-such-gpus"


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """One time and the GPUs needed then.

    Attributes:
        places: places to keep if they are free. fixed: no others are possible, since jobs run there.
        sure: the reservation has these places for all of that time already.
        profile: the profile whose sessions are to start there, "" = any.
    """

    time: RequestedTime
    need: Need
    places: tuple[Place, ...] = ()
    fixed: bool = False
    sure: bool = False
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """Places for each requested time, by its number, and the times without places."""

    places: Mapping[int, tuple[Place, ...]]
    conflicts: tuple[Conflict, ...]


def anytime(_period: Period) -> bool:
    """Allow any period."""
    return True


@dataclass
class Calendar:
    """The calendar of one cluster. Every method may raise ``StoreError``; then nothing was written.

    Attributes:
        supply: returns the GPUs that can be booked, as last seen in Slurm.
        clock: returns epoch seconds.
    """

    store: ReservationStore
    cluster: str
    supply: Callable[[], Supply]
    clock: Callable[[], float]
    new_id: Callable[[], str] = field(default=lambda: str(uuid.uuid4()))

    async def book(self, request: BookingRequest, *, state: State = State.CONFIRMED) -> tuple[Reservation, ...]:
        """Book all times of a request, without rules and without the ledger; people book through ``Bookings``.

        Raises:
            SlotTaken: one of the times is not free; nothing is booked.
            NoSuchGpus: the cluster never has these GPUs.
        """
        return await in_store_thread(self._book, request, state)

    async def conflicts(self, request: BookingRequest) -> tuple[Conflict, ...]:
        """Return the times that are not free now; write nothing."""
        return await in_store_thread(self._conflicts, request)

    def _book(self, request: BookingRequest, state: State) -> tuple[Reservation, ...]:
        supply = self.supply_for(request.need, profile=request.profile, account=request.account)
        with self.store.transaction(self.cluster) as writes:
            placement = self.find_places(writes, supply, placement_requests(request))
            if placement.conflicts:
                raise slot_taken(placement.conflicts)
            found = self.new_reservations(request, placement, state)
            writes.add(found)
        return found

    def _conflicts(self, request: BookingRequest) -> tuple[Conflict, ...]:
        supply = self.supply_for(request.need, profile=request.profile, account=request.account)
        with self.store.reading(self.cluster) as reads:
            return self.find_places(reads, supply, placement_requests(request)).conflicts

    # -- parts of a use case, within its transaction ------------------------------------------------------------------

    def supply_for(self, need: Need, share: int = 100, *, profile: str = "", account: str = "") -> Supply:
        """Return the supply; raise ``NoSuchGpus`` or ``ProfileNotAllowed`` if the request fits at no time.

        Args:
            share: percent of each type that the booker's rules allow at one time; the site's may be less.
            profile: the profile whose sessions are to start there, "" = any. account: the charged account.
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
        """Return the capacity within a period. ``without``: ids of reservations that are about to move."""
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
        """Return places for all requested times together, and the conflicts.

        Args:
            allowed: returns whether the booker may book a period, so that no alternative is offered that would be
                refused.
        """
        found: dict[int, tuple[Place, ...]] = {}
        missed: list[int] = []
        more: list[OccupiedGpus] = []
        # Fixed places come first, so that no other request takes them.
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
        self, request: BookingRequest, placement: Placement, state: State, *, actor: str = ""
    ) -> tuple[Reservation, ...]:
        """Return the reservations of a request whose times all have places; they are not written."""
        series = self.new_id() if len(request.times) > 1 else ""
        times = sorted(enumerate(request.times), key=lambda each: each[1].period)
        return tuple(
            self.new_reservation(request, time, placement.places[at], state, series, actor) for at, time in times
        )

    def new_reservation(
        self,
        request: BookingRequest,
        time: RequestedTime,
        places: tuple[Place, ...],
        state: State,
        series: str = "",
        actor: str = "",
    ) -> Reservation:
        """Return a new reservation; it is not written."""
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
        """Return a conflict with alternatives. ``more``: places of the booking's other times, which may overlap."""
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


def placement_requests(request: BookingRequest) -> tuple[PlacementRequest, ...]:
    """Return the placement requests for the times of a booking."""
    return tuple(PlacementRequest(time, request.need, profile=request.profile) for time in request.times)


def slot_taken(conflicts: Sequence[Conflict], done: str = "booked") -> SlotTaken:
    """Return the refusal of times that are not free; ``done``: the participle of what was refused."""
    when = "that time" if len(conflicts) == 1 else f"{len(conflicts)} of the times"
    return SlotTaken(f"These GPUs are not free at {when}. Nothing was {done}.", conflicts)


def _check_profile(supply: Supply, need: Need, slug: str, account: str) -> None:
    """Raise if sessions of a profile can never start with these GPUs."""
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
    """Return the capacity within a period; ``taken`` is all that is booked then."""
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
    """Return the longest period from its start in which a reservation can keep its places; () if there is none."""
    start = one.time.period.start
    ends = (part.start for part, _ in reversed(capacity.free_over_time(one.need.type, within)))
    shorter = (Period(start, end) for end in ends if start < end < one.time.period.end)
    return tuple(islice((each for each in shorter if capacity.fits(one.places, each) and allowed(each)), 1))
