"""Pydantic models of requests and answers of the REST interface; the OpenAPI document is made from them.

A time in a request is either UTC epoch seconds, or a time on the wall clock of the given zone; all answers have UTC
epoch seconds. GPU time is in whole milli-GPU-seconds.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from carme_hub.services.fields import Error, Moment, Name, RequestBody, Whole

_TITLE = r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f\x85][^\x00-\x1f\x7f]*$"
_WALL = r"^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?$"
#: A UUID of ours.
ID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"

Wall = Annotated[str, Field(pattern=_WALL, description="a time on the zone's wall clock, such as 2026-11-24T09:00")]
When = Moment | Wall
Zone = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$", description="IANA time zone")]
Title = Annotated[str, Field(min_length=1, max_length=200, pattern=_TITLE)]
GpuType = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
Seat = Annotated[int, Field(ge=0, le=1024, description="GPUs of one seat; 0 is a whole node of this type"), Whole]
Seats = Annotated[int, Field(ge=1, le=1024), Whole]
Version = Annotated[int, Field(ge=1, le=2**31 - 1, description="the version that the caller has read"), Whole]
Said = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00]*$")]
NodeName = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
#: Of a recurring booking: this time only, this one and the later ones, or all.
Series = Literal["one", "later", "all"]
State = Literal["draft", "pending", "confirmed", "active", "ended", "cancelled", "released"]


class AskIn(RequestBody):
    """A requested booking. ``rule`` is an RRULE of RFC 5545 with COUNT or UNTIL, "" for a single time.

    ``account``: the charged account, by default the visitor's first one. ``owner``: the user for whom an administrator
    books; all others leave it out. ``group``: a hub group, ``users``: more people,
    ``everybody``: all users of the account; they may start sessions in it, as the owner may. ``profile``: the profile
    of its seats, "" for any. ``without``: starts of ``rule`` on the wall clock that are left out.
    """

    title: Title
    gpu_type: GpuType
    gpus: Seat
    seats: Seats = 1
    start: When
    end: When
    zone: Zone = "UTC"
    rule: Annotated[str, Field(max_length=300, pattern=r"^[A-Za-z0-9=;,:+-]*$")] = ""
    without: Annotated[list[Wall], Field(max_length=366)] = []
    account: Name | None = None
    owner: Name | None = None
    users: Annotated[list[Name], Field(max_length=500)] = []
    group: Annotated[str, Field(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    everybody: bool = False
    profile: Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$")] = ""


class BookIn(AskIn):
    """A booking. ``wait``: if GPUs are taken, put it on the waitlist."""

    wait: bool = False


class CheckIn(AskIn):
    """A booking to preview. ``instead_of``: the id of the booking that would be moved to this."""

    instead_of: Annotated[str, Field(pattern=rf"^$|{ID}")] = ""


class MoveIn(RequestBody):
    """A change of a booking; omitted fields stay. ``start`` and ``end`` are those of the booking in the path."""

    version: Version
    start: When | None = None
    end: When | None = None
    zone: Zone | None = None
    gpu_type: GpuType | None = None
    gpus: Seat | None = None
    seats: Seats | None = None
    title: Title | None = None
    series: Series = "one"


class CancelIn(RequestBody):
    """The cancellation of a booking before it starts."""

    series: Series = "one"
    reason: Said = ""


class ReleaseIn(RequestBody):
    """The release of a booking that has begun."""

    reason: Said = ""


class DecisionIn(RequestBody):
    """The decision on all times of a pending booking."""

    decision: Literal["approve", "deny"]
    reason: Said = ""


class MaintenanceIn(RequestBody):
    """Nodes on which no jobs run for a time. Owners of bookings there are notified."""

    nodes: Annotated[list[NodeName], Field(min_length=1, max_length=10_000)]
    start: When
    end: When
    zone: Zone = "UTC"
    title: Title = "Maintenance"


class FeedIn(RequestBody):
    """A new secret address of the visitor's own bookings; the previous one becomes invalid."""


class SpanOut(BaseModel):
    """From ``start`` to before ``end``."""

    start: int
    end: int


class PlaceOut(BaseModel):
    """The GPUs of a booking on one node. ``whole``: the whole node is booked; ``also``: its GPUs of other types."""

    node: str
    gpu_type: str
    gpus: int
    seats: int
    whole: bool
    also: dict[str, int] = {}


