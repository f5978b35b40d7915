"""Representation of bookings in REST: what a viewer may see of each, and may do with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from carme_hub.booking.bookings import Booker, ReservationView
from carme_hub.booking.calendar import Conflict
from carme_hub.domain.calendar.capacity import Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import PROMISED, Kind, Reservation, State, by_type
from carme_hub.services.reservations.rest.models import BookingOut, ConflictOut, PlaceOut, SpanOut

May = Literal["move", "cancel", "release", "decide"]


@dataclass(frozen=True, slots=True)
class Viewer:
    """A visitor who reads bookings.

    Attributes:
        who: the visitor; ``admin`` if they may see all bookings. writes: whether their token allows changes.
        decides: whether they may change all bookings. price: returns the price of a reservation, None if there is no
            ledger of GPU time.
    """

    who: Booker
    writes: bool
    decides: bool = False
    price: Callable[[Reservation], int] | None = None

    def booking(self, one: Reservation) -> BookingOut:
        """Return a reservation that they may see in full."""
        person = self.who.person
        mine = one.owner == person.user
        invited = one.concerns(person.user, self.who.accounts, person.groups)
        return BookingOut(
            id=one.id,
            kind=one.kind.value,
            state=one.state.value,
            title=one.title,
            owner=one.owner,
            account=one.account,
            gpu_type=one.need.type,
            gpus=one.need.gpus,
            seats=one.need.seats,
            total=one.gpus,
            by_type=one.by_type,
            start=one.period.start,
            end=one.period.end,
            zone=one.zone,
            series=one.series,
            occurrence=one.occurrence,
            users=sorted(one.users),
            group=one.group,
            everybody=one.everybody,
            profile=one.profile,
            places=places(one.places),
            waits=one.waits,
            problem=one.problem,
            reason=one.reason,
            actor=one.actor,
            created=int(one.created),
            changed=int(one.changed),
            used=int(one.used),
            ended=int(one.ended),
            version=one.version,
            hidden=False,
            mine=mine,
            invited=invited,
            may=may(one, mine=mine, admin=self.decides) if self.writes else [],
            amount=self.price(one) if self.price is not None and one.kind is Kind.BOOKING else None,
            slurm=list(one.names()) if one.state in PROMISED else [],
        )

    def bookings(self, found: Iterable[Reservation]) -> list[BookingOut]:
        """Return reservations that they may see in full, by start."""
        return [self.booking(each) for each in sorted(found, key=lambda one: (one.period, one.id))]

    def view(self, seen: ReservationView) -> BookingOut:
        """Return a view: the whole reservation, or only its time and GPUs."""
        if seen.reservation is not None:
            return self.booking(seen.reservation)
        return BookingOut(
            id="",
            kind=seen.kind.value,
            state=seen.state.value,
            title="",
            owner="",
            account="",
            gpu_type=seen.type,
            gpus=0,
            seats=0,
            total=seen.gpus,
            by_type=by_type(seen.places),
            start=seen.period.start,
            end=seen.period.end,
            zone="",
            series="",
            occurrence="",
            users=[],
            group="",
            everybody=False,
            profile="",
            places=places(seen.places),
            waits=False,
            problem="",
            reason="",
            actor="",
            created=0,
            changed=0,
            used=0,
            ended=0,
            version=0,
            hidden=True,
            mine=False,
            invited=False,
            may=[],
            amount=None,
            slurm=[],
        )


def may(one: Reservation, *, mine: bool, admin: bool) -> list[May]:
    """Return what its owner, or an administrator, can do with a reservation in its current state."""
    found: list[May] = []
    if mine or admin:
        if one.state in (State.PENDING, State.CONFIRMED, State.ACTIVE):
            found.append("move")
        if one.state in (State.DRAFT, State.PENDING, State.CONFIRMED):
            found.append("cancel")
        if one.state is State.ACTIVE:
            found.append("release")
    return [*found, "decide"] if admin and one.state is State.PENDING else found


def places(found: Collection[Place]) -> list[PlaceOut]:
    """Return the places on each node."""
    return [
        PlaceOut(
            node=each.node,
            gpu_type=each.type,
            gpus=each.count,
            seats=each.seats,
            whole=each.whole,
            also=dict(each.also),
        )
        for each in found
    ]


def span(period: Period) -> SpanOut:
    """Return a period."""
    return SpanOut(start=period.start, end=period.end)


def conflict(found: Conflict) -> ConflictOut:
    """Return a time that is not free, with its alternatives."""
    return ConflictOut(
        start=found.time.period.start,
        end=found.time.period.end,
        occurrence=found.time.occurrence,
        times=[span(each) for each in found.times],
        seats=found.seats,
        types=list(found.types),
    )
