"""Who may see what of the calendar.

Titles and people are for who booked, for whom it is, for who is charged with them, and for administrators. Everybody
else sees that GPUs are taken, and which.
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
#: Seconds that are looked at at once: a year and some.
MAX_PERIOD = 400 * 86_400


@dataclass(frozen=True, slots=True)
class ReservationView:
    """A reservation as somebody may see it.

    Attributes:
        period: until it was over, where it was given back early. places: which GPUs of which nodes.
        reservation: the whole, None where they may not see title and people.
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
    """GPUs of one type: how many there are, the most of them that one seat may have, and how many may be booked."""

    type: str
    total: int
    seat: int
    bookable: int


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """A node that can be booked: its GPUs by type."""

    name: str
    gpus: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SupplySummary:
    """What can be booked at all.

    Attributes:
        by_node: whether Slurm keeps whole nodes only. note: what it cannot keep exactly, as a sentence, "" = nothing.
        share: percent of each type that may be booked at one moment. by_license: whether Slurm keeps their number only.
    """

    types: tuple[TypeSummary, ...]
    nodes: tuple[NodeSummary, ...]
    by_node: bool
    share: int
    note: str
    by_license: bool = False


def get(context: BookingContext, who: Booker, id: str) -> Reservation:
    """Return one whole."""
    with context.reading() as reads:
        return context.get_visible(reads, who, id)


def mine(context: BookingContext, who: Booker, since: float) -> tuple[Reservation, ...]:
    """Return what is theirs, or for them. What is not certain yet is its owner's alone."""
    with context.reading() as reads:
        found = reads.concerning(who.user, who.accounts, who.person.groups, since)
    return tuple(each for each in found if may_see(who, each))


def between(context: BookingContext, who: Booker, period: Period, states: Collection[State]) -> tuple[ReservationView, ...]:
    """Return views of what is booked within a period; what takes nothing from others concerns no others."""
    check_period(period)
    with context.reading() as reads:
        found = [each for each in reads.overlapping(period, states) if each.state in SHOWN or may_see(who, each)]
    return tuple(_view(who, each, there) for each in found if (there := time_taken(each)) and there.overlaps(period))


def pending(context: BookingContext, who: Booker) -> tuple[Reservation, ...]:
    """Return what waits for an approval."""
    with context.reading() as reads:
        found = reads.in_states({State.PENDING})
    return tuple(each for each in found if who.admin or each.owner == who.user)


def free(context: BookingContext, period: Period, types: Sequence[str]) -> dict[str, tuple[tuple[Period, int], ...]]:
    """Return how many GPUs are free, by type."""
    check_period(period)
    supply = context.calendar.supply()
    with context.reading() as reads:
        capacity = context.calendar.capacity(reads, supply, period)
    if unknown := sorted(set(types) - set(capacity.types)):
        raise NoSuchGpus(f"There is no GPU of type {unknown[0][:60]!r} here that can be booked.")
    return {type: capacity.free_over_time(type, period) for type in types or capacity.types}


def supply(context: BookingContext) -> SupplySummary:
    """Return what can be booked at all."""
    known = context.calendar.supply()
    capacity, nodes = Capacity(known.inventory, ()), defaultdict[str, dict[str, int]](dict)
    for item in known.inventory:
        nodes[item.node][item.type] = item.count
    return SupplySummary(
        tuple(
            TypeSummary(type, capacity.total(type), capacity.largest_node(type), capacity.total(type) * known.share // 100)
            for type in capacity.types
        ),
        tuple(NodeSummary(name, nodes[name]) for name in sorted(nodes)),
        known.by_node,
        known.share,
        messages.not_exact(known),
        known.by_license,
    )


def check_period(period: Period) -> None:
    """Refuse to look at more than a calendar shows."""
    if period.length > MAX_PERIOD:
        raise BadBooking(f"At most {MAX_PERIOD // 86_400} days are looked at at once.")


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