class BookingOut(BaseModel):
    """One time of a booking.

    Attributes:
        hidden: the visitor may not see people and title: id, title, owner and the like are "".
        mine: the visitor owns it. invited: it is for the visitor, who may start sessions in it.
        gpus: of one seat, 0 = whole nodes; total: all its GPUs, and by_type: how many of each type, its own first.
        series: "" for a single booking.
        waits: a draft on the waitlist. problem: why it cannot be kept as booked, "" while it can.
        may: what the visitor may do with it now. amount: milli-GPU-seconds × price of its whole period, null if it is
            hidden or there is no ledger of GPU time.
        slurm: names of its reservations in Slurm, once they are due there.
    """

    id: str
    kind: Literal["booking", "maintenance"]
    state: State
    title: str
    owner: str
    account: str
    gpu_type: str
    gpus: int
    seats: int
    total: int
    by_type: dict[str, int] = {}
    start: int
    end: int
    zone: str
    series: str
    occurrence: str
    users: list[str]
    group: str
    everybody: bool
    profile: str
    places: list[PlaceOut]
    waits: bool
    problem: str
    reason: str
    actor: str
    created: int
    changed: int
    used: int
    ended: int
    version: int
    hidden: bool
    mine: bool
    invited: bool
    may: list[Literal["move", "cancel", "release", "decide"]]
    amount: int | None
    slurm: list[str]


class BookingsOut(BaseModel):
    """Bookings by start; ``at`` is now."""

    at: int
    bookings: list[BookingOut]


class ConflictOut(SpanOut):
    """A time that is not free, with alternatives.

    ``times``: the nearest free times. ``seats``: how many are free then, 0 for none. ``types``: other GPU types with as
    many free GPUs then. Only the first few conflicts have alternatives.
    """

    occurrence: str
    times: list[SpanOut]
    seats: int
    types: list[str]


class MaintenanceOut(BaseModel):
    """A maintenance window, and the bookings that have other places because of it, or a ``problem``."""

    at: int
    maintenance: BookingOut
    changed: list[BookingOut]


class TakenOut(Error):
    """A refusal. With ``slot-taken`` it has the times that are not free, with alternatives."""

    conflicts: list[ConflictOut] = []


class TimeOut(SpanOut):
    """One requested time. ``note``: a sentence if a clock change affects it, "" otherwise."""

    occurrence: str
    note: str


class CheckOut(BaseModel):
    """The preview of a booking; nothing is written.

    Attributes:
        granted: it could be booked now. refusal: why not, as a sentence, and ``reason`` its slug; "" if there are only
            conflicts with other bookings.
        needs_approval: an administrator would have to approve it. amount: milli-GPU-seconds × price of all its times,
            null if there is no ledger of GPU time. total: GPUs of each time.
        notes: what Slurm cannot reserve exactly as requested.
    """

    granted: bool
    refusal: str
    reason: str
    needs_approval: bool
    amount: int | None
    total: int
    times: list[TimeOut]
    conflicts: list[ConflictOut]
    notes: list[str]


class PartOut(SpanOut):
    """The number of GPUs that are free throughout a part of the requested time."""

    free: int


class BandOut(BaseModel):
    """Free GPUs of one type over time, as consecutive parts with different numbers."""

    gpu_type: str
    total: int
    parts: list[PartOut]


class FreeOut(BaseModel):
    """Free GPUs by type."""

    start: int
    end: int
    types: list[BandOut]


class TypeOut(BaseModel):
    """A GPU type: how many there are, how many the largest node has, and how many may be booked at one time."""

    gpu_type: str
    total: int
    largest: int
    bookable: int


class NodeOut(BaseModel):
    """A node that can be booked. ``out``: it is down or drained now."""

    name: str
    state: str
    out: bool
    gpus: dict[str, int]


class SupplyOut(BaseModel):
    """The GPUs that can be booked, by Slurm's answer ``at``. ``known`` is false until Slurm has answered.

    ``keeps``: whether Slurm reserves single ``gpus``, whole ``nodes``, or a license for each GPU (``licenses``).
    ``notes``: what it cannot reserve exactly.
    ``may_book``: whether the policy lets the visitor book at all. ``accounts``: those that the visitor may charge.
    """

    at: int
    known: bool
    keeps: Literal["gpus", "nodes", "licenses"]
    notes: list[str]
    types: list[TypeOut]
    nodes: list[NodeOut]
    may_book: bool
    accounts: list[str]


class FeedOut(BaseModel):
    """The visitor's feed; ``made`` 0: there is none. ``address`` is given once, since only its digest is stored."""

    made: int
    address: str


class WordsOut(BaseModel):
    """The next hours in sentences."""

    at: int
    sentences: list[str]


class HealthOut(BaseModel):
    """Whether Slurm's reservations are equal to the calendar.

    ``age``: seconds since the last comparison that Slurm answered, null for never. ``equal``: whether nothing had to be
    changed then. ``faults``: why GPUs that are counted by licenses are not reserved, in sentences.
    """

    keeping: bool
    age: int | None
    equal: bool
    faults: list[str]
