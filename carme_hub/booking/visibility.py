"""Use cases that read the calendar, each with what the booker may see.

Title and people of a reservation are visible to its owner, to those for whom it is, to members of the charged account
and to administrators. All others see which GPUs are taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from carme_hub.booking import messages
from carme_hub.domain.calendar.capacity import Capacity, Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import HOLDING, Kind, Reservation, State

from .calendar import NoSuchGpus
from .context import BadBooking, Booker, BookingContext, may_change, may_see, time_taken

#: States that a calendar shows.
SHOWN = HOLDING | {State.ENDED, State.RELEASED}
#: Longest period of one query in seconds: more than a year.
MAX_PERIOD = 400 * 86_400


@dataclass(frozen=True, slots=True)
class ReservationView:
    """A reservation as the booker may see it.

    Attributes:
        period: up to its release, if it was released early. places: which GPUs of which nodes.
        reservation: the whole reservation, None if they may not see title and people.
        mine: whether it is theirs, or for them. may_change: whether they may move or cancel it.
    """

    period: Period
    state: State
    kind: Kind
    type: str
    gpus: int
    places: tuple[Place, ...]
    reservation: Reservation | None = None
    mine: bool = False
    may_change: bool = False


@dataclass(frozen=True, slots=True)
class TypeSummary:
    """GPUs of one type: how many there are, how many one seat can have at most, and how many may be booked."""

    type: str
    total: int
    seat: int
    bookable: int


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """A node that can be booked, with its GPUs by type."""

    name: str
    gpus: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SupplySummary:
    """The GPUs that can be booked.

    Attributes:
        by_node: whether Slurm reserves whole nodes only. note: what it cannot reserve exactly, as a sentence, or "".
        share: percent of each type that may be booked at one time. by_license: whether Slurm only counts them.
    """

    types: tuple[TypeSummary, ...]
    nodes: tuple[NodeSummary, ...]
    by_node: bool
    share: int
    note: str
    by_license: bool = False


def get(context: BookingContext, who: Booker, id: str) -> Reservation:
    """Return one reservation in full; see ``Bookings.get``."""
    with context.reading() as reads:
        return context.get_visible(reads, who, id)


def mine(context: BookingContext, who: Booker, since: float) -> tuple[Reservation, ...]:
    """Return the booker's reservations and those for them; drafts and pending ones only of their owner."""
    with context.reading() as reads:
        found = reads.for_user(who.user, who.accounts, who.person.groups, since)
    return tuple(each for each in found if may_see(who, each))


def between(
    context: BookingContext, who: Booker, period: Period, states: Collection[State]
) -> tuple[ReservationView, ...]:
    """Return views of the reservations within a period; those that take no GPUs only if the booker may see them."""
    check_period(period)
    with context.reading() as reads:
        found = [each for each in reads.overlapping(period, states) if each.state in SHOWN or may_see(who, each)]
    return tuple(_view(who, each, there) for each in found if (there := time_taken(each)) and there.overlaps(period))


def pending(context: BookingContext, who: Booker) -> tuple[Reservation, ...]:
    """Return pending reservations; see ``Bookings.pending``."""
    with context.reading() as reads:
        found = reads.in_states({State.PENDING})
    return tuple(each for each in found if who.admin or each.owner == who.user)


def free(context: BookingContext, period: Period, types: Sequence[str]) -> dict[str, tuple[tuple[Period, int], ...]]:
    """Return how many GPUs are free in each part of a period, by type."""
    check_period(period)
    supply = context.calendar.supply()
    with context.reading() as reads:
        capacity = context.calendar.capacity(reads, supply, period)
    if unknown := sorted(set(types) - set(capacity.types)):
        raise NoSuchGpus(f"There is no GPU of type {unknown[0][:60]!r} here that can be booked.")
    return {type: capacity.free_over_time(type, period) for type in types or capacity.types}


def supply(context: BookingContext) -> SupplySummary:
    """Return a summary of the GPUs that can be booked."""
    known = context.calendar.supply()
    capacity, nodes = Capacity(known.inventory, ()), defaultdict[str, dict[str, int]](dict)
    for item in known.inventory:
        nodes[item.node][item.type] = item.count
    return SupplySummary(
        tuple(
            TypeSummary(
                type, capacity.total(type), capacity.largest_node(type), capacity.total(type) * known.share // 100
            )
            for type in capacity.types
        ),
        tuple(NodeSummary(name, nodes[name]) for name in sorted(nodes)),
        known.by_node,
        known.share,
        messages.not_exact(known),
        known.by_license,
    )


def check_period(period: Period) -> None:
    """Raise ``BadBooking`` if a period is longer than one query may cover."""
    if period.length > MAX_PERIOD:
        raise BadBooking(f"The period may be at most {MAX_PERIOD // 86_400} days long.")


def _view(who: Booker, reservation: Reservation, period: Period) -> ReservationView:
    groups, seen = who.person.groups, may_see(who, reservation)
    return ReservationView(
        period,
        reservation.state,
        reservation.kind,
        reservation.need.type,
        reservation.gpus,
        reservation.places,
        reservation if seen else None,
        seen and reservation.kind is Kind.BOOKING and reservation.concerns(who.user, who.accounts, groups),
        may_change(who, reservation),
    )
