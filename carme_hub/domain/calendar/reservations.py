"""Reservations: GPUs on nodes for some people and a period, with their states and transitions. Pure.

The store, ``carme_hub.booking``, the reservations service and the start form work with these values.
"""

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
    """The state of a reservation; the last three are final."""

    DRAFT = "draft"  # not booked yet; occupies nothing
    PENDING = "pending"  # waits for an approval, and keeps its places meanwhile
    CONFIRMED = "confirmed"  # in the future; Slurm has it or gets it now
    ACTIVE = "active"  # its time is now
    ENDED = "ended"  # its time is over
    CANCELLED = "cancelled"  # cancelled, or not approved
    RELEASED = "released"  # ended early: unused, or not needed any more


class Kind(Enum):
    """What a reservation is for."""

    BOOKING = "booking"  # for a user's work
    MAINTENANCE = "maintenance"  # no jobs run there; no account pays, and it may overlap bookings


#: States in which a reservation occupies its GPUs.
HOLDING = frozenset({State.PENDING, State.CONFIRMED, State.ACTIVE})
#: States in which Slurm has to have the reservation.
PROMISED = frozenset({State.CONFIRMED, State.ACTIVE})
_NEXT = {
    State.DRAFT: {State.PENDING, State.CONFIRMED, State.CANCELLED},
    State.PENDING: {State.CONFIRMED, State.CANCELLED},
    State.CONFIRMED: {State.ACTIVE, State.ENDED, State.CANCELLED},
    State.ACTIVE: {State.ENDED, State.RELEASED},
}


def stem_of_id(id: str) -> str:
    """Return the beginning of all names that a reservation has in Slurm."""
    return f"{PREFIX}{id.replace('-', '')[:16]}"


class NotPossible(Refused):
    """The reservation's state does not allow what is requested."""

    reason = "not-possible"


@dataclass(frozen=True, slots=True)
class Reservation:
    """One period of one booking; a recurring booking has several. Times are UTC epoch seconds.

    Attributes:
        owner: who booked it. account: the account that pays, and that jobs in the reservation are charged to.
        users, group: who may use it besides the owner; a hub group counts with its current members. everybody: all
            users of the account may use it.
        profile: the profile of sessions in its seats, "" for any. zone: IANA zone of the booking, for messages.
        series, occurrence: the recurring booking and the id of its occurrence, "" for a single booking.
        version: increases with each change; a change of an older version is refused.
        reason, actor: of the last transition. used: when the first job in it was seen, 0 = none yet.
        ended: when it ended early, 0 otherwise.
        waits: a draft on the waitlist, which is booked when its GPUs become free.
        problem: why it cannot be kept as promised, for its owner; "" if it can.
        license: the Slurm licence that counts its GPUs, on any nodes; "" = its places count.
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
        """Return a copy with changes."""
        return replace(self, **changes)

    def in_state(self, state: State, now: float, *, actor: str, reason: str = "") -> Reservation:
        """Return the reservation after a transition to another state.

        Raises:
            NotPossible: the transition is not allowed.
        """
        if state not in _NEXT.get(self.state, ()):
            raise NotPossible(f"“{self.title}” is {self.state.value}, and cannot be {state.value} any more.")
        over = now if state in (State.CANCELLED, State.RELEASED) else 0.0
        return self.replace(state=state, changed=now, actor=actor, reason=reason, ended=over, version=self.version + 1)

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of all types; a whole node counts with all its GPUs."""
        return sum(place.gpus for place in self.places)

    @property
    def own_type_gpus(self) -> int:
        """Return the number of GPUs of the type that was booked."""
        return sum(place.count for place in self.places)

    @property
    def by_type(self) -> dict[str, int]:
        """Return the number of GPUs by type, the booked type first."""
        return by_type(self.places)

    @property
    def gpu_seconds(self) -> int:
        """Return GPUs × seconds of its whole period."""
        return self.gpus * self.period.length

    def concerns(self, user: str, accounts: Collection[str], groups: Collection[str]) -> bool:
        """Return whether a user booked it, or may use it personally, by a group, or by an account."""
        listed = user == self.owner or user in self.users or bool(self.group and self.group in groups)
        return listed or (self.everybody and self.account in accounts)

    def occupied(self) -> tuple[OccupiedGpus, ...]:
        """Return what it occupies: nothing in states outside of ``HOLDING``."""
        return tuple(place.occupied(self.period) for place in self.places) if self.state in HOLDING else ()

    def names(self) -> tuple[str, ...]:
        """Return the names of its reservations in Slurm, also after it has ended."""
        return tuple(f"{self.stem}-{number}" for number, _ in enumerate(self._parts()))

    @property
    def stem(self) -> str:
        """Return the beginning of all its names in Slurm, also of places that it had earlier."""
        return stem_of_id(self.id)

    @property
    def nodes(self) -> frozenset[str]:
        """Return the nodes that it is on."""
        return frozenset(place.node for place in self.places)

    def slurm_reservations(self, members: Collection[str] = ()) -> tuple[SlurmReservation, ...]:
        """Return the reservations that Slurm has to have: none in states outside of ``PROMISED``.

        Args:
            members: the current members of its group.
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
        """Return the places of each reservation in Slurm: one for all whole nodes, one per node with single GPUs.

        A reservation by licences, and maintenance, is one reservation.
        """
        if self.kind is Kind.MAINTENANCE or self.license:
            return (self.places,) if self.places else ()
        whole = tuple(place for place in self.places if place.whole)
        return (*((whole,) if whole else ()), *((place,) for place in self.places if not place.whole))


def by_type(places: Collection[Place]) -> dict[str, int]:
    """Return the number of GPUs by type; the types that were booked come first."""
    found: dict[str, int] = {}
    others = (other for place in places for other in place.also)
    for type, count in (*((place.type, place.count) for place in places), *others):
        found[type] = found.get(type, 0) + count
    return found


def jobs_past_start(reservation: Reservation, jobs: Iterable[Job]) -> tuple[Job, ...]:
    """Return the jobs of sessions on its nodes whose time limits end after its start.

    Their users are notified before a maintenance, because these jobs end with the node.
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
