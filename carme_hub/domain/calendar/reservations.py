"""A reservation: GPUs on nodes for some people, from one moment to another, and what may become of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job, Phase
from carme_hub.errors import Refused

from .capacity import Need, OccupiedGpus, Place
from .periods import Period
from .slurm_reservations import LICENSE_ONLY_FLAGS, OWN_MAINTENANCE_FLAGS, PREFIX, SlurmReservation


class State(Enum):
    """Where a reservation stands; the last three are final."""

    DRAFT = "draft"  # being put together; takes nothing from anybody
    PENDING = "pending"  # waits for an approval, and keeps its place meanwhile
    CONFIRMED = "confirmed"  # will be, and Slurm knows of it or is being told
    ACTIVE = "active"  # its time is now
    ENDED = "ended"  # its time is over
    CANCELLED = "cancelled"  # somebody took it back, or did not approve it
    RELEASED = "released"  # given back in its time: unused, or not needed any more


class Kind(Enum):
    """What a reservation is for."""

    BOOKING = "booking"  # somebody's work
    MAINTENANCE = "maintenance"  # nobody's jobs run there; no account pays, and it may lie over bookings


#: States in which it takes its GPUs from others.
HOLDING = frozenset({State.PENDING, State.CONFIRMED, State.ACTIVE})
#: States in which Slurm is to have it.
PROMISED = frozenset({State.CONFIRMED, State.ACTIVE})
_NEXT = {
    State.DRAFT: {State.PENDING, State.CONFIRMED, State.CANCELLED},
    State.PENDING: {State.CONFIRMED, State.CANCELLED},
    State.CONFIRMED: {State.ACTIVE, State.ENDED, State.CANCELLED},
    State.ACTIVE: {State.ENDED, State.RELEASED},
}


def stem_of_id(id: str) -> str:
    """Return how all names in Slurm of a reservation begin."""
    return f"{PREFIX}{id.replace('-', '')[:16]}"


class NotPossible(Refused):
    """What is asked cannot be done with the reservation as it stands."""

    reason = "not-possible"


@dataclass(frozen=True, slots=True)
class Reservation:
    """One period of one booking; of a booking that comes again there are several. Times are UTC epoch seconds.

    Attributes:
        owner: who booked it. account: who pays; jobs in it are charged to that.
        users, group: for whom it is, besides the owner; a hub group's members are those of the moment. everybody: for
            all users of the account.
        profile: with which its seats are started, "" for any. zone: IANA zone in which it was booked, for its words.
        series, occurrence: what it comes from and which time of that it is, "" for what comes once.
        version: one more with each change; a change of an older version is refused.
        reason, actor: of the last change of state. used: when the first job in it was seen, 0 = none yet.
        ended: when it was over before its time, 0 otherwise.
        waits: of a draft: it is on the waitlist, and is booked when its GPUs become free.
        problem: why it cannot be kept as it was promised, for its owner; "" while it can.
        license: the licence of Slurm by which the site has its GPUs kept now, wherever they are; "" = its places are.
    """

    id: str
    cluster: str
    owner: str
    account: str
    title: str
    need: Need
    period: Period
    places: tuple[Place, ...]
    state: State
    created: float
    users: frozenset[str] = frozenset()
    group: str = ""
    everybody: bool = False
    profile: str = ""
    zone: str = "UTC"
    series: str = ""
    occurrence: str = ""
    version: int = 1
    changed: float = 0.0
    reason: str = ""
    actor: str = ""
    used: float = 0.0
    ended: float = 0.0
    kind: Kind = Kind.BOOKING
    waits: bool = False
    problem: str = ""
    license: str = ""

    def replace(self, **changes: Any) -> Reservation:
        """Return the same with changes."""
        return replace(self, **changes)

    def in_state(self, state: State, now: float, *, actor: str, reason: str = "") -> Reservation:
        """Return it in another state.

        Raises:
            NotPossible: what it is cannot become that.
        """
        if state not in _NEXT.get(self.state, ()):
            raise NotPossible(f"“{self.title}” is {self.state.value}, and cannot be {state.value} any more.")
        over = now if state in (State.CANCELLED, State.RELEASED) else 0.0
        return self.replace(state=state, changed=now, actor=actor, reason=reason, ended=over, version=self.version + 1)

    @property
    def gpus(self) -> int:
        """Return how many GPUs it takes, of all types: with a whole node go all that it has."""
        return sum(place.gpus for place in self.places)

    @property
    def own_type_gpus(self) -> int:
        """Return how many GPUs of its own type it takes."""
        return sum(place.count for place in self.places)

    @property
    def by_type(self) -> dict[str, int]:
        """Return how many GPUs of each type it takes, its own type first."""
        return by_type(self.places)

    @property
    def gpu_seconds(self) -> int:
        """Return GPUs × seconds of its whole period."""
        return self.gpus * self.period.length

    def concerns(self, user: str, accounts: Collection[str], groups: Collection[str]) -> bool:
        """Return whether it was booked by a user, or for them, their groups, or all users of an account of theirs."""
        listed = user == self.owner or user in self.users or bool(self.group and self.group in groups)
        return listed or (self.everybody and self.account in accounts)

    def occupied(self) -> tuple[OccupiedGpus, ...]:
        """Return what it takes from others: nothing in states in which it holds nothing."""
        return tuple(place.occupied(self.period) for place in self.places) if self.state in HOLDING else ()

    def names(self) -> tuple[str, ...]:
        """Return the names that its reservations in Slurm have, also those that it had before it was over."""
        return tuple(f"{self.stem}-{number}" for number, _ in enumerate(self._parts()))

    @property
    def stem(self) -> str:
        """Return how all its names in Slurm begin, also those of places that it does not have any more."""
        return stem_of_id(self.id)

    @property
    def nodes(self) -> frozenset[str]:
        """Return the nodes that it is on."""
        return frozenset(place.node for place in self.places)

    def slurm_reservations(self, members: Collection[str] = ()) -> tuple[SlurmReservation, ...]:
        """Return what Slurm is to have: nothing where nothing is promised.

        Args:
            members: who is in its group now.
        """
        if self.state not in PROMISED or not self.places:
            return ()
        if self.kind is Kind.MAINTENANCE:
            root = frozenset({"root"})
            return (
                SlurmReservation(self.names()[0], self.period, self.nodes, users=root, flags=OWN_MAINTENANCE_FLAGS),
            )
        users = frozenset() if self.everybody else frozenset({self.owner, *self.users, *members})
        accounts = frozenset({self.account})
        if self.license:
            wanted = SlurmReservation(self.names()[0], self.period, frozenset(), users=users, accounts=accounts)
            return (replace(wanted, flags=LICENSE_ONLY_FLAGS, licenses={self.license: self.own_type_gpus}),)
        return tuple(
            SlurmReservation(
                name,
                self.period,
                frozenset(place.node for place in part),
                {} if part[0].whole else {place.type: place.count for place in part},
                0 if part[0].whole else sum(place.cpus for place in part),
                users,
                accounts,
            )
            for name, part in zip(self.names(), self._parts(), strict=True)
        )

    def _parts(self) -> tuple[tuple[Place, ...], ...]:
        """Return the places that are one reservation in Slurm: all whole nodes, but each node with single GPUs.

        By licences they are one all together.
        """
        if self.kind is Kind.MAINTENANCE or self.license:
            return (self.places,) if self.places else ()
        whole = tuple(place for place in self.places if place.whole)
        return (*((whole,) if whole else ()), *((place,) for place in self.places if not place.whole))


def by_type(places: Collection[Place]) -> dict[str, int]:
    """Return how many GPUs of each type places take; the types that were asked for come first."""
    found: dict[str, int] = {}
    others = (other for place in places for other in place.also)
    for type, count in (*((place.type, place.count) for place in places), *others):
        found[type] = found.get(type, 0) + count
    return found


def jobs_past_start(reservation: Reservation, jobs: Iterable[Job]) -> tuple[Job, ...]:
    """Return the jobs of sessions that run on its nodes and may do so past its start, by their time limits.

    Who has one of them is told before a maintenance: such a job ends with the node.
    """
    start = reservation.period.start
    return tuple(
        job
        for job in jobs
        if job.phase is Phase.ACTIVE
        and job.name.startswith(JOB_NAME_PREFIX)
        and (job.end > start or not job.end)
        and not reservation.nodes.isdisjoint(job.nodes)
    )
